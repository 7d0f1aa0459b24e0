"""A pool of contexts with different numbers of multiprocessors, each filled by one cooperative launch.

Making a context takes time and memory, and a device has room for 60 of them: so a program that wants a part of the
multiprocessors now and another part later makes its contexts at the start, one of each size, and picks the one that
suits when it launches. An execution affinity is rounded up to what the device can do: ask the context for its size.

Needs an MPS daemon (pympsd -d). Exit status 1 if anything differs from what it should be.
"""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pympsd_client import driver as cuda
from pympsd_client import last_error

KERNEL = Path(__file__).with_name("meet.ptx")
THREADS = 128
SM_COUNT = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT


def main():
    """Make the pool, use all its contexts at the same time; return the exit status."""
    check(cuda.cuInit(0))
    device = check(cuda.cuDeviceGet(0))
    if not check(cuda.cuDeviceGetExecAffinitySupport(SM_COUNT, device)):
        sys.exit("contexts with a part of the multiprocessors need MPS and a Volta or newer GPU: start pympsd -d")
    every = check(cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
    sizes = (1, 2, every // 3, every // 3 * 2)
    pool = {size: make_context(device, size) for size in sizes}

    with ThreadPoolExecutor(len(pool)) as threads:
        reports = list(threads.map(fill, pool.values()))
    problems = 0
    for size, (multiprocessors, blocks, met, places) in zip(sizes, reports, strict=True):
        print(
            f"asked for {size} of {every} multiprocessors, has {multiprocessors}: {blocks} blocks met, "
            f"on {len(places)} multiprocessors"
        )
        problems += met != blocks or not size <= multiprocessors or len(places) > multiprocessors
    for context in pool.values():
        check(cuda.cuCtxDestroy(context))
    print(
        "Something went wrong."
        if problems
        else "Each grid filled its context, and no context had more than its part."
    )
    return 1 if problems else 0


def make_context(device, multiprocessors):
    """Return a context limited to ``multiprocessors``, rounded up; it is current to no thread."""
    affinity = cuda.CUexecAffinityParam()
    affinity.type = SM_COUNT
    affinity.param.smCount.val = multiprocessors
    parameters = cuda.CUctxCreateParams()
    parameters.execAffinityParams = [affinity]
    parameters.numExecAffinityParams = 1
    check(cuda.cuCtxCreate(parameters, 0, device))
    return check(cuda.cuCtxPopCurrent())


def fill(context):
    """Launch the blocks that a context holds; return (multiprocessors, blocks, the number that met, places)."""
    check(cuda.cuCtxSetCurrent(context))
    granted = check(cuda.cuCtxGetExecAffinity(SM_COUNT))  # its fields are views: it must outlive their use
    multiprocessors = granted.param.smCount.val
    module = check(cuda.cuModuleLoadData(KERNEL.read_bytes()))
    function = check(cuda.cuModuleGetFunction(module, b"meet"))
    each = check(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, THREADS, 0))
    blocks = multiprocessors * each

    arrived = check(cuda.cuMemAlloc(4))
    places = check(cuda.cuMemAlloc(4 * blocks))
    check(cuda.cuMemsetD32(arrived, 0, 1))
    parameters = ((int(arrived), int(places)), (ctypes.c_void_p, ctypes.c_void_p))
    check(cuda.cuLaunchCooperativeKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, 0, parameters))
    check(cuda.cuCtxSynchronize())

    met, used = np.zeros(1, np.uint32), np.zeros(blocks, np.uint32)
    check(cuda.cuMemcpyDtoH(met, arrived, met.nbytes))
    check(cuda.cuMemcpyDtoH(used, places, used.nbytes))
    return multiprocessors, blocks, int(met[0]), set(used.tolist())


def check(answer):
    """Return the output of a driver call; exit with the reason if it failed."""
    result, *values = answer
    if result != cuda.CUresult.CUDA_SUCCESS:
        sys.exit(f"{result.name}: {last_error()}")
    return values[0] if values else None


if __name__ == "__main__":
    sys.exit(main())
