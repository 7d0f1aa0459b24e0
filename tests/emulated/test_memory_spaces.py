"""Loads and stores of every space and width, variables and their initial values, calls."""

from __future__ import annotations

import numpy as np
import pytest

from pympsd_server.ptx.runtime.batch_state import align_local_frame
from tests.emulated.fragments import run_fragment
from tests.emulated.harness import HEADER, Device

WORDS = np.random.default_rng(3).integers(0, 2**32, 64, dtype="u4")


@pytest.mark.parametrize(("kind", "dtype"), [("u8", "u1"), ("s8", "i1"), ("u16", "u2"), ("s16", "i2")])
@pytest.mark.parametrize("space", ["local", "shared"])
def test_narrow_loads_extend(kind: str, dtype: str, space: str) -> None:
    text = f""".{space} .align 8 .b8 room[{64 * 8}];
      mov.u64 %w1, room; mul.wide.u32 %w2, %i0, 8; add.s64 %w1, %w1, %w2;
      st.{space}.b32 [%w1], %a; st.{space}.b32 [%w1+4], %b; ld.{space}.{kind} %d, [%w1+4];"""
    if space == "local":
        text = text.replace("mul.wide.u32 %w2, %i0, 8;", "mov.u64 %w2, 16;")
    actual = run_fragment(text, "i4", WORDS, WORDS[::-1].copy())
    np.testing.assert_array_equal(actual, WORDS[::-1].astype(dtype).astype("i4"))


@pytest.mark.parametrize("size", [1000, 1024, 4096, 32768])
def test_each_thread_has_its_own_local_memory_from_the_first_byte_to_the_last(size: int) -> None:
    text = f""".local .align 16 .b8 room[{size}]; mov.u64 %w1, room;
      st.local.b32 [%w1], %a; st.local.b32 [%w1+{size - 4}], %b;
      ld.local.b32 %d, [%w1]; ld.local.b32 %i1, [%w1+{size - 4}]; sub.u32 %d, %d, %i1;"""
    np.testing.assert_array_equal(run_fragment(text, "u4", WORDS, WORDS[::-1].copy()), WORDS - WORDS[::-1])


