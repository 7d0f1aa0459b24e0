"""A client that does one step a line, as limits_program's and spinning_program's, and kernels for what a GPU does.

Steps more: warm (load every module: on a GPU that waits for all kernels that run, so it comes before them);
busy MS (launch a kernel of so many milliseconds); trap (launch one that traps); stay BLOCKS (blocks that do not leave
before all have begun, or some time is over: prints the multiprocessors they ran on); prio (stream priorities); image
PATH (load a file whose kernel ``twice`` doubles floats, and have it double some).
"""

from __future__ import annotations

import ctypes

import client_program
import numpy as np
from limits_program import LimitsProgram
from spinning_program import SpinningProgram

from pympsd_client import driver as cuda

MORE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 nanoseconds) {
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
.visible .entry trapped() { trap; ret; }
.visible .entry stay(.param .u64 out, .param .u64 nanoseconds) {
    .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [nanoseconds];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %r2;
    mov.u64 %rd5, %globaltimer;
AGAIN:
    mov.u64 %rd6, %globaltimer;
    sub.u64 %rd7, %rd6, %rd5;
    setp.lt.u64 %p1, %rd7, %rd2;
    @%p1 bra AGAIN;
    ret;
}
"""
STAY_NANOSECONDS = 2_000_000


class GpuProgram(LimitsProgram, SpinningProgram):
    """The steps above."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, object] = {}

    def _of_more(self, name: str) -> object:
        if not self.more:
            module = cuda.cuModuleLoadData(MORE)[1]
            names = ("busy", "trapped", "stay")
            self.more = {each: cuda.cuModuleGetFunction(module, each.encode())[1] for each in names}
        return self.more[name]

    def do_newctx(self, device: str) -> str:
        self.more = {}  # they are functions of the context before
        return super().do_newctx(device)

    def do_ctxaff(self, device: str, count: str) -> str:
        self.more = {}
        return super().do_ctxaff(device, count)

    def do_warm(self) -> str:
        self._of_more("busy")
        return self.do_add()

    def do_busy(self, milliseconds: str) -> str:
        parameters = ((int(milliseconds) * 1_000_000,), (ctypes.c_uint64,))
        return str(cuda.cuLaunchKernel(self._of_more("busy"), 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0)[0].name)

    def do_trap(self) -> str:
        return str(cuda.cuLaunchKernel(self._of_more("trapped"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0].name)

    def do_stay(self, blocks: str) -> str:
        count = int(blocks)
        out = cuda.cuMemAlloc(4 * count)[1]
        parameters = ((int(out), STAY_NANOSECONDS), (ctypes.c_void_p, ctypes.c_uint64))
        cuda.cuLaunchKernel(self._of_more("stay"), count, 1, 1, 32, 1, 1, 0, 0, parameters, 0)
        places = np.full(count, -1, np.int32)
        code = cuda.cuMemcpyDtoH(places, out, places.nbytes)[0]
        return f"{code.name} {','.join(map(str, sorted(set(places.tolist()))))}"

    def do_image(self, path: str) -> str:
        code, module = cuda.cuModuleLoad(path.encode())
        if module is None:
            return str(code.name)
        function = cuda.cuModuleGetFunction(module, b"twice")[1]
        host = np.arange(1000, dtype=np.float32)
        data = cuda.cuMemAlloc(host.nbytes)[1]
        cuda.cuMemcpyHtoD(data, host, host.nbytes)
        parameters = ((int(data), host.size), (ctypes.c_void_p, ctypes.c_int))
        cuda.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, 0, parameters, 0)
        found = np.empty_like(host)
        codes = {code, cuda.cuMemcpyDtoH(found, data, host.nbytes)[0], cuda.cuMemFree(data)[0]}
        codes.add(cuda.cuModuleUnload(module)[0])
        return f"{' '.join(sorted(each.name for each in codes))} wrong={int((found != 2 * host).sum())}"

    def do_prio(self) -> str:
        code, *span = cuda.cuCtxGetStreamPriorityRange()
        return f"{code.name} {span}"


if __name__ == "__main__":
    client_program.main(GpuProgram())
