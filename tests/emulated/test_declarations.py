"""Constant expressions, vectors of registers, declarations and scopes, as an H100's assembler takes them."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import InvalidPtx
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.harness import Device
from tests.emulated.test_addresses import RESULT, kernel, words

ALL = 2**64 - 1
EXPRESSIONS = {
    "(3+4)*2": 14, "1<<4": 16, "~0": ALL, "!0": 1, "!5": 0, "3>2?5:6": 5, "7&3|8^1": 11, "7&&0||1": 1,
    "-7/2": ALL - 2, "-(7 % 4)": ALL - 2, "-7 % 4": 1, "-8>>1": ALL - 3, "-1>0": 0, "-1>0U": 1,
    "0xFFFFFFFFFFFFFFFF>0": 1,
    "0xFFFFFFFFFFFFFFFF/2": ALL >> 1, "(.s64)0xFFFFFFFFFFFFFFFF/2": 0, "(.u64)-2/2": ALL >> 1, "1?-1:0U": ALL,
    "-1>>60": ALL, "(.u64)-1>>60": 15, "5-2-1": 2, "2+3*4": 14, "1<2<3": 1, "1==1!=0": 1, "8/4/2": 1,
    "WARP_SZ*2-1": 63, "WARP_SZ": 32, "0x7fffffffffffffff+1>0": 0, "9223372036854775808>0": 1, "-1*1U>0": 1,
    "1<<63>>63": ALL,
    "1U<<63>>63": 1, "0 ? 1 : 0 ? 2 : 3": 3, "~0U>>1": ALL >> 1, "-0x8000000000000000 < 0": 0, "010": 8,
    "0b101+1": 6, "+5": 5, "- -5": 5, "-~5": 6, "!!5": 1, "2>=2": 1, "2<=1": 0, "5 & 6 == 6": 1,
}  # fmt: skip
"""What the driver's assembler made of constant expressions (recorded with an H100)."""


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_integer_expressions_have_the_assemblers_values(text: str) -> None:
    low, high = words(f"mov.u64 %rd1, {text}; st.global.u64 [%out], %rd1;", count=2)
    assert low | high << 32 == EXPRESSIONS[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [(".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("1.5e-3", 1.5e-3), ("1E+2", 100.0), ("-.5", -0.5), ("1.5+2.0", 3.5),
     ("1.0/4.0", 0.25), ("2.0*3.0-1.0", 5.0), ("0d3FF8000000000000", 1.5)],
)  # fmt: skip
def test_float_expressions_have_the_assemblers_values(text: str, value: float) -> None:
    pair = words(f"mov.f64 %f, {text}; st.global.f64 [%out], %f;", count=2)
    assert np.array(pair, "u4").view("f8")[0] == value


@pytest.mark.parametrize("text", ["1.5 % 2", "~1.5", "1 << 2.0", "(.s64)1.5", "1 +", "(1"])
def test_malformed_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidPtx, match="line "):
        load_program(kernel(f"mov.u64 %rd1, {text};").encode())


