"""A CUDA program over cuda.bindings alone, with the lines of the fake one (tests/support/fake_mps/README.md).

``launch`` adds two vectors and looks at the result, ``fault`` stores where nothing is, ``sms`` is the device
attribute. A step of ``--loop`` is a kernel of its own on one number.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from cuda.bindings import driver as cuda
from fake_mps.client import SUCCESS, Failure, Lines, Program, compute
from fake_mps.clients import STEP_FACTOR, STEP_TERM

COUNT = 1 << 16
NOWHERE = 0x10
ADDRESS, WORD = ctypes.c_uint64, ctypes.c_uint32
MULTIPROCESSORS = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
PTX = f"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry add(.param .u64 in, .param .u64 out)
{{
    .reg .b32 %r<6>;
    .reg .b64 %a<6>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    mul.wide.u32 %a0, %r3, 4;
    ld.param.u64 %a1, [in];
    ld.param.u64 %a2, [out];
    add.u64 %a1, %a1, %a0;
    add.u64 %a2, %a2, %a0;
    ld.global.u32 %r4, [%a1];
    add.u32 %r4, %r4, %r3;
    st.global.u32 [%a2], %r4;
    ret;
}}

.visible .entry step(.param .u64 at, .param .u64 number)
{{
    .reg .b64 %a<6>;
    ld.param.u64 %a0, [at];
    ld.param.u64 %a1, [number];
    ld.global.u64 %a2, [%a0];
    mov.u64 %a3, {STEP_FACTOR};
    mov.u64 %a4, {STEP_TERM};
    mad.lo.u64 %a2, %a2, %a3, %a4;
    add.u64 %a2, %a2, %a1;
    st.global.u64 [%a0], %a2;
    ret;
}}

.visible .entry store(.param .u64 at)
{{
    .reg .b32 %r<2>;
    .reg .b64 %a<2>;
    ld.param.u64 %a0, [at];
    mov.u32 %r0, 1;
    st.global.u32 [%a0], %r0;
    ret;
}}
\0""".encode()


def got(answer: tuple[Any, ...]) -> Any:
    """Return a successful call's value; raise Failure."""
    if answer[0] != cuda.CUresult.CUDA_SUCCESS:
        raise Failure(answer[0].name)
    return answer[1] if len(answer) > 1 else None


class CudaProgram(Program):
    """The lines."""

    def __init__(self) -> None:
        super().__init__()
        self.module: Any = None
        self.cell: Any = None

    def do_init(self) -> str:
        got(cuda.cuInit(0))
        return SUCCESS

    def do_ctx(self, device: str) -> str:
        got(cuda.cuCtxSetCurrent(got(cuda.cuDevicePrimaryCtxRetain(got(cuda.cuDeviceGet(int(device)))))))
        return SUCCESS

    def do_alloc(self, size: str) -> str:
        got(cuda.cuMemAlloc(int(size)))
        return SUCCESS

    def do_sync(self) -> str:
        got(cuda.cuCtxSynchronize())
        return SUCCESS

    def do_sms(self) -> str:
        return str(got(cuda.cuDeviceGetAttribute(MULTIPROCESSORS, got(cuda.cuCtxGetDevice()))))

    def do_launch(self) -> str:
        inputs = (ctypes.c_uint32 * COUNT)(*range(COUNT))
        doubled = (ctypes.c_uint32 * COUNT)()
        there, back = (got(cuda.cuMemAlloc(4 * COUNT)) for _ in range(2))
        got(cuda.cuMemcpyHtoD(there, ctypes.addressof(inputs), 4 * COUNT))
        self._run("add", COUNT // 256, 256, (int(there), int(back)))
        got(cuda.cuMemcpyDtoH(ctypes.addressof(doubled), back, 4 * COUNT))
        for address in (there, back):
            got(cuda.cuMemFree(address))
        wrong = sum(doubled[place] != 2 * place for place in range(COUNT))
        return f"{wrong} of {COUNT} are wrong" if wrong else SUCCESS

    def do_fault(self) -> str:
        self._run("store", 1, 1, (NOWHERE,))
        return self.do_sync()

    def step(self) -> None:
        """Make the next computation of the chain, on the device; the last value is read each time."""
        value = ctypes.c_uint64(0)
        if self.cell is None:
            self.cell = got(cuda.cuMemAlloc(8))
            got(cuda.cuMemcpyHtoD(self.cell, ctypes.addressof(value), 8))
        self._run("step", 1, 1, (int(self.cell), self.steps))
        got(cuda.cuMemcpyDtoH(ctypes.addressof(value), self.cell, 8))
        self.value = value.value
        self.steps += 1

    def end(self) -> None:
        """Do nothing: the driver cleans up."""

    def _run(self, name: str, blocks: int, threads: int, values: tuple[int, ...]) -> None:
        if self.module is None:
            self.module = got(cuda.cuModuleLoadData(PTX))
        function = got(cuda.cuModuleGetFunction(self.module, name.encode()))
        parameters = (values, (ADDRESS,) * len(values))
        got(cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, parameters, 0))


def main(arguments: list[str]) -> None:
    """Execute lines until the end of the input; with --loop, run the loop first."""
    program, lines = CudaProgram(), Lines()
    if arguments == ["--loop"]:
        for words in (("init",), ("ctx", "0")):
            print(program.run(*words), flush=True)
        compute(program, lines)
    while (line := lines.next()) and line != "exit":
        print(program.run(*line.split()), flush=True)
    if line == "exit":
        print("exit", flush=True)


main(sys.argv[1:])
