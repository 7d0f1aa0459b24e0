"""Addresses: of 32 bits that wrap, elements of arrays, static variables of functions, initial values."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.isa.faults import IllegalAddress, InvalidPtx, MisalignedAddress
from pympsd_server.ptx.loading.program import load_program
from tests.emulated.harness import Device

HEADER = ".version 9.0\n.target sm_{target}\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<20>; .reg .b64 %out, %rd<20>; .reg .f64 %f; .reg .pred %q<4>; .reg .b16 %h<4>;"


def kernel(body: str, top: str = "", *, directives: str = "", target: str = "90") -> str:
    head = f"{HEADER.format(target=target)}{top}\n.visible .entry k(.param .u64 out) {directives}"
    return f"{head} {{\n{REGISTERS}\nld.param.u64 %out, [out];\n{body}\nret;\n}}"


def words(
    body: str, top: str = "", *, count: int = 1, block: int = 1, grid: int = 1, directives: str = ""
) -> list[int]:
    """The first words that a kernel writes to [%out]."""
    device = Device(1 << 20)
    out = np.zeros(64, "u4")
    address = device.put(out)
    device.launch(device.load(kernel(body, top, directives=directives)), "k", grid, block, address)
    return device.get(address, out)[:count].tolist()  # type: ignore[no-any-return]


TILE = """.shared .align 128 .b8 tile[256]; mov.u32 %r2, tile; mov.u64 %rd2, tile; st.shared.u32 [tile], 77;
 st.shared.u32 [tile+4], 78; add.s32 %r3, %r2, -16; add.s64 %rd3, %rd2, -16;"""
LOCAL = """.local .align 16 .b8 own[64]; mov.u32 %r2, own; mov.u64 %rd2, own; st.local.u32 [own], 77;
 st.local.u32 [own+4], 78;"""
BARRIER = """.shared .align 8 .b64 barriers[4]; mov.u32 %r8, barriers; add.s32 %r8, %r8, -16;
 mbarrier.init.shared.b64 [%r8+24], 1;"""
RESULT = "st.global.u32 [%out], %r1;"


@pytest.mark.parametrize(
    "body",
    [
        "ld.shared.u32 %r1, [%r3+16];",
        "ld.shared.u32 %r1, [%rd3+16];",
        "add.s64 %rd2, %rd2, 0x100000000; ld.shared.u32 %r1, [%rd2];",
        "add.s64 %rd2, %rd2, 0xABCDFFFFFFF8; ld.shared.u32 %r1, [%rd2+8];",
        "add.s32 %r2, %r2, 8; ld.shared.u32 %r1, [%r2+-8];",
        "add.s32 %r2, %r2, -1048576; ld.shared.u32 %r1, [%r2+1048576];",
        "add.s32 %r2, %r2, -2097152; ld.shared.u32 %r1, [%r2+2097152];",
        "add.s32 %r2, %r2, 0x80000000; ld.shared.u32 %r1, [%r2+0x80000000];",
        "add.s32 %r2, %r2, 0x80000000; ld.shared.u32 %r1, [%r2+-0x80000000];",
        "ld.volatile.shared.u32 %r1, [%r3+16];",
        "ld.shared::cta.u32 %r1, [%r3+16];",
        "ld.shared::cluster.u32 %r1, [%r3+16];",
        "ld.shared.v2.u32 {%r1, %r4}, [%r3+16];",
        "setp.eq.u32 %q1, %r1, %r1; @%q1 ld.shared.u32 %r1, [%r3+16];",
        "st.shared.u32 [%r3+20], 5; ld.shared.u32 %r4, [tile+4]; add.u32 %r1, %r4, 72;",
        "atom.shared.add.u32 %r1, [%r3+16], 5;",
        "atom.shared.exch.b32 %r1, [%rd3+16], 5;",
        "atom.shared.cas.b32 %r1, [%r3+16], 77, 5;",
        "red.shared.add.u32 [%r3+20], 5; ld.shared.u32 %r1, [tile+4]; sub.u32 %r1, %r1, 6;",
        "mapa.shared::cluster.u32 %r4, %r3, 0; ld.shared::cluster.u32 %r1, [%r4+16];",
        "mapa.shared::cluster.u32 %r4, %r2, 0; add.s32 %r4, %r4, -8; ld.shared::cluster.u32 %r1, [%r4+8];",
        "mapa.shared::cluster.u64 %rd4, %rd3, 0; ld.shared::cluster.u32 %r1, [%rd4+16];",
        "cvta.shared.u64 %rd4, %rd3; ld.u32 %r1, [%rd4+16];",
        "cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd4, %rd4; ld.u32 %r1, [%rd4+16];",
        "cvta.shared.u64 %rd4, %rd2; add.s64 %rd4, %rd4, -8; ld.u32 %r1, [%rd4+8];",
        "add.s64 %rd4, %rd2, 0x100000000; cvta.shared.u64 %rd4, %rd4; ld.u32 %r1, [%rd4];",
        """st.global.u32 [%out+4], 77; add.s64 %rd4, %out, 20; cp.async.ca.shared.global [%r3+48], [%rd4+-16], 4;
           cp.async.wait_all; ld.shared.u32 %r1, [tile+32];""",
    ],
)
def test_a_shared_address_below_what_it_and_its_immediate_name(body: str) -> None:
    """Each loads tile[0], or as much, as an H100 did."""
    assert words(TILE + body + RESULT) == [77]


@pytest.mark.parametrize(
    "body",
    [
        "add.s32 %r2, %r2, -8; ld.local.u32 %r1, [%r2+8];",
        "add.s64 %rd2, %rd2, -8; ld.local.u32 %r1, [%rd2+8];",
        "add.s64 %rd2, %rd2, 0x100000000; ld.local.u32 %r1, [%rd2];",
        "add.s32 %r2, %r2, -4096; ld.local.v2.u32 {%r1, %r3}, [%r2+4096];",
        "add.s32 %r2, %r2, -8; st.local.u32 [%r2+16], 77; ld.local.u32 %r1, [own+8];",
    ],
)
def test_a_local_address_below_what_it_and_its_immediate_name(body: str) -> None:
    assert words(LOCAL + body + RESULT) == [77]


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r2, c; add.s32 %r2, %r2, -8; ld.const.u32 %r1, [%r2+16];",
        "mov.u32 %r2, c+8; ld.const.u32 %r1, [%r2];",
        "mov.u64 %rd2, c; add.s64 %rd2, %rd2, -8; ld.const.u32 %r1, [%rd2+16];",
        "mov.u64 %rd2, c; cvt.u32.u64 %r2, %rd2; ld.const.u32 %r1, [%r2+8];",
        "ld.global.u32 %r2, [p]; ld.const.u32 %r1, [%r2];",
        "ld.global.u64 %rd2, [q]; ld.u32 %r1, [%rd2];",
    ],
)
def test_addresses_of_constants_have_32_bits_or_64(body: str) -> None:
    top = """.const .u32 first[3]; .const .u32 c[4] = {11, 12, 77, 14}; .global .u32 p = c+8;
      .global .u64 q = generic(c)+8;"""
    assert words(body + RESULT, top) == [77]


def test_parameters_by_registers() -> None:
    body = """mov.u32 %r2, out; add.s32 %r2, %r2, -8; ld.param.u64 %rd1, [%r2+8]; sub.s64 %rd1, %rd1, %out;
      cvt.u32.u64 %r1, %rd1; mov.u64 %rd2, out; add.s64 %rd2, %rd2, -8; ld.param.u64 %rd1, [%rd2+8];
      sub.s64 %rd1, %rd1, %out; cvt.u32.u64 %r2, %rd1; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, 1;"""
    assert words(body + RESULT) == [1]


def test_a_barrier_may_be_addressed_from_below() -> None:
    body = f"""{BARRIER} mbarrier.arrive.shared.b64 %rd1, [%r8+24]; mbarrier.test_wait.shared.b64 %q1, [%r8+24], %rd1;
      selp.u32 %r1, 1, 0, %q1;"""
    assert words(body + RESULT) == [1]


def test_bulk_copies_below() -> None:
    body = f"""{TILE} st.global.v4.u32 [%out+16], {{1, 2, 3, 4}}; {BARRIER} add.s64 %rd4, %out, 32;
      mbarrier.arrive.expect_tx.shared.b64 %rd1, [barriers+8], 16;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+32], [%rd4+-16], 16, [%r8+24];
      W: mbarrier.try_wait.shared.b64 %q1, [barriers+8], %rd1; @!%q1 bra W; ld.shared.u32 %r1, [tile+20];"""
    assert words(body + RESULT) == [2]


def test_a_matrix_may_be_addressed_from_below() -> None:
    body = """.shared .align 128 .b8 tile[256]; mov.u32 %r9, %laneid; mad.lo.u32 %r2, %r9, 8, 0; mov.u32 %r3, tile;
      add.u32 %r2, %r2, %r3; st.shared.v2.u32 [%r2], {%r9, %r9}; mad.lo.u32 %r3, %r9, 16, %r3; add.s32 %r3, %r3, -512;
      bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r3+512];
      stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3+512], {%r1}; bar.warp.sync -1; ld.shared.u32 %r1, [tile+60];"""
    assert words(body + RESULT, block=32) == [7]


def test_another_blocks_memory_may_be_addressed_from_below() -> None:
    """Each block adds to the other's word by an address below all of its memory."""
    body = """.shared .align 8 .b32 word[2]; mov.u32 %r9, %cluster_ctarank; xor.b32 %r8, %r9, 1; add.u32 %r7, %r9, 5;
      st.shared.u32 [word], %r7; barrier.cluster.arrive; barrier.cluster.wait;
      mov.u32 %r2, word; add.s32 %r2, %r2, -64; mapa.shared::cluster.u32 %r3, %r2, %r8;
      getctarank.shared::cluster.u32 %r4, %r3; ld.shared::cluster.u32 %r1, [%r3+64];
      atom.shared::cluster.add.u32 %r5, [%r3+64], 100; barrier.cluster.arrive; barrier.cluster.wait;
      ld.shared.u32 %r6, [word]; mul.wide.u32 %rd1, %r9, 16; add.s64 %rd1, %out, %rd1;
      st.global.v4.u32 [%rd1], {%r1, %r4, %r5, %r6};"""
    actual = words(body, count=8, grid=2, directives=".reqnctapercluster 2, 1, 1")
    assert actual == [6, 1, 6, 105, 5, 0, 5, 106]


