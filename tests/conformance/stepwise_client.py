"""A client that does one step a line, named and answered as in the recorded sessions (times left out).

Steps: init; ctx DEVICE (a new context); ctxaff DEVICE COUNT (one that asks for so many SMs); dtor (destroy the
current one); contexts (make new ones on device 0 until one is refused, and say how many there are); count; sm; mem;
prio; smids (where the blocks of a large grid ran); alloc MIB; fill (allocate pieces of 16 MiB until one is refused,
at most 1,000); poke (a kernel that stores where nothing is); spin MS (a kernel that runs so long); sync;
env NAME VALUE; crowd COUNT (so many clients of its own, one after the other, that stay until this one ends);
exit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import numpy as np

from pympsd_client import driver as cuda

ATTRIBUTE = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
SM_COUNT = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
PIECE = 16
PIECES = 1000
NOWHERE = 0x10
BLOCKS = 1056
PR_SET_PDEATHSIG = 1
WELL = "init CUDA_SUCCESS / ctx CUDA_SUCCESS"
CROWD: list[int] = []

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) {
    .reg .pred %p<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry poke(.param .u64 address) {
    .reg .b32 %r<2>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry smids(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r2;
    ret;
}
"""


def _init() -> str:
    return cuda.cuInit(0)[0].name


def _ctx(device: str) -> str:
    return cuda.cuCtxCreate(0, int(device))[0].name


def _ctxaff(device: str, count: str) -> str:
    affinity = cuda.CUexecAffinityParam()
    affinity.type = SM_COUNT
    affinity.param.smCount.val = int(count)
    parameters = cuda.CUctxCreateParams()
    parameters.execAffinityParams = [affinity]
    parameters.numExecAffinityParams = 1
    code = cuda.cuCtxCreate(parameters, 0, int(device))[0]
    if code:
        return f"{code.name} req={count} got=0 {code.name}"
    asked, given = cuda.cuCtxGetExecAffinity(SM_COUNT)
    return f"{code.name} req={count} got={given.param.smCount.val} {asked.name}"


def _dtor() -> str:
    return cuda.cuCtxDestroy(cuda.cuCtxGetCurrent()[1])[0].name


def _contexts() -> str:
    made = 1
    while not cuda.cuCtxCreate(0, 0)[0]:
        made += 1
    return str(made)


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


def _fill() -> str:
    pieces, code = 0, cuda.CUresult.CUDA_SUCCESS
    while pieces < PIECES:
        code = cuda.cuMemAlloc(PIECE << 20)[0]
        if code:
            break
        pieces += 1
    return f"{pieces * PIECE}MiB {code.name}"


def _sync() -> str:
    return cuda.cuCtxSynchronize()[0].name


def _launch(name: bytes, value: int, blocks: int = 1) -> str:
    code, *module = cuda.cuModuleLoadData(PTX)
    if code:
        return code.name
    function = cuda.cuModuleGetFunction(module[0], name)[1]
    parameters = ((value,), (ctypes.c_uint64,))
    return cuda.cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, 0, parameters, 0)[0].name


def _spin(milliseconds: str) -> str:
    return _launch(b"spin", int(milliseconds) * 1_000_000)


def _poke() -> str:
    return _launch(b"poke", NOWHERE)


def _smids() -> str:
    out = cuda.cuMemAlloc(4 * BLOCKS)[1]
    _launch(b"smids", int(out), BLOCKS)
    places = np.full(BLOCKS, -1, np.int32)
    code = cuda.cuMemcpyDtoH(places, out, places.nbytes)[0]
    cuda.cuMemFree(out)
    return f"{code.name} distinct={len(set(places.tolist()))} min={places.min()} max={places.max()}"


def _env(name: str, value: str) -> str:
    os.environ[name] = value
    return ""


def _crowd(count: str) -> str:
    said = []
    for _ in range(int(count)):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.write(writer, f"init {_init()} / ctx {_ctx('0')}\n".encode())
            signal.pause()
        CROWD.append(child)
        os.close(writer)
        with os.fdopen(reader) as told:
            said.append(told.readline().strip())
    well = said.count(WELL)
    return f"ok={well}; others: {sorted(set(said) - {WELL})}"


STEPS = {
    "init": _init,
    "ctx": _ctx,
    "ctxaff": _ctxaff,
    "dtor": _dtor,
    "contexts": _contexts,
    "count": _count,
    "sm": _sm,
    "mem": _mem,
    "prio": _prio,
    "smids": _smids,
    "alloc": _alloc,
    "fill": _fill,
    "poke": _poke,
    "spin": _spin,
    "sync": _sync,
    "env": _env,
    "crowd": _crowd,
}


def main() -> None:
    """Do steps until the end of the input."""
    for line in sys.stdin:
        name, *words = line.split()
        if name == "exit":
            break
        print(f"{name} {STEPS[name](*words)}".rstrip(), flush=True)
    for child in CROWD[:1] + CROWD[:0:-1]:
        # In another order than they came, as at the recorder.
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
