"""Linking of PTX, alone and on a real emulated device."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd_client import driver as cuda
from pympsd_client._objects.code.ptx_text import LinkError, join, limit_registers
from pympsd_server.ptx.loading.program import load_program
from tests.client.conftest import ok

HEADER = b".version 8.0\n.target sm_75\n.address_size 64\n"
KERNEL = HEADER + b".visible .entry k() { ret; }\n"
FIRST = (
    HEADER
    + b"""
// .func in_a_comment { "
.extern .func (.param .b32 result) triple (.param .b32 value);
.extern .global .align 4 .u32 added;
.global .align 4 .u32 own = 100;
.func (.param .b32 result) helper (.param .b32 value)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [value];
    ld.global.u32 %r2, [own];
    add.u32 %r3, %r1, %r2;
    st.param.b32 [result], %r3;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<6>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    .loc 1 2 3
    { .param .b32 a; .param .b32 b; st.param.b32 [a], 7; call (b), triple, (a); ld.param.b32 %r1, [b]; }
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), helper, (a); ld.param.b32 %r2, [b]; }
    ld.global.u32 %r3, [added];
    add.u32 %r4, %r2, %r3;
    st.global.u32 [%rd1], %r4;
    ret;
}
.file 1 "first.cu"
"""
)
SECOND = b"""// second
.version 8.4
.target sm_80, debug
.address_size 64
.visible .global .align 4 .u32 added = 5000;
.global .align 4 .u32 own = 3;
.func (.param .b32 result) helper (.param .b32 value)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [value];
    ld.global.u32 %r2, [own];
    mul.lo.u32 %r3, %r1, %r2;
    st.param.b32 [result], %r3;
    ret;
}
.visible .func (.param .b32 result) triple (.param .b32 value)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [value];
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), helper, (a); ld.param.b32 %r2, [b]; }
    st.param.b32 [result], %r2;
    ret;
}
.section .debug_str { info_string0: .b8 0 }
"""
Option = cuda.CUjit_option
PTX_INPUT = cuda.CUjitInputType.CU_JIT_INPUT_PTX


class _Logs:
    def __init__(self) -> None:
        self.error, self.info = bytearray(500), bytearray(500)
        self.options = [
            Option.CU_JIT_ERROR_LOG_BUFFER,
            Option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            Option.CU_JIT_INFO_LOG_BUFFER,
            Option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ]
        self.values = [self.error, 500, self.info, 500]

    @property
    def texts(self) -> tuple[bytes, bytes]:
        return bytes(self.error.split(b"\0")[0]), bytes(self.info.split(b"\0")[0])


def _add(state: Any, data: bytes, kind: Any = PTX_INPUT, name: bytes = b"in.ptx") -> tuple[Any, ...]:
    answer: tuple[Any, ...] = cuda.cuLinkAddData(state, kind, data, len(data), name, 0, [], [])
    return answer


def _result(state: Any) -> int:
    module = ok(cuda.cuModuleLoadData(ok(cuda.cuLinkComplete(state))[0]))
    out, result = ok(cuda.cuMemAlloc(4)), np.zeros(1, np.uint32)
    function = ok(cuda.cuModuleGetFunction(module, b"k"))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ((out,), (None,)), 0))
    ok(cuda.cuMemcpyDtoH(result, out, 4))
    return int(result[0])


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
def test_two_inputs_use_each_other(context: Any, order: tuple[bytes, bytes]) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    for ptx in order:
        ok(_add(state, ptx))
    assert _result(state) == 7 * 3 + 100 + 5000
    ok(cuda.cuLinkDestroy(state))


def test_files_are_linked(context: Any, tmp_path: Path) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    for name, ptx in (("a.ptx", FIRST), ("b.ptx", SECOND)):
        (tmp_path / name).write_bytes(ptx)
        ok(cuda.cuLinkAddFile(state, PTX_INPUT, str(tmp_path / name).encode(), 0, [], []))
    assert _result(state) == 5121
    absent = str(tmp_path / "c.ptx").encode()
    assert cuda.cuLinkAddFile(state, PTX_INPUT, absent, 0, [], [])[0].name == "CUDA_ERROR_FILE_NOT_FOUND"


BAD = [
    # input, error, whether the link can be completed all the same, the log
    (HEADER + b".bad", "INVALID_PTX", True, b"ptxas application ptx input, line 4; error   : "),
    (b"xx", "INVALID_IMAGE", True, b"error   : Binary format for key='0', ident='' is not recognized"),
    (KERNEL, "UNKNOWN", False, b"error   : Multiple definition of 'k' in 'in.ptx', first defined in 'first.ptx'"),
]


@pytest.mark.parametrize(("data", "error", "can_complete", "words"), BAD)
def test_a_bad_input(context: Any, data: bytes, error: str, can_complete: bool, words: bytes) -> None:
    logs = _Logs()
    state = ok(cuda.cuLinkCreate(4, logs.options, logs.values))
    ok(_add(state, KERNEL, name=b"first.ptx"))
    assert _add(state, data)[0].name == f"CUDA_ERROR_{error}"
    assert logs.texts[0].startswith(words)
    assert (cuda.cuLinkComplete(state)[0].name == "CUDA_SUCCESS") is can_complete


def test_a_symbol_that_nobody_defines(context: Any) -> None:
    logs = _Logs()
    state = ok(cuda.cuLinkCreate(4, logs.options, logs.values))
    ok(_add(state, FIRST))
    assert cuda.cuLinkComplete(state)[0] == cuda.CUresult.CUDA_ERROR_UNKNOWN
    assert logs.texts[0] == b"error   : Undefined reference to 'triple' in 'in.ptx'"
    ok(_add(state, SECOND))
    assert _result(state) == 5121
    assert logs.texts[0] == b""
    assert logs.texts[1].startswith(b"info    : 12 bytes gmem\ninfo    : Function properties for 'k':\n")


IMAGES = Path(__file__).parents[1] / "data" / "images"
KINDS = ("CUBIN", "FATBINARY", "OBJECT", "LIBRARY")
OTHER_KINDS = [getattr(cuda.CUjitInputType, f"CU_JIT_INPUT_{kind}") for kind in KINDS]


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_ptx_and_fatbins_with_ptx_as_inputs_of_other_kinds(context: Any, kind: Any, tmp_path: Path) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    ok(_add(state, KERNEL + b"\0", kind))
    (tmp_path / "several").write_bytes((IMAGES / "several.fatbin").read_bytes())
    ok(cuda.cuLinkAddFile(state, kind, bytes(tmp_path / "several"), 0, [], []))
    module = ok(cuda.cuModuleLoadData(ok(cuda.cuLinkComplete(state))[0]))
    assert ok(cuda.cuModuleGetFunctionCount(module)) == 2
    for name in (b"k", b"twice"):
        ok(cuda.cuModuleGetFunction(module, name))


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        ("linked-sm_90.cubin", "NOT_SUPPORTED", b"is neither PTX nor a fatbin with PTX"),
        ("linked.fatbin", "NO_BINARY_FOR_GPU", b"machine code for sm_80"),
        ("lto.fatbin", "NOT_SUPPORTED", b"link-time optimization"),
    ],
)
def test_inputs_without_ptx(context: Any, kind: Any, image: str, error: str, words: bytes) -> None:
    logs = _Logs()
    state = ok(cuda.cuLinkCreate(4, logs.options, logs.values))
    assert _add(state, (IMAGES / image).read_bytes(), kind)[0].name == f"CUDA_ERROR_{error}"
    assert words in logs.texts[0]
    ok(_add(state, KERNEL))
    ok(cuda.cuLinkComplete(state))


def test_nvvm_ir_is_refused(context: Any) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    for answer in (_add(state, KERNEL, cuda.CUjitInputType.CU_JIT_INPUT_NVVM), cuda.cuLinkComplete(state)):
        assert answer[0].name == "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"


def test_wrong_arguments_of_links_are_refused(context: Any) -> None:
    state = ok(cuda.cuLinkCreate(0, [], []))
    wrong = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuLinkAddData(state, 6, KERNEL, len(KERNEL), b"", 0, [], [])[0] == wrong
    assert cuda.cuLinkAddData(state, -1, KERNEL, len(KERNEL), b"", 0, [], [])[0] == wrong
    assert cuda.cuLinkAddData(state, PTX_INPUT, None, 10, b"", 0, [], [])[0] == wrong
    assert cuda.cuLinkAddData(state, PTX_INPUT, KERNEL, 1 << 63, b"", 0, [], [])[0] == wrong
    assert cuda.cuLinkCreate(1, [], [])[0] == wrong
    ok(cuda.cuLinkDestroy(state))
    for answer in (
        _add(state, KERNEL),
        cuda.cuLinkAddFile(state, PTX_INPUT, b"x", 0, [], []),
        cuda.cuLinkComplete(state),
        cuda.cuLinkDestroy(state),
        cuda.cuLinkDestroy(0),
    ):
        assert answer[0] == cuda.CUresult.CUDA_ERROR_INVALID_HANDLE


def test_a_link_needs_a_context(devices: None) -> None:
    assert cuda.cuLinkCreate(0, [], [])[0] == cuda.CUresult.CUDA_ERROR_INVALID_CONTEXT


def test_limits_of_registers(context: Any) -> None:
    state = ok(cuda.cuLinkCreate(1, [Option.CU_JIT_MAX_REGISTERS], [9]))
    registers = [Option.CU_JIT_MAX_REGISTERS]
    for name, value in ((b"k", None), (b"own", 8)):
        ptx = KERNEL.replace(b" k(", b" %s(" % name)
        ok(cuda.cuLinkAddData(state, PTX_INPUT, ptx, len(ptx), name, int(value is not None), registers, [value]))
    address, size = ok(cuda.cuLinkComplete(state))
    text = ctypes.string_at(address, size)
    assert text.count(b".maxnreg 9") == text.count(b".maxnreg 8") == 1


def test_a_limit_of_registers_is_set_where_there_is_none() -> None:
    text = b".entry a() .maxnreg 5 {} .entry b() /* .maxnreg */ {} // .entry c() {\n.entry d();"
    assert limit_registers(text, 7).count(b".maxnreg 7") == 1
    assert limit_registers(text, 0) == text
    assert limit_registers(b"\x7fELF.entry a(){\0}", 7) == b"\x7fELF.entry a(){\0}"


NAMES = st.sampled_from(["a", "b", "c"])
LINKAGES = st.sampled_from(["", ".weak", ".visible"])


@given(st.lists(st.dictionaries(NAMES, LINKAGES), min_size=2, max_size=4))
def test_joined_texts_are_ptx_with_each_symbol_once(inputs: list[dict[str, str]]) -> None:
    texts = []
    for number, item in enumerate(inputs):
        lines = [f"{linkage} .global .u32 {name};" for name, linkage in item.items()]
        texts.append((str(number), HEADER + "\n".join(lines).encode()))
    strong = [name for item in inputs for name, linkage in item.items() if linkage == ".visible"]
    if len(strong) > len(set(strong)):
        with pytest.raises(LinkError, match="Multiple definition"):
            join(texts)
        return
    variables = load_program(join(texts)).globals
    local = sum(not linkage for item in inputs for linkage in item.values())
    shared = {name for item in inputs for name, linkage in item.items() if linkage}
    assert shared <= set(variables)
    assert len(variables) == local + len(shared)