def test_lanes_that_do_not_load_may_have_any_address() -> None:
    """A neighbour outside of the tile is not loaded, as in a stencil; the address of its lane wraps."""
    body = """.shared .align 16 .b8 tile[128]; mov.u32 %r9, %tid.x; shl.b32 %r8, %r9, 2; mov.u32 %r2, tile;
      add.u32 %r3, %r2, %r8; st.shared.u32 [%r3], %r9; bar.sync 0; add.s32 %r4, %r3, -128; mov.u32 %r1, 1000;
      setp.ge.u32 %q1, %r9, 3; @%q1 ld.shared.u32 %r1, [%r4+116]; setp.lt.u32 %q1, %r9, 3; @%q1 bra SKIP;
      ld.shared.u32 %r5, [%r4+116]; add.u32 %r1, %r1, %r5; SKIP: cvt.u64.u32 %rd1, %r8; add.s64 %rd1, %out, %rd1;
      st.global.u32 [%rd1], %r1;"""
    actual = words(body, count=32, block=32)
    assert actual == [1000, 1000, 1000, *(2 * (lane - 3) for lane in range(3, 32))]


@pytest.mark.parametrize(
    ("immediate", "fault"),
    [("8", IllegalAddress), ("272", IllegalAddress), ("0x1000000", IllegalAddress), ("18", MisalignedAddress)],
)
def test_an_address_outside_is_a_fault(immediate: str, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="shared address 0x"):
        words(TILE + f"ld.shared.u32 %r1, [%r3+{immediate}];" + RESULT)


