"""cp.async, cp.async.bulk and mbarrier objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from tests.emulated.harness import HEADER, Device

HOPPER = HEADER.replace("8.0", "8.3").replace("sm_80", "sm_90")
REGISTERS = ".reg .b32 %r<20>; .reg .b64 %d<12>; .reg .pred %p<4>;"


def run(body: str, source: np.ndarray[Any, Any], out: np.ndarray[Any, Any], threads: int) -> np.ndarray[Any, Any]:
    """Run `body` with %d0 the source, %d1 the output and %r0 the thread, and `s` and `bar` in shared memory."""
    text = (
        HOPPER + ".visible .entry k(.param .u64 a, .param .u64 b)\n{ .shared .align 128 .b8 s[1024];"
        f" .shared .align 8 .b64 bar[8]; {REGISTERS}\n"
        "ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; mov.u32 %r0, %tid.x;\n" + body + "\nret; }\n"
    )
    device = Device(1 << 20)
    addresses = [device.put(source), device.put(out)]
    device.launch(device.load(text), "k", 1, threads, *addresses)
    return device.get(addresses[1], out)


STORE_SHARED = """
cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
mul.lo.u32 %r5, %r0, 16; mov.u32 %r6, s; add.u32 %r6, %r6, %r5; ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];
mul.wide.u32 %d5, %r0, 16; add.u64 %d5, %d1, %d5; st.global.v4.u32 [%d5], {%r7, %r8, %r9, %r10};
"""


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("given_bytes", [None, 0, 1, 3, 5, 16])
def test_bytes_that_are_not_given_are_zero(size: int, given_bytes: int | None) -> None:
    """The memory of the source may end with the word of the last byte that is given."""
    source = np.arange(1, 513, dtype="u2").view("u1")
    more = "" if given_bytes is None else f", {min(given_bytes, size)}"
    body = (
        "mul.wide.u32 %d2, %r0, 16; add.u64 %d2, %d0, %d2; mul.lo.u32 %r1, %r0, 16; mov.u32 %r2, s;"
        f" add.u32 %r2, %r2, %r1; cp.async.ca.shared.global.L2::128B [%r2], [%d2], {size}{more};" + STORE_SHARED
    )
    count = size if given_bytes is None else min(given_bytes, size)
    actual = run(body, source[: 39 * 16 + count + -count % 4], np.zeros(40 * 16, "u1"), 40).reshape(40, 16)
    expected = np.zeros((40, 16), "u1")
    expected[:, :count] = source[: 40 * 16].reshape(40, 16)[:, :count]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("relation", "ignored"), [("eq", "%p0"), ("ne", "!%p0")])
def test_an_ignored_source_is_not_read(relation: str, ignored: str) -> None:
    source = np.arange(8, dtype="u4")
    # Odd threads have an address outside of everything.
    body = (
        f"and.b32 %r1, %r0, 1; setp.{relation}.u32 %p0, %r1, 1; mul.wide.u32 %d2, %r1, 16777216;"
        " add.u64 %d2, %d0, %d2; mul.lo.u32 %r3, %r0, 16; mov.u32 %r2, s; add.u32 %r2, %r2, %r3;"
        f" cp.async.cg.shared.global [%r2], [%d2], 16, {ignored};" + STORE_SHARED
    )
    actual = run(body, source, np.full(32, 7, "u4"), 8).reshape(8, 4)
    np.testing.assert_array_equal(actual, [[0, 1, 2, 3] if t % 2 == 0 else [0, 0, 0, 0] for t in range(8)])


BULK = """
setp.ne.u32 %p0, %r0, 0; mov.u32 %r1, bar; mov.u32 %r2, s;
@%p0 bra wait;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], SIZE;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d0], SIZE, [%r1];
wait: bar.sync 0;
again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
@!%p1 bra again;
mul.lo.u32 %r3, %r0, 4; add.u32 %r3, %r3, %r2;
ld.shared.u32 %r4, [%r3]; add.u32 %r4, %r4, 1; st.shared.u32 [%r3], %r4;
fence.proxy.async.shared::cta;
bar.sync 0;
@%p0 bra end;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], SIZE;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
end:
"""


def test_bulk_copies_in_and_out() -> None:
    source = np.arange(64, dtype="u4") * 3
    actual = run(BULK.replace("SIZE", "256"), source, np.zeros(64, "u4"), 64)
    np.testing.assert_array_equal(actual, source + 1)


@pytest.mark.parametrize(("size", "fault"), [("24", MisalignedAddress), ("4096", IllegalAddress)])
def test_bad_bulk_copies_fault(size: str, fault: type[DeviceFault]) -> None:
    with pytest.raises(fault, match=r"thread \(0, 0, 0\)"):
        run(BULK.replace("SIZE", size), np.zeros(64, "u4"), np.zeros(64, "u4"), 64)


def test_copies_that_arrive_at_a_barrier() -> None:
    """Each thread's copies arrive once (.noinc), or change nothing (without)."""
    for form, count in ((".noinc", 32), ("", 1)):
        body = f"""
        setp.ne.u32 %p0, %r0, 0; mov.u32 %r1, bar; mov.u32 %r2, s;
        @!%p0 mbarrier.init.shared.b64 [%r1], {count}; bar.sync 0;
        mul.wide.u32 %d2, %r0, 4; add.u64 %d2, %d0, %d2; mul.lo.u32 %r3, %r0, 4; add.u32 %r3, %r3, %r2;
        cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.mbarrier.arrive{form}.shared.b64 [%r1];
        mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 0; bar.sync 0;
        mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 0; selp.u32 %r4, 100, 0, %p1;
        ld.shared.u32 %r5, [%r3]; add.u32 %r4, %r4, %r5; add.u64 %d3, %d1, %d2; sub.u64 %d3, %d3, %d0;
        st.global.u32 [%d3], %r4;"""
        actual = run(body, np.arange(32, dtype="u4"), np.zeros(32, "u4"), 32)
        np.testing.assert_array_equal(actual, np.arange(32) + (100 if form else 0))


