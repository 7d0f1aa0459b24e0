"""Where warps take turns between two barriers, and that a kernel with fewer turns computes the same."""

from __future__ import annotations

from string import Template

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.compiled_tier.planning.turns import BEFORE_LOAD, BEFORE_STORE, find_turns
from pympsd_server.ptx.loading.program import load_program
from pympsd_server.ptx.lowering.control_flow import build_blocks
from tests.emulated.harness import HEADER, Device

EXAMPLES = settings.default.max_examples  # fewer if the long tests are left out

TIERS = ()
THREADS = 128
KERNEL = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %b, %x, %s, %t, %v, %w; .reg .b64 %a, %o; .reg .pred %q; .shared .align 4 .b8 s[8192];
ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o;
mov.u32 %b, s; shl.b32 %x, %i, 2; add.s32 %s, %b, %x; mad.lo.s32 %t, %i, $FACTOR, %b;
st.shared.u32 [%s], %i; st.shared.u32 [%s+512], %i; st.shared.u32 [%s+1024], %i; st.shared.u32 [%s+1536], %i;
bar.sync 0;
mov.u32 %w, 0; $PHASES
bar.sync 0;
ld.shared.u32 %v, [%s+512]; mad.lo.u32 %w, %w, 1000, %v; st.global.u32 [%a], %w; ret; }"""
READ = "setp.$COMPARE.s32 %q, %i, $BOUND; @%q bra L; ld.shared.u32 %w, [%t+$FROM]; L:"
WRITE = "add.u32 %v, %i, 500; st.shared.u32 [%s+$TO], %v;"


def text(phases: str, **values: object) -> str:
    """Return the kernel with its phases and values filled in."""
    return HEADER + Template(Template(KERNEL).safe_substitute(PHASES=phases)).substitute(values)


def turns_of(ptx: str, threads: int = THREADS) -> list[int]:
    """Return the kinds of a kernel's turns after its first barrier."""
    translation = load_program(ptx.encode()).kernels["k"].translation
    blocks = build_blocks(translation.code)
    operations = [block.operations for block in blocks]
    return list(find_turns(blocks, operations, translation.code.carry, translation.offsets, threads).values())


@pytest.mark.parametrize(
    ("compare", "bound", "start", "to", "kinds"),
    [
        ("lt", 0, 0, 512, []),  # the other half
        ("lt", 0, 4, 508, [BEFORE_STORE]),  # the last thread reads what the first writes
        ("lt", 2, 504, 0, []),  # only the first two threads would read what others write
        ("lt", 1, 504, 0, [BEFORE_STORE]),
        ("ge", 64, 256, 512, []),  # a half of the threads reads the upper half of the first 512 bytes
        ("gt", 64, 256, 508, [BEFORE_STORE]),
        ("ne", 5, 0, 20, [BEFORE_STORE]),  # thread 5 reads what the first writes
        ("ne", 5, 0, 24, []),
        ("lt", 0, 512, 512, []),  # each thread its own element
    ],
)
def test_warps_take_turns_only_where_others_may_access_the_same(
    compare: str, bound: int, start: int, to: int, kinds: list[int]
) -> None:
    ptx = text(READ + WRITE, COMPARE=compare, BOUND=bound, FROM=start, TO=to, FACTOR=4)
    assert turns_of(ptx) == kinds


def test_a_greater_block_may_need_turns_where_a_smaller_one_does_not() -> None:
    ptx = text(READ + WRITE, COMPARE="lt", BOUND=0, FROM=0, TO=512, FACTOR=4)
    assert turns_of(ptx, 128) == []
    assert turns_of(ptx, 129) == [BEFORE_STORE]


def test_writing_before_reading_needs_a_turn_as_well() -> None:
    ptx = text(WRITE + READ, COMPARE="lt", BOUND=0, FROM=508, TO=0, FACTOR=4)
    assert turns_of(ptx) == [BEFORE_LOAD]
    assert turns_of(ptx.replace("[%t+508]", "[%t+512]")) == []


def test_addresses_that_depend_on_data_may_be_any() -> None:
    ptx = text(READ + WRITE, COMPARE="lt", BOUND=0, FROM=0, TO=512, FACTOR=4)
    assert turns_of(ptx.replace("mov.u32 %w, 0;", "ld.shared.u32 %t, [%s+1536];")) == [BEFORE_STORE]


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(
    phases=st.sampled_from([READ + WRITE, WRITE + READ]),
    compare=st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]),
    bound=st.sampled_from([-1, 0, 1, 31, 32, 64, 100, 127, 128]),
    factor=st.sampled_from([-4, 0, 4, 8, 12]),
    start=st.sampled_from([508, 512, 516, 640, 1020, 1024]),
    to=st.sampled_from([0, 4, 496, 512, 516, 1024, 1532]),
)
def test_a_kernel_computes_the_same_in_both_tiers(
    phases: str, compare: str, bound: int, factor: int, start: int, to: int
) -> None:
    ptx = text(phases, COMPARE=compare, BOUND=bound, FACTOR=factor, FROM=start, TO=to)
    results = []
    for tier in ("numpy", "compiled"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYMPSD_TIER", tier)
            device = Device(1 << 20)
            address = device.put(np.zeros(THREADS, "u4"))
            device.launch(device.load(ptx), "k", 1, THREADS, address)
            results.append(device.get(address, np.zeros(THREADS, "u4")).tolist())
    assert results[0] == results[1]