def test_immediates_of_global_addresses_have_64_bits() -> None:
    body = """mov.u32 %r1, 9; mov.u64 %rd2, 0x100000000; sub.s64 %rd1, %out, %rd2;
      st.global.u32 [%rd1+0x100000000], %r1;
      sub.s64 %rd1, %out, 0x7ffffff0; st.global.u32 [%rd1+0x7ffffff4], %r1;
      add.s64 %rd1, %out, 0x7fffffff; st.u32 [%rd1+-0x7ffffff7], %r1;"""
    assert words(body, count=3) == [9, 9, 9]
    with pytest.raises(IllegalAddress):
        words("add.s64 %rd1, %out, 4; st.global.u32 [%rd1+0xfffffffc], 9;")
    with pytest.raises(IllegalAddress):
        words("mov.u32 %r2, 16; ld.global.u32 %r1, [%r2]; ld.u32 %r2, [%r2]; add.u32 %r1, %r1, %r2;" + RESULT)


ARRAYS = """.global .u32 a[4] = {1, 2, 3, 4}; .global .u16 h[4] = {5, 6, 7, 8}; .global .u32 b[3][4] = {{1, 2}, {3}};
 .global .v2 .u32 v[3] = {{1, 2}, {3, 4}, {5, 6}}; .shared .u32 s[4];"""