VECTORS = ".reg .v2 .u32 %v, %w<2>; .reg .v4 .b32 %x, %y; .reg .v4 .b16 %z; mov.u32 %r1, 11; mov.u32 %r2, 12;"


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("mov.u32 %v.x, %r1; mov.u32 %v.y, %r2; add.u32 %r1, %v.x, %v.y;", 23),
        ("mov.v2.u32 %v, {%r1, %r2}; sub.u32 %r1, %v.g, %v.r;", 1),
        ("mov.v2.u32 %v, {%r1, %r2}; mov.v2.u32 {%r2, %r1}, %v;", 12),
        ("mov.v2.u32 %v, {%r1, %r2}; mov.v2.u32 %w1, %v; mov.v2.u32 %v, {%w1.y, %w1.x}; mov.u32 %r1, %v.x;", 12),
        ("mov.v2.u32 %v, {%r1, %r2}; mov.b64 %rd1, %v; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1;", 12),
        ("mov.b64 %rd1, 0x4000300020001; mov.b64 %z, %rd1; cvt.u32.u16 %r1, %z.w;", 4),
        ("mov.v2.u32 %v, {%r1, %r2}; mov.b64 %rd1, {%v.y, %v.x}; mov.b64 %v, %rd1; mov.u32 %r1, %v.x;", 12),
        (("st.global.v4.u32 [%out+16], {1, 2, 3, 4}; ld.global.v4.b32 %x, [%out+16]; mov.v4.b32 %y, %x;"
         "st.global.v4.b32 [%out+32], %y; ld.global.u32 %r1, [%out+44];"), 4),
        ("mov.v4.u32 %x, %ntid; add.u32 %r1, %x.x, %x.w;", 1),
        ("mov.v4.u32 {%r1, %r2, %r3, _}, %ctaid; add.u32 %r1, %r1, %nctaid.w;", 0),
        ("setp.eq.u32 %q1, %r1, %r2; mov.u32 %v.x, 5; @%q1 mov.u32 %v.x, 6; mov.u32 %r1, %v.x;", 5),
        ("mov.v2.u32 %v, {%r1, %r2}; call (%v), swapped, (%v); mov.u32 %r1, %v.x;", 12),
        ("mov.v2.u32 %v, {%r1, %r2}; call (%v), swapped, (%v); call (%v), counted, (%v); mov.u32 %r1, %v.y;", 23),
    ],
)  # fmt: skip
def test_vectors_of_registers(body: str, result: int) -> None:
    top = """.func (.reg .v2 .u32 r) swapped (.reg .v2 .u32 g) { mov.u32 r.x, g.y; mov.u32 r.y, g.x; ret; }
      .func (.reg .v2 .u32 r) counted (.reg .v2 .u32 g) { .reg .pred %p; .reg .v2 .u32 %n; setp.eq.u32 %p, g.x, 0;
        mov.v2.u32 r, g; @%p ret; sub.u32 %n.x, g.x, 1; add.u32 %n.y, g.y, 1; call (r), counted, (%n); ret; }"""
    assert words(VECTORS + body + RESULT, top) == [result]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (".reg .v4 .b64 %v;", "at most 16 bytes, and no predicates"),
        (".reg .v2 .pred %v;", "at most 16 bytes, and no predicates"),
        (".reg .v2 .u32 %v; mov.u32 %r1, %v.z;", "unknown or unsupported special register %v.z"),
        (".reg .v2 .u32 %v; add.u32 %v, %v, %v;", "unsupported instruction add.u32: operand"),
        (".reg .v2 .u32 %v; mov.u32 %v, %v; mov.u32 %r1, %v.x;", "unsupported instruction mov.u32"),
        (".reg .v2 .u32 %v; mov.v4.u32 {%r1, %r2, %r3, %r4}, %v;", "both operands are vectors of 4"),
        (".reg .v2 .u32 %v; ld.global.v4.u32 %v, [%out];", "vector of the wrong length"),
    ],
)
def test_vectors_that_are_refused(body: str, why: str) -> None:
    with pytest.raises(InvalidPtx, match=why):
        load_program(kernel(body + RESULT).encode())


WIDE = ".reg .b32 %a<8>; .reg .b64 %b<4>;"
EIGHT, FOUR = "{%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}", "{%b0, %b1, %b2, %b3}"


def run_wide(body: str) -> list[int]:
    device, out = Device(1 << 20), np.arange(64, dtype="u4")
    address = device.put(out)
    device.launch(device.load(kernel(WIDE + body, target="100")), "k", 1, 1, address)
    return device.get(address, out)[32:40].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("space", [".global", ""])
def test_loads_and_stores_of_32_bytes(space: str) -> None:
    assert run_wide(f"ld{space}.v8.b32 {EIGHT}, [%out+32]; st{space}.v8.b32 [%out+128], {EIGHT};") == [*range(8, 16)]
    assert run_wide(f"ld{space}.v4.b64 {FOUR}, [%out+32]; st{space}.v4.u64 [%out+128], {FOUR};") == [*range(8, 16)]
    some = "{%a0, _, %a2, _, _, _, _, %a7}"
    actual = run_wide(
        f"ld{space}.nc.v8.b32 {some}, [%out+32]; st{space}.v8.b32 [%out+128], {some};".replace("ld.nc", "ld")
    )
    assert actual == [8, 33, 10, 35, 36, 37, 38, 15]


@pytest.mark.parametrize(
    ("target", "body", "why"),
    [
        ("90", f"ld.global.v8.b32 {EIGHT}, [%out];", "need .target sm_100 or higher and .version 8.8 or higher"),
        ("90", f"st.global.v4.b64 [%out], {FOUR};", "need .target sm_100 or higher and .version 8.8 or higher"),
        ("100", f"ld.shared.v8.b32 {EIGHT}, [%out];", "in global memory"),
        ("100", f"ld.local.v4.b64 {FOUR}, [%out];", "in global memory"),
        ("100", f"ldu.global.v8.b32 {EIGHT}, [%out];", "in global memory"),
        ("100", f".reg .b16 %c<8>; ld.global.v8.b16 {EIGHT.replace('a', 'c')}, [%out];", "in global memory"),
    ],
)
def test_loads_and_stores_of_32_bytes_that_are_refused(target: str, body: str, why: str) -> None:
    with pytest.raises(InvalidPtx, match=why):
        load_program(kernel(WIDE + body, target=target).encode())


