"""One client of provisioning.py: which_sms.py

Makes a context and prints the number of SMs it may use; waits for a line; runs a kernel whose blocks report the SM
they run on and prints these; waits for another line before it exits. Each line but the first is one JSON value.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from pympsd_client import driver as cuda
from pympsd_client import last_error

BLOCKS = 1024
COUNT = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def check(answer):
    """Return the output of a driver call; exit with the reason if it failed."""
    result, *values = answer
    if result != cuda.CUresult.CUDA_SUCCESS:
        sys.exit(f"{result.name}: {last_error()}")
    return values[0] if len(values) == 1 else values


def main():
    """Run the kernel once."""
    check(cuda.cuInit(0))
    check(cuda.cuCtxCreate(0, 0))
    print(check(cuda.cuDeviceGetAttribute(COUNT, 0)), flush=True)
    sys.stdin.readline()

    sms = np.zeros(BLOCKS, np.uint32)
    data = check(cuda.cuMemAlloc(sms.nbytes))
    module = check(cuda.cuModuleLoadData(Path(__file__).with_name("which_sm.ptx").read_bytes()))
    function = check(cuda.cuModuleGetFunction(module, b"which_sm"))
    check(cuda.cuLaunchKernel(function, BLOCKS, 1, 1, 256, 1, 1, 0, 0, ((data,), (ctypes.c_void_p,)), 0))
    check(cuda.cuMemcpyDtoH(sms, data, sms.nbytes))
    print(json.dumps(sorted(set(sms.tolist()))), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