@pytest.mark.parametrize(
    ("element", "name", "distance"),
    [
        ("a[2]", "a", 8),
        ("h[3]", "h", 6),
        ("b[2]", "b", 8),
        ("v[2]", "v", 8),
        ("a+4+4", "a[0]", 8),
        ("a[1+1]", "a", 8),
    ],
)
def test_the_address_of_an_element(element: str, name: str, distance: int) -> None:
    """Its index counts elements of the declared type, which are one part of a vector, in whatever dimension."""
    body = f"mov.u64 %rd1, {element}; mov.u64 %rd2, {name}; sub.s64 %rd1, %rd1, %rd2; cvt.u32.u64 %r1, %rd1;"
    assert words(body + RESULT, ARRAYS) == [distance]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("ld.global.u32 %r1, a[2];", 3),
        ("ld.global.u16 %h1, h[3]; cvt.u32.u16 %r1, %h1;", 8),
        ("mov.u32 %r2, 2; ld.global.u32 %r1, a[%r2];", 3),
        ("mov.u32 %r2, 1; ld.global.u32 %r1, a[%r2+1];", 3),
        ("mov.u64 %rd2, 4; ld.global.u32 %r1, a[%rd2-1];", 4),
        ("st.global.u32 a[2], 7; ld.global.u32 %r1, [a+4*2];", 7),
        ("st.shared.u32 s[1], 9; mov.u32 %r2, s[1]; ld.shared.u32 %r1, [%r2];", 9),
        (".local .u32 o[4]; st.local.u32 o[3], 9; ld.local.u32 %r1, [o+12];", 9),
        ("mov.u64 %rd1, a[3]; ld.global.u32 %r1, [%rd1];", 4),
        ("cvta.global.u64 %rd1, a[1]; ld.u32 %r1, [%rd1];", 2),
        ("ld.global.u32 %r1, [b+8];", 3),
        ("ld.global.u32 %r1, v[3];", 4),
        ("mov.u32 %r1, s-8; mov.u32 %r2, s; sub.u32 %r1, %r2, %r1;", 8),
    ],
)
def test_elements_of_arrays(body: str, value: int) -> None:
    assert words(body + RESULT, ARRAYS) == [value]


def test_elements_in_functions_that_are_called_by_their_addresses() -> None:
    top = """.func (.reg .u32 r) f (.param .u32 p) { .local .u32 o[4]; .reg .u32 %i, %v; .reg .u64 %a;
      ld.param.u32 %i, [p]; st.local.u32 [o+8], %i; mov.u64 %a, o[2]; ld.local.u32 r, [%a]; mov.u64 %a, o+8;
      ld.local.u32 %v, [%a];
      add.u32 r, r, %v; st.local.u32 o[1], 3; ld.local.u32 %v, o[1]; add.u32 r, r, %v; ret; }
      .global .u64 table[2] = {f, 0};"""
    body = """ld.global.u64 %rd1, [table]; P: .callprototype (.reg .u32 _) _ (.param .u32 _);
      { .param .u32 g; st.param.u32 [g], 20; call (%r1), %rd1, (g), P; }"""
    assert words(body + RESULT, top) == [43]