TWICE = """{ .reg .b32 %r; ld.param.u32 %r, [of]; add.u32 %r, %r, %r; st.param.u32 [result], %r; ret; }
 """
HEAD = ".visible .func (.param .u32 result) twice (.param .u32 of)\n"


@pytest.mark.parametrize(
    "top",
    [
        HEAD + HEAD + TWICE,
        f"{HEAD};{HEAD}{TWICE}",
        f".extern .func gone (.param .u32 of) .noreturn\n.global .u32 g;\n{HEAD}{TWICE}",
        f'{HEAD}.file 1 "x.c"\n# 1 "x.c"\n{HEAD}{TWICE}',
        f"{HEAD}.abi_preserve 4 .abi_preserve_control 2 {TWICE}",
        HEAD.replace("twice", "real") + TWICE + HEAD + ";\n.alias twice, real;",
    ],
)
def test_declarations_of_functions(top: str) -> None:
    body = "{ .param .u32 a; .param .u32 b; st.param.u32 [a], 3; call (b), twice, (a); ld.param.u32 %r1, [b]; }"
    assert words(body + RESULT, top) == [6]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("call (%r1), twice, (3);", 6),
        ("call (%r1), twice, (3+4);", 14),
        ("mov.u32 %r1, 5; call (%r1), twice, (%r1); call (_), twice, (%r1);", 10),
        ("{ .param .u32 a; .param .u32 b; st.param.u32 [a], 3; call (b), sum, (a, 4); ld.param.u32 %r1, [b]; }", 7),
        ("call (%r1), sum, ((1+1), 1<<3);", 10),
        (("mov.u64 %rd1, other; P: .callprototype (.param .u32 _) _ (.param .u32 _) .abi_preserve 3;"
         "call (%r1), %rd1, (9), P;"), 18),
    ],
)  # fmt: skip
def test_arguments_in_registers_and_constants(body: str, result: int) -> None:
    top = f"""{HEAD}{TWICE} {HEAD.replace("twice", "other")}; .alias other, twice;
      .func (.reg .u32 r) sum (.reg .u32 a, .param .u32 b) {{
        .reg .u32 %b; ld.param.u32 %b, [b]; add.u32 r, a, %b; ret; }}"""
    assert words(body + RESULT, top) == [result]


def test_an_array_is_passed_by_a_parameter_variable() -> None:
    top = ".func f (.param .b8 a[8]) { ret; }"
    with pytest.raises(InvalidPtx, match="the argument for the array a must be a"):
        load_program(kernel("call f, (3);", top).encode())


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (("{ L: add.u32 %r1, %r1, 1; setp.lt.u32 %q1, %r1, 5; @%q1 bra L; }"
         "{ L: add.u32 %r1, %r1, 2; setp.lt.u32 %q1, %r1, 15; @%q1 bra L; }"), 15),
        (("L: add.u32 %r2, %r2, 100; { L: add.u32 %r1, %r1, 2; setp.lt.u32 %q1, %r1, 15; @%q1 bra L; }"
         "setp.lt.u32 %q1, %r2, 300; @%q1 bra L; add.u32 %r1, %r1, %r2;"), 320),
        ("mov.u32 %r1, 1; { bra M; } mov.u32 %r1, 2; M:", 1),
        ("{ bra.uni D; mov.u32 %r1, 7; D: } { bra.uni D; mov.u32 %r1, 8; D: add.u32 %r1, %r1, 1; }", 1),
        (("{ T: .branchtargets A, B; brx.idx %r1, T; A: mov.u32 %r1, 10; B: }"
         "T: .branchtargets A, B; mov.u32 %r3, 1; brx.idx %r3, T;"
         "A: mov.u32 %r1, 20; B: add.u32 %r1, %r1, 1;"), 11),
    ],
)  # fmt: skip
def test_labels_belong_to_their_scopes(body: str, result: int) -> None:
    """Inline assembly with a label is repeated with each copy of it, as in CUTLASS's waits."""
    assert words("mov.u32 %r1, 0; mov.u32 %r2, 0;" + body + RESULT) == [result]
