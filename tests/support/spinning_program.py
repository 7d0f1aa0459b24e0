"""A client that does one step a line, as client_program's, and kernels that run for as long as it takes.

Steps more: spin (launch a kernel that waits for a word of memory); release (write the word); spun (wait for the
kernel, and say what it wrote).
"""

from __future__ import annotations

import ctypes

import client_program
import numpy as np
from client_program import Program

from pympsd_client import driver as cuda

SPIN = b"""
.version 7.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u64 words) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words]; cvta.to.global.u64 %rd1, %rd1;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
    mul.lo.u32 %r3, %r1, %r2;
    st.global.u32 [%rd3+4], %r3;
    ret;
}
"""
THREADS = 64


class SpinningProgram(Program):
    """The steps of a kernel in flight."""

    def do_spin(self) -> str:
        self.words = cuda.cuMemAlloc(4 * (THREADS + 1))[1]
        cuda.cuMemsetD32(self.words, 0, THREADS + 1)
        self.streams = [cuda.cuStreamCreate(1)[1] for _ in range(2)]
        function = cuda.cuModuleGetFunction(cuda.cuModuleLoadData(SPIN)[1], b"spin")[1]
        parameters = ((int(self.words),), (ctypes.c_void_p,))
        code = cuda.cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, self.streams[0], parameters, 0)[0]
        return f"{code.name} {cuda.cuStreamQuery(self.streams[0])[0].name}"

    def do_release(self) -> str:
        word = np.array([3], np.uint32)
        return cuda.cuMemcpyHtoDAsync(self.words, word, word.nbytes, self.streams[1])[0].name

    def do_spun(self) -> str:
        code = cuda.cuStreamSynchronize(self.streams[0])[0]
        found = np.zeros(THREADS + 1, np.uint32)
        cuda.cuMemcpyDtoH(found, self.words, found.nbytes)
        wrong = np.count_nonzero(found[1:] != 3 * np.arange(THREADS, dtype=np.uint32))
        return f"{code.name} wrong={wrong}"


if __name__ == "__main__":
    client_program.main(SpinningProgram())
