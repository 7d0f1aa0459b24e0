"""A client that does one step a line: reads a command, does it with pympsd_client, prints one line of result.

Steps: init; ctx DEVICE; newctx DEVICE; add (vector addition of 1<<16 floats, checked); fill VALUE; check VALUE;
endless; illegal; hostfunc quick|endless; sync; count; sm; mem; alloc BYTES; free; close DEVICE; badptx; fork;
error (the last one's reason); patience SECONDS (to wait for another daemon when one has died); exit.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import numpy as np

from pympsd_client import driver as cuda
from pympsd_client import last_error
from pympsd_client._connect import retry

COUNT = 1 << 16

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 n) {
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .f32 %f<3>;
    ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.s32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd3], %f2;
DONE:
    ret;
}
.visible .entry endless() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
"""


BAD_PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry k() { .reg .u32 %r1; frobnicate.u32 %r1; ret; }
"""


class Program:
    """What the steps share."""

    def __init__(self) -> None:
        self.functions = None
        self.context = None
        self.allocated = None

    def step(self, name: str, *words: str) -> str:
        """Do one step; return its line."""
        return str(getattr(self, f"do_{name}")(*words))

    def do_init(self) -> str:
        return _said(cuda.cuInit(0))

    def do_patience(self, seconds: str) -> str:
        retry.RETRY_S = retry.QUEUE_RETRY_S = float(seconds)
        return seconds

    def do_pid(self) -> str:
        return str(os.getpid())

    def do_ctx(self, device: str) -> str:
        result, self.context = _pair(cuda.cuDevicePrimaryCtxRetain(int(device)))
        if result == cuda.CUresult.CUDA_SUCCESS:
            cuda.cuCtxSetCurrent(self.context)
        return _said((result,))

    def do_close(self, device: str) -> str:
        self.functions = None
        return _said(cuda.cuDevicePrimaryCtxRelease(int(device)))

    def do_newctx(self, device: str) -> str:
        # The functions are those of the context before.
        self.functions = None
        return _said(cuda.cuCtxCreate(0, int(device)))

    def _function(self, name: str):  # type: ignore[no-untyped-def]
        if self.functions is None:
            result, module = _pair(cuda.cuModuleLoadData(PTX))
            assert result == cuda.CUresult.CUDA_SUCCESS, last_error()
            names = ("add_one", "endless")
            self.functions = {each: _pair(cuda.cuModuleGetFunction(module, each.encode()))[1] for each in names}
        return self.functions[name]

    def do_add(self) -> str:
        host = np.arange(COUNT, dtype=np.float32)
        data = _pair(cuda.cuMemAlloc(host.nbytes))[1]
        cuda.cuMemcpyHtoD(data, host, host.nbytes)
        parameters = ((data, COUNT), (None, ctypes.c_uint32))
        launched = cuda.cuLaunchKernel(self._function("add_one"), COUNT // 256, 1, 1, 256, 1, 1, 0, 0, parameters, 0)
        synced = cuda.cuCtxSynchronize()
        cuda.cuMemcpyDtoH(host, data, host.nbytes)
        cuda.cuMemFree(data)
        wrong = np.count_nonzero(host != np.arange(COUNT, dtype=np.float32) + 1)
        return f"{_said(launched)} {_said(synced)} wrong={wrong}"

    def do_endless(self) -> str:
        stream = _pair(cuda.cuStreamCreate(1))[1]
        return _said(cuda.cuLaunchKernel(self._function("endless"), 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))

    def do_illegal(self) -> str:
        parameters = ((0x7000_0000_0000, 1), (ctypes.c_uint64, ctypes.c_uint32))
        return _said(cuda.cuLaunchKernel(self._function("add_one"), 1, 1, 1, 32, 1, 1, 0, 0, parameters, 0))

    def do_hostfunc(self, kind: str) -> str:
        """Launch a host function, "quick" or "endless", in a stream of its own; say how the stream is then."""
        stream = _pair(cuda.cuStreamCreate(1))[1]
        begun = threading.Event()

        def endless(_: int) -> None:
            begun.set()
            threading.Event().wait()

        said = _said(cuda.cuLaunchHostFunc(stream, endless if kind == "endless" else lambda _: begun.set(), 0))
        if said != "CUDA_SUCCESS":
            return said
        begun.wait(30)
        look = cuda.cuStreamQuery if kind == "endless" else cuda.cuStreamSynchronize
        return f"{said} begun={begun.is_set()} {_said(look(stream))}"

    def do_error(self) -> str:
        return last_error()

    def do_sync(self) -> str:
        return _said(cuda.cuCtxSynchronize())

    def do_count(self) -> str:
        return str(_pair(cuda.cuDeviceGetCount())[1])

    def do_sm(self) -> str:
        attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return str(_pair(cuda.cuDeviceGetAttribute(attribute, 0))[1])

    def do_mem(self) -> str:
        _, free, total = cuda.cuMemGetInfo()
        return f"{int(free) >> 20} {int(total) >> 20}"

    def do_alloc(self, count: str) -> str:
        result, self.allocated = _pair(cuda.cuMemAlloc(int(count)))
        return f"{_said((result,))} {int(self.allocated or 0):#x}"

    def do_copyhalf(self, count: str) -> str:
        return _said(cuda.cuMemcpyHtoD(self.allocated, bytes(int(count)), int(count)))

    def do_badptx(self) -> str:
        log = bytearray(2048)
        options = [cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        result = cuda.cuModuleLoadDataEx(BAD_PTX, 2, options, [log, len(log)])
        return f"{_said(result)} {bytes(log).rstrip(bytes(1)).decode()!r}"

    def do_fork(self) -> str:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, _said(cuda.cuCtxSynchronize()).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as said:
            return f"child {said.read()} parent {self.do_sync()}"


def _said(answer: tuple) -> str:  # type: ignore[type-arg]
    return answer[0].name


def _pair(answer: tuple) -> tuple:  # type: ignore[type-arg]
    return (answer[0], answer[1] if len(answer) > 1 else None)


def main(program: Program) -> None:
    """Do steps until the end of the input."""
    for line in sys.stdin:
        if line.split() == ["exit"]:
            return
        print(program.step(*line.split()), flush=True)


if __name__ == "__main__":
    main(Program())
