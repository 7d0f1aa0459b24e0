"""One of two processes that share a GPU: one_process.py KERNEL.ptx KERNEL START EXPECTED

Runs the kernel over 1<<20 floats that all are START, and checks that every one became EXPECTED. Prints "ready" when
it has a context and waits for a line on standard input; prints "done" and waits for another before it exits.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

from pympsd_client import driver as cuda
from pympsd_client import last_error

COUNT = 1 << 20
THREADS = 256


def check(answer):
    """Return the output of a driver call; exit with the reason if it failed."""
    result, *values = answer
    if result != cuda.CUresult.CUDA_SUCCESS:
        sys.exit(f"{result.name}: {last_error()}")
    return values[0] if len(values) == 1 else values


def wait_for_line(word):
    """Report progress to the parent; wait until it lets this process continue."""
    print(word, flush=True)
    sys.stdin.readline()


def main(ptx, kernel, start, expected):
    """Run the kernel once and compare."""
    check(cuda.cuInit(0))
    device = check(cuda.cuDeviceGet(0))
    context = check(cuda.cuDevicePrimaryCtxRetain(device))
    check(cuda.cuCtxSetCurrent(context))
    wait_for_line("ready")

    host = np.full(COUNT, start, np.float32)
    data = check(cuda.cuMemAlloc(host.nbytes))
    check(cuda.cuMemcpyHtoD(data, host, host.nbytes))
    module = check(cuda.cuModuleLoadData(Path(ptx).read_bytes()))
    function = check(cuda.cuModuleGetFunction(module, kernel.encode()))
    blocks = (COUNT + THREADS - 1) // THREADS
    parameters = ((data, COUNT), (None, ctypes.c_int))
    check(cuda.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, 0, parameters, 0))
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemcpyDtoH(host, data, host.nbytes))
    check(cuda.cuMemFree(data))

    wrong = int(np.count_nonzero(host != np.float32(expected)))
    wait_for_line(f"done: {COUNT} floats went from {start} to {host[0]}, {wrong} are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