@define
class Model:
    """An mbarrier object as the PTX ISA describes it."""

    expected: int
    pending: int
    missing: int = 0
    phase: int = 0

    def change(self, arrivals: int, count: int, drop: bool = False) -> tuple[int, int]:
        before = self.phase, self.pending
        self.pending -= arrivals
        self.missing += count
        if drop:
            self.expected -= arrivals
        if self.pending == 0 and self.missing == 0:
            self.phase, self.pending = self.phase + 1, self.expected
        return before


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive_drop", "expect_tx", "complete_tx", "both"]), st.integers(1, 3)),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), ACTIONS)
def test_a_barrier_as_the_manual_describes_it(count: int, actions: list[tuple[str, int]]) -> None:
    model = Model(count, count)
    text = [f"mov.u32 %r1, bar; mbarrier.init.shared.b64 [%r1], {count}; mov.u32 %r9, 0;"]
    expected = []
    for action, number in actions:
        if action.startswith("arrive") and model.pending < number:
            continue
        if action == "arrive_drop" and model.expected - number < 1:
            continue
        if action == "both" and model.pending < 1:
            continue
        if action == "complete_tx" and model.missing < 16 * number:
            continue
        if action.startswith("arrive"):
            phase, pending = model.change(number, 0, action == "arrive_drop")
            text.append(f"mbarrier.{action}.shared.b64 %d3, [%r1], {number};")
        elif action == "both":
            phase, pending = model.change(0, 16 * number)
            _ = model.change(1, 0)
            text.append(f"mbarrier.arrive.expect_tx.shared.b64 %d3, [%r1], {16 * number};")
        else:
            model.change(0, (16 if action == "expect_tx" else -16) * number)
            text.append(f"mbarrier.{action}.relaxed.cta.shared::cta.b64 [%r1], {16 * number};")
            continue
        text.append(
            "mbarrier.test_wait.shared.b64 %p0, [%r1], %d3; selp.u32 %r2, 1, 0, %p0;"
            f" mbarrier.test_wait.parity.shared.b64 %p0, [%r1], {phase % 2}; selp.u32 %r3, 2, 0, %p0;"
            " mbarrier.pending_count.b64 %r4, %d3; shl.b32 %r4, %r4, 2; or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4;"
            f" st.global.u32 [%d1+{4 * len(expected)}], %r2;"
        )
        expected.append((3 if model.phase != phase else 0) | pending << 2)
    actual = run("\n".join(text), np.zeros(1, "u4"), np.zeros(16, "u4"), 1)
    assert actual[: len(expected)].tolist() == expected


PIPELINE = """
// Warp 0 fills two buffers in turn, the others empty them: full and empty barriers, phases and parities.
mov.u32 %r1, bar; mov.u32 %r2, s; setp.ne.u32 %p0, %r0, 0;
@%p0 bra ready;
mbarrier.init.shared.b64 [%r1], 32; mbarrier.init.shared.b64 [%r1+8], 32;
mbarrier.init.shared.b64 [%r1+16], 64; mbarrier.init.shared.b64 [%r1+24], 64;
ready: bar.sync 0;
setp.lt.u32 %p1, %r0, 32; mov.u32 %r3, 0; mov.u32 %r15, 0;
next:
and.b32 %r4, %r3, 1; shl.b32 %r5, %r4, 3; add.u32 %r5, %r5, %r1; shr.u32 %r6, %r3, 1; and.b32 %r6, %r6, 1;
shl.b32 %r7, %r4, 8; add.u32 %r7, %r7, %r2; and.b32 %r8, %r0, 31; shl.b32 %r8, %r8, 2; add.u32 %r7, %r7, %r8;
@!%p1 bra consume;
xor.b32 %r9, %r6, 1;
produce_wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r5+16], %r9;
@!%p2 bra produce_wait;
mad.lo.u32 %r10, %r3, 1000, %r0; st.shared.u32 [%r7], %r10;
mbarrier.arrive.shared.b64 %d4, [%r5];
bra step;
consume:
consume_wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r6;
@!%p2 bra consume_wait;
ld.shared.u32 %r10, [%r7]; add.u32 %r15, %r15, %r10;
mbarrier.arrive.shared.b64 _, [%r5+16];
step:
add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 9;
@%p3 bra next;
mul.wide.u32 %d5, %r0, 4; add.u64 %d5, %d1, %d5; st.global.u32 [%d5], %r15;
"""


def test_producers_and_consumers_take_turns() -> None:
    actual = run(PIPELINE, np.zeros(1, "u4"), np.zeros(96, "u4"), 96)
    np.testing.assert_array_equal(actual[32:], [sum(1000 * i + t % 32 for i in range(9)) for t in range(64)])
