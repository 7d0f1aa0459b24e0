"""Several PTX texts joined to one."""

from __future__ import annotations

import re

import pytest

from pympsd_client._objects.code.ptx_text import LinkError, is_ptx, join
from pympsd_server.ptx.loading.program import load_program

HEADER = b".version 7.0\n.target sm_60\n.address_size 64\n"
CALLER = (
    HEADER
    + b"""
// a comment with ; and }
.extern .func (.param .b32 result) twice(.param .b32 x);
.global .align 4 .b32 own[2] = {1, 2};
.visible .entry kernel(.param .u64 out)
{
    .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.global.u32 %r1, [own];
    {
        .param .b32 given; .param .b32 back;
        st.param.b32 [given], %r1;
        call.uni (back), twice, (given);
        ld.param.b32 %r2, [back];
    }
    ld.param.u64 %d1, [out];
    st.global.u32 [%d1], %r2;
    ret;
}
"""
)
CALLED = (
    HEADER.replace(b"7.0", b"7.8").replace(b"sm_60", b"sm_90a")
    + b"""
.global .align 4 .b32 own = 5;
.visible .func (.param .b32 result) twice(.param .b32 x)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [x];
    ld.global.u32 %r2, [own];
    mad.lo.s32 %r3, %r1, 2, %r2;
    st.param.b32 [result], %r3;
    ret;
}
"""
)


def link(*texts: bytes) -> bytes:
    return join([(str(number), text) for number, text in enumerate(texts)])


@pytest.mark.parametrize("texts", [(CALLER, CALLED), (CALLED, CALLER)])
def test_what_one_text_defines_the_other_calls(texts: tuple[bytes, bytes]) -> None:
    joined = link(*texts)
    assert list(load_program(joined).kernels) == ["kernel"]
    assert joined.count(b".version") == 1
    assert joined.startswith(b".version 7.8\n.target sm_90a\n")
    assert b".extern" not in joined


def test_symbols_of_one_text_alone_stay_apart() -> None:
    text = link(CALLER, CALLED).decode()
    first, second = re.findall(r"\.global \.align 4 \.b32 ([\w$]+)", text)
    assert first != second
    assert text.count(f"[{first}]") == text.count(f"[{second}]") == 1


def test_one_text_is_returned_as_it_is() -> None:
    assert link(CALLER) == CALLER


def test_what_no_text_defines_stays_declared() -> None:
    printing = HEADER + b".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    assert link(printing, printing).count(b"vprintf") == 1


def test_two_definitions_are_refused_and_weak_ones_are_not() -> None:
    with pytest.raises(LinkError, match="Multiple definition of 'twice'"):
        link(CALLED, CALLED)
    weak = CALLED.replace(b".visible .func", b".weak .func")
    assert link(weak, weak).count(b".weak .func") == 1


@pytest.mark.parametrize(("image", "expected"), [(CALLER, True), (CALLER + b"\0", True), (b"\x7fELF", False)])
def test_ptx_is_known(image: bytes, expected: bool) -> None:
    assert is_ptx(image) is expected
