"""A client that does one step a line, named and answered as in the recorded sessions (times left out).

Steps: init; ctx DEVICE (a new context); dtor (destroy the current one); count; sm; mem; prio; alloc MIB;
sync; spin MS (a kernel that does not end by itself); exit.
"""

from __future__ import annotations

import sys

from pympsd_client import driver as cuda

ATTRIBUTE = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

ENDLESS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry endless() {
AGAIN:
    bra AGAIN;
}
"""


def _init() -> str:
    return cuda.cuInit(0)[0].name


def _ctx(device: str) -> str:
    return cuda.cuCtxCreate(0, int(device))[0].name


def _dtor() -> str:
    return cuda.cuCtxDestroy(cuda.cuCtxGetCurrent()[1])[0].name


def _count() -> str:
    code, *count = cuda.cuDeviceGetCount()
    return f"{code.name} {count[0] if not code else -1}"


def _sm() -> str:
    code, *count = cuda.cuDeviceGetAttribute(ATTRIBUTE, 0)
    return f"{code.name} {count[0] if not code else -1}"


def _mem() -> str:
    code, *sizes = cuda.cuMemGetInfo()
    free, total = (int(size) >> 20 for size in sizes) if not code else (0, 0)
    return f"{code.name} free={free}MiB total={total}MiB"


def _prio() -> str:
    code, *span = cuda.cuCtxGetStreamPriorityRange()
    least, greatest = span if not code else (99, 99)
    return f"{code.name} {least} {greatest}"


def _alloc(mebibytes: str) -> str:
    return f"{mebibytes} {cuda.cuMemAlloc(int(mebibytes) << 20)[0].name}"


def _sync() -> str:
    return cuda.cuCtxSynchronize()[0].name


def _spin(milliseconds: str) -> str:
    module = cuda.cuModuleLoadData(ENDLESS)[1]
    function = cuda.cuModuleGetFunction(module, b"endless")[1]
    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0].name


STEPS = {
    "spin": _spin,
    "init": _init,
    "ctx": _ctx,
    "dtor": _dtor,
    "count": _count,
    "sm": _sm,
    "mem": _mem,
    "prio": _prio,
    "alloc": _alloc,
    "sync": _sync,
}


def main() -> None:
    """Do steps until the end of the input."""
    for line in sys.stdin:
        name, *words = line.split()
        if name == "exit":
            return
        print(name, STEPS[name](*words), flush=True)


if __name__ == "__main__":
    main()
