"""A client that does one step a line, as client_program's, and those that meet the application rules of MPS.

More steps: pin BYTES (page-locked memory, copied to the device and back); unpin (the last one); register BYTES;
stray ADDRESS (a kernel adds one to the float there); peek ADDRESS (copy the float there by the API); hold VALUE
(allocate a float on the device, print its address); value (of that float); callbacks; nested (load a module with
dynamic parallelism); refused NAME.
"""

from __future__ import annotations

import ctypes
import struct

import client_program
import numpy as np
from client_program import Program

from pympsd_client import driver as cuda

NESTED = b""".version 6.0
.target sm_60
.address_size 64
.extern .func (.param .b32 result) cudaLaunchDevice (.param .b64 parameters);
.visible .entry parent() {
    .reg .b32 %r<2>; .reg .b64 %rd<2>; .param .b64 given; .param .b32 got;
    mov.u64 %rd1, 0;
    st.param.b64 [given], %rd1;
    call.uni (got), cudaLaunchDevice, (given);
    ld.param.b32 %r1, [got];
    ret;
}
"""


class RulesProgram(Program):
    """A program with more steps."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[int] = []
        self.arrays: list[np.ndarray] = []  # type: ignore[type-arg]
        self.held = 0

    def do_pin(self, count: str) -> str:
        size = int(count)
        answer = cuda.cuMemAllocHost(size)
        if answer[1] is None:
            return str(answer[0].name)
        self.pinned.append(answer[1])
        host = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(answer[1]))
        host[:] = np.arange(size) % 251
        data = cuda.cuMemAlloc(size)[1]
        # Page-locked memory is read when the stream comes to the copy, as in CUDA.
        copied = [cuda.cuMemcpyHtoDAsync(data, answer[1], size, 0)[0], cuda.cuStreamSynchronize(0)[0]]
        host[:] = 0
        copied += [cuda.cuMemcpyDtoHAsync(answer[1], data, size, 0)[0], cuda.cuMemFree(data)[0]]
        right = bool((host == np.arange(size) % 251).all())
        return " ".join(sorted({result.name for result in (answer[0], *copied)})) + f" right={right}"

    def do_unpin(self) -> str:
        return str(cuda.cuMemFreeHost(self.pinned.pop())[0].name)

    def do_register(self, count: str) -> str:
        array = np.zeros(int(count), np.uint8)
        self.arrays.append(array)
        return str(cuda.cuMemHostRegister(array, array.nbytes, 0)[0].name)

    def do_hold(self, value: str) -> str:
        self.held = int(cuda.cuMemAlloc(4)[1])
        cuda.cuMemcpyHtoD(self.held, struct.pack("f", float(value)), 4)
        return hex(self.held)

    def do_value(self) -> str:
        return self._read(self.held)

    def do_stray(self, address: str) -> str:
        parameters = ((int(address, 16), 1), (ctypes.c_uint64, ctypes.c_uint32))
        launched = cuda.cuLaunchKernel(self._function("add_one"), 1, 1, 1, 32, 1, 1, 0, 0, parameters, 0)
        return f"{launched[0].name} {self.do_sync()}"

    def do_peek(self, address: str) -> str:
        return self._read(int(address, 16))

    def _read(self, address: int) -> str:
        room = bytearray(4)
        result = cuda.cuMemcpyDtoH(room, address, 4)[0]
        return f"{result.name} {struct.unpack('f', room)[0]}"

    def do_callbacks(self) -> str:
        ran: list[str] = []
        answers = [
            cuda.cuLaunchHostFunc(0, lambda data: ran.append("host function"), None),
            cuda.cuStreamAddCallback(0, lambda stream, status, data: ran.append("callback"), None, 0),
        ]
        self.do_sync()
        return f"{' '.join(answer[0].name for answer in answers)} {ran}"

    def do_nested(self) -> str:
        return str(cuda.cuModuleLoadData(NESTED)[0].name)

    def do_refused(self, name: str) -> str:
        return str(getattr(cuda, name)(0, 0)[0].name)


if __name__ == "__main__":
    client_program.main(RulesProgram())