@pytest.mark.parametrize("size", [1024, 4096, 32768, 32832, 65536])
def test_the_same_offset_of_a_warp_is_in_as_many_sets_of_a_cache_as_possible(size: int) -> None:
    frame = align_local_frame(size)
    assert size <= frame <= size + 128
    assert len({lane * frame // 64 % 64 for lane in range(32)}) == 32


def test_vectors_are_stored_and_loaded() -> None:
    text = """.local .align 16 .b8 room[32]; mov.u64 %w1, room; not.b32 %i1, %a;
      st.local.v4.b32 [%w1+16], {%a, %b, %i1, %i0}; ld.local.v2.b64 {%w2, %w3}, [%w1+16];
      mov.b64 {%i2, %i3}, %w2; mov.b64 {%i4, %i5}, %w3;
      sub.u32 %d, %i2, %i3; xor.b32 %d, %d, %i4; add.u32 %d, %d, %i5;"""
    actual = run_fragment(text, "u4", WORDS, WORDS[::-1].copy())
    np.testing.assert_array_equal(actual, ((WORDS - WORDS[::-1]) ^ ~WORDS) + np.arange(64, dtype="u4"))


def test_generic_pointers_of_one_warp_to_three_spaces() -> None:
    """Thread i points to shared, local or global memory by i modulo 3."""
    text = """.shared .b32 s[64]; .local .b32 l; .reg .b32 %m;
      rem.u32 %m, %i0, 3; mul.wide.u32 %w1, %i0, 4; mov.u64 %w2, s; cvta.shared.u64 %w2, %w2; add.s64 %w2, %w2, %w1;
      mov.u64 %w3, l; cvta.local.u64 %w3, %w3; ld.param.u64 %w4, [p_a]; add.s64 %w4, %w4, %w1;
      setp.eq.u32 %p, %m, 0; selp.b64 %w5, %w2, %w4, %p; setp.eq.u32 %q, %m, 1; selp.b64 %w5, %w3, %w5, %q;
      add.u32 %i1, %a, %i0; st.u32 [%w5], %i1; atom.add.u32 %i2, [%w5], 5; ld.u32 %d, [%w5];
      sub.u32 %i2, %i2, %i1; add.u32 %d, %d, %i2; isspacep.shared %p, %w5; @%p add.u32 %d, %d, 1;"""
    actual = run_fragment(text, "u4", WORDS)
    lanes = np.arange(64, dtype="u4")
    np.testing.assert_array_equal(actual, WORDS + lanes + 5 + (lanes % 3 == 0))


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_a_pointer_below_its_memory_with_an_offset_into_it(space: str, uniform: bool) -> None:
    pointer = "ld.param.u64 %w4, [p_a];" if space == "global" else "mov.u64 %w4, room;"
    lane = "mov.u64 %w1, 0;" if uniform else "mul.wide.u32 %w1, %i0, 4;"
    text = f""".shared .align 8 .b8 room[256]; {pointer} {lane} add.s64 %w4, %w4, %w1; add.s64 %w5, %w4, -64;
      st.{space}.b32 [%w5+64], %b; bar.sync 0; ld.{space}.b32 %d, [%w4];
      ld.{space}.b32 %i1, [%w5+64]; sub.u32 %i1, %i1, %d; add.u32 %d, %d, %i1;"""
    second = np.full(64, 77, "u4") if uniform else WORDS[::-1].copy()
    np.testing.assert_array_equal(run_fragment(text, "u4", WORDS, second), second)


VARIABLES = (
    HEADER
    + """
.global .align 4 .b32 plain[3] = {1, -2, 0x7fffffff};
.global .f32 half = 0f3F000000;
.global .align 8 .u64 where[3] = {plain, generic(plain)+8, 7};
.const .align 8 .f64 table[2] = {0d3FF8000000000000, 2.5};
.global .b8 zeros[100];
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f64 %f<4>; .reg .f32 %h;
  ld.param.u64 %d0, [out];
  mov.u64 %d1, where; ld.global.u64 %d1, [%d1+8]; ld.u32 %r0, [%d1+-4]; st.global.u32 [%d0], %r0;
  ld.global.f32 %h, [half]; st.global.f32 [%d0+4], %h;
  ld.const.f64 %f0, [table+8]; st.global.f64 [%d0+8], %f0;
  ld.global.u8 %r1, [zeros+99]; st.global.u32 [%d0+16], %r1;
  ret;
}
"""
)


def test_variables_and_initial_values() -> None:
    device = Device(1 << 20)
    module = device.load(VARIABLES)
    assert module.program.globals["where"].alignment == 8
    out = device.put(np.zeros(5, "u4"))
    device.launch(module, "k", 1, 1, out)
    data = device.space.read(out, 20)
    assert np.frombuffer(data, "i4", 1, 0)[0] == -2
    assert np.frombuffer(data, "f4", 1, 4)[0] == 0.5
    assert np.frombuffer(data, "f8", 1, 8)[0] == 2.5
    assert np.frombuffer(data, "u4", 1, 16)[0] == 0
    assert device.space.read(module.address_of("table"), 8) == np.float64(1.5).tobytes()
    allocations = len(device.space.reach()[0])
    module.unload()
    assert len(device.space.reach()[0]) < allocations
    with pytest.raises(KeyError):
        module.address_of("plain")


CALLS = (
    HEADER
    + """
.func (.param .b32 r) twice(.param .b32 x)
{ .reg .b32 %a; .reg .pred %p; ld.param.b32 %a, [x]; setp.gt.s32 %p, %a, 1000; @%p bra BIG;
  add.u32 %a, %a, %a; st.param.b32 [r], %a; ret; BIG: st.param.b32 [r+0], 5; ret; }
.func (.param .align 8 .b8 r[16]) swap(.param .align 8 .b8 x[16])
{ .reg .b64 %a, %b; ld.param.b64 %a, [x]; ld.param.b64 %b, [x+8];
  st.param.b64 [r], %b; st.param.b64 [r+8], %a; ret; }
.func (.reg .u32 %out) plus(.reg .u32 %x, .reg .u32 %y) { add.u32 %out, %x, %y; ret; }
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<8>; .reg .b64 %d<4>;
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, 100;
  mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1;
  { .param .b32 p0; .param .b32 q0; st.param.b32 [p0], %r1; call.uni (q0), twice, (p0); ld.param.b32 %r2, [q0]; }
  { .param .align 8 .b8 p0[16]; .param .align 8 .b8 q0[16];
    st.param.v2.b32 [p0], {%r2, %r0}; st.param.b64 [p0+8], %d0; call.uni (q0), swap, (p0);
    ld.param.b32 %r3, [q0+8]; ld.param.b32 %r4, [q0+12]; }
  call (%r5), plus, (%r3, %r4);
  st.global.u32 [%d0], %r5;
  ret;
}
"""
)


def test_calls_are_inlined() -> None:
    device = Device(1 << 20)
    out = device.put(np.zeros(32, "u4"))
    device.launch(device.load(CALLS), "k", 1, 32, out)
    lanes = np.arange(32)
    expected = np.where(lanes * 100 > 1000, 5, lanes * 200) + lanes
    np.testing.assert_array_equal(device.get(out, np.zeros(32, "u4")), expected)


def test_an_indexed_branch_jumps_to_its_target() -> None:
    text = """rem.u32 %i1, %a, 3; T: .branchtargets A, B, C; brx.idx %i1, T;
      A: mov.u32 %d, 10; bra END; B: mov.u32 %d, 20; bra END; C: mov.u32 %d, 30; END:"""
    np.testing.assert_array_equal(run_fragment(text, "u4", WORDS), WORDS % 3 * 10 + 10)


def test_dynamic_shared_memory_follows_the_static() -> None:
    ptx = (
        HEADER
        + """
.extern .shared .align 16 .b8 room[];
.visible .entry k(.param .u64 out)
{ .shared .b32 s[3]; .reg .b32 %r<6>; .reg .b64 %d<3>;
  mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, room; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r0;
  st.shared.u32 [s+8], 77; bar.sync 0; mov.u32 %r3, room; sub.u32 %r4, 124, %r1; add.u32 %r3, %r3, %r4;
  ld.shared.u32 %r5, [%r3]; ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1;
  st.global.u32 [%d0], %r5; ret; }
"""
    )
    device = Device(1 << 20)
    out = device.put(np.zeros(32, "u4"))
    device.launch(device.load(ptx), "k", 2, 32, out, shared=128)
    np.testing.assert_array_equal(device.get(out, np.zeros(32, "u4")), np.arange(32)[::-1])


def test_shared_variables_belong_to_their_function() -> None:
    """Two functions' variables of one name are two; all calls of one function share its own."""
    ptx = (
        HEADER
        + """
.func (.reg .u32 %o) first(.reg .u32 %x) { .shared .b32 v; ld.shared.u32 %o, [v]; st.shared.u32 [v], %x; ret; }
.func (.reg .u32 %o) second(.reg .u32 %x) { .shared .b32 v; ld.shared.u32 %o, [v]; st.shared.u32 [v], %x; ret; }
.visible .entry k(.param .u64 out)
{ .reg .b32 %r<6>; .reg .b64 %d; ld.param.u64 %d, [out];
  call (%r0), first, (5); call (%r0), second, (6); call (%r1), first, (7); call (%r2), second, (8);
  st.global.v2.u32 [%d], {%r1, %r2}; ret; }
"""
    )
    device = Device(1 << 20)
    module = device.load(ptx)
    assert module.program.kernels["k"].shared_bytes == 8
    out = device.put(np.zeros(2, "u4"))
    device.launch(module, "k", 1, 1, out)
    np.testing.assert_array_equal(device.get(out, np.zeros(2, "u4")), [5, 6])
