"""A client that does one step a line, as client_program's, and those that show its limits.

Steps more: env NAME [VALUE]; why (the last error in words); dtor; ctxaff DEVICE SMS; contexts COUNT (until one is
refused); affinity; places BLOCKS (the multiprocessors that so many blocks ran on).
"""

from __future__ import annotations

import ctypes
import os

import client_program
import numpy as np
from client_program import Program

from pympsd_client import driver as cuda
from pympsd_client import last_error

SM_COUNT = cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
WHERE = b"""
.version 7.0
.target sm_60
.address_size 64
.visible .entry places(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out]; cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %smid;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""


class LimitsProgram(Program):
    """The steps about limits."""

    def do_env(self, name: str, value: str | None = None) -> str:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        return "ok"

    def do_why(self) -> str:
        return last_error()

    def do_dtor(self) -> str:
        context = cuda.cuCtxGetCurrent()[1]
        return str(cuda.cuCtxDestroy(context)[0].name)

    def do_ctxaff(self, device: str, count: str) -> str:
        affinity = cuda.CUexecAffinityParam()
        affinity.type = SM_COUNT
        affinity.param.smCount.val = int(count)
        parameters = cuda.CUctxCreateParams()
        parameters.execAffinityParams = [affinity]
        parameters.numExecAffinityParams = 1
        self.functions = None
        code = cuda.cuCtxCreate(parameters, 0, int(device))[0]
        return f"{code.name} {self.do_affinity() if not code else 0}"

    def do_affinity(self) -> str:
        code, affinity = cuda.cuCtxGetExecAffinity(SM_COUNT)
        return code.name if code else str(affinity.param.smCount.val)

    def do_contexts(self, count: str) -> str:
        made = 0
        code = cuda.CUresult.CUDA_SUCCESS
        while made < int(count) and not code:
            code = cuda.cuCtxCreate(0, 0)[0]
            made += not code
        return f"{made} {code.name}"

    def do_places(self, blocks: str) -> str:
        count = int(blocks)
        out = cuda.cuMemAlloc(4 * count)[1]
        function = cuda.cuModuleGetFunction(cuda.cuModuleLoadData(WHERE)[1], b"places")[1]
        cuda.cuLaunchKernel(function, count, 1, 1, 64, 1, 1, 0, 0, ((int(out),), (ctypes.c_void_p,)), 0)
        places = np.full(count, -1, np.int32)
        code = cuda.cuMemcpyDtoH(places, out, places.nbytes)[0]
        return f"{code.name} {','.join(map(str, sorted(set(places.tolist()))))}"


if __name__ == "__main__":
    client_program.main(LimitsProgram())