def test_static_variables_belong_to_their_scopes() -> None:
    body = """.global .u32 t = 7; { .global .u32 t = 8; ld.global.u32 %r1, [t];
      .shared .u32 k[2]; st.shared.u32 [k], 11; { .shared .u32 k; st.shared.u32 [k], 12; }
      ld.shared.u32 %r5, [k]; } ld.global.u32 %r2, [t];
      call (%r3), f, (); call (%r3), f, (); ld.global.u32 %r4, [t]; st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};
      st.global.u32 [%out+16], %r5; .global .u64 p = t; ld.global.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1];
      .const .u32 c[2] = {21, 22}; ld.const.u32 %r2, [c+4]; st.global.v2.u32 [%out+24], {%r1, %r2};"""
    top = """.global .u32 t = 5;
      .func (.reg .u32 r) f () { .global .u32 t = 6; atom.global.add.u32 r, [t], 1; ret; }"""
    assert words(body, top, count=8) == [8, 7, 7, 7, 11, 0, 7, 22]


def test_the_host_does_not_find_static_variables_of_functions() -> None:
    program = load_program(kernel(".global .u32 t = 7; ld.global.u32 %r1, [t];" + RESULT, ".global .u32 g;").encode())
    assert list(program.globals) == ["g"]


INITIAL = """.const .u32 z[3]; .const .u32 c[4]; .global .u32 g[2];
 .global .u64 i0 = g+4; .global .u64 i1 = generic(g)+4*1; .global .u32 i2 = g+4; .global .u32 i3 = c+4;
 .global .align 8 .u8 i4[8] = {0xff(g+4), 0xff00(g+4), 0xff0000(g+4), 0xff000000(g+4), 0xff00000000(g+4),
   0xff0000000000(g+4), 0xff000000000000(g+4), 0xff00000000000000(g+4)};
 .global .align 8 .u8 i5[8] = {0xff(generic(g)+4), 0xff00(generic(g)+4), 0xff0000(generic(g)+4),
   0xff000000(generic(g)+4), 0xff00000000(generic(g)+4), 0xff0000000000(generic(g)+4), 0xff000000000000(generic(g)+4),
   0xff00000000000000(generic(g)+4)};"""


@pytest.mark.parametrize(
    ("variable", "width", "name"),
    [("i0", 64, "g"), ("i1", 64, "g"), ("i2", 32, "g"), ("i3", 32, "c"), ("i4", 64, "g"), ("i5", 64, "g")],
)
def test_addresses_as_initial_values(variable: str, width: int, name: str) -> None:
    register = "%rd1" if width == 64 else "%r1"
    body = f"ld.global.u{width} {register}, [{variable}]; mov.u64 %rd2, {name}; cvt.u32.u64 %r2, %rd2;"
    body += "cvt.u32.u64 %r1, %rd1;" if width == 64 else ""
    assert words(f"{body} sub.u32 %r1, %r1, %r2; {RESULT}", INITIAL) == [4]


@pytest.mark.parametrize(
    ("text", "words_of_it"),
    [
        (".u32 x[3] = {2*3, (1<<4)-1, -1}", [6, 15, 2**32 - 1]),
        (".u32 x[3] = {0xFF(1000 + 546), 0xFF00(131187), 7}", [10, 0, 7]),
        (".u32 x[2][3] = {{1, 2}, {3}}", [1, 2, 3]),
        (".f32 x[3] = {.5, 1.5+2.0, 1e3}", [0x3F000000, 0x40600000, 0x447A0000]),
        (".f32 x[3] = {-1.5, 0f7F800001, -0f7FC00000}", [0xBFC00000, 0x7F800001, 0xFFC00000]),
        (".b32 x[3] = {WARP_SZ, 3 > 2 ? 5 : 6, !0}", [32, 5, 1]),
    ],
)
def test_numbers_as_initial_values(text: str, words_of_it: list[int]) -> None:
    body = """ld.global.u32 %r1, [x]; ld.global.u32 %r2, [x+4]; ld.global.u32 %r3, [x+8];
      st.global.v2.u32 [%out], {%r1, %r2}; st.global.u32 [%out+8], %r3;"""
    assert words(body, f".global {text};", count=3) == words_of_it


@pytest.mark.parametrize(
    ("top", "why"),
    [
        (".global .u32 g; .global .u8 x = 0xfe(g);", "the mask 0xfe of an initialiser is not one byte"),
        (".global .u32 g; .global .u16 x = g;", "unsupported initialiser g of x"),
        (".global .u32 g; .global .f64 x = g;", "unsupported initialiser g of x"),
        (".shared .u32 g; .global .u64 x = g;", "unsupported initialiser g of x"),
        (".const .attribute(.managed) .u32 x;", r"unsupported attribute .managed of a .const variable"),
        (".global .attribute(.unknown) .u32 x;", r"unsupported attribute .unknown of a .global variable"),
        (".global .u32 x = 1/0;", "a constant expression divides by 0"),
        (".global .u32 x = 18446744073709551616;", "more than 64 bits"),
        (".func f () { ret; }\n.alias g, k;", r".alias g: the second name is not that of a function"),
    ],
)
def test_wrong_variables_are_refused(top: str, why: str) -> None:
    with pytest.raises(InvalidPtx, match=why):
        load_program(kernel("", top).encode())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("ld.param.u32 %r1, [out+8];", r"outside of the 8 bytes of parameters"),
        ("ld.global.u32 %r1, x[%r2];", "unknown or unsupported name x|x is not an array"),
        ("mov.u64 %rd1, %rd2[1];", "%rd2 is not an array"),
        (".shared .u32 a[4]; ld.shared.u32 %r1, a[%q1];", "the index %q1 is not a register with an integer"),
        ("{ L: } bra L;", "unknown or unsupported name L"),
        ("{ .global .u32 t; } ld.global.u32 %r1, [t];", "unknown or unsupported name t"),
    ],
)
def test_wrong_operands_are_refused(body: str, why: str) -> None:
    with pytest.raises(InvalidPtx, match=why):
        load_program(kernel(body).encode())


def test_reserved_shared_memory_is_apart_from_the_kernels_own() -> None:
    """Cooperative groups synchronize tiles of several warps in 288 bytes at %reserved_smem_offset_1."""
    body = """.shared .align 8 .u32 own[2]; .shared .u32 more; mov.u32 %r1, %reserved_smem_offset_1; mov.u32 %r2, 7;
      st.shared.u32 [own], 1; st.shared.u32 [more], 2;
      st.shared.u32 [%r1], %r2; st.shared.u32 [%r1+284], 8; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1;
      ld.u32 %r3, [%rd1]; ld.shared.u32 %r4, [own]; ld.shared.u32 %r5, [more];
      st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6};
      mov.u32 %r7, %reserved_smem_offset_begin; mov.u32 %r8, %reserved_smem_offset_end;
      mov.u32 %r9, %reserved_smem_offset_cap; mov.u32 %r10, %reserved_smem_offset_0;
      st.global.v4.u32 [%out+16], {%r7, %r8, %r9, %r10};"""
    answers = words(body, count=8)
    assert answers[:3] == [7, 1, 2]
    assert answers[4:] == [0, 288, 1024, 0]
    assert load_program(kernel(body).encode()).kernels["k"].shared_bytes == 12


@pytest.mark.parametrize("first", ["", "mov.u32 %r9, %reserved_smem_offset_1;"])
@pytest.mark.parametrize(
    ("static", "dynamic", "answers"),
    [(0, 200, [0x100, 0x4C8, 200]), (100, 0, [0x80, 0x470, 0]), (100, 1000, [0x480, 0x858, 1000]),
     (5000, 200, [0x1480, 0x1858, 200])],
)  # fmt: skip
def test_sizes_of_shared_memory(first: str, static: int, dynamic: int, answers: list[int]) -> None:
    """As recorded with an H100, where dynamic shared memory begins at a multiple of 16 bytes."""
    own = f".shared .align 4 .b8 own[{static}]; st.shared.u32 [own], 1;" if static else ""
    body = f"""{first} {own} mov.u32 %r1, dyn; mov.u32 %r1, %total_smem_size; mov.u32 %r2, %aggr_smem_size;
      mov.u32 %r3, %dynamic_smem_size; st.global.v2.u32 [%out], {{%r1, %r2}}; st.global.u32 [%out+8], %r3;"""
    device = Device(1 << 20)
    out = device.put(np.zeros(3, "u4"))
    module = device.load(kernel(body, ".extern .shared .align 4 .b8 dyn[];"))
    device.launch(module, "k", 1, 32, out, shared=dynamic)
    assert device.get(out, np.zeros(3, "u4")).tolist() == answers
    assert module.program.kernels["k"].shared_bytes == -(-static // 16) * 16
