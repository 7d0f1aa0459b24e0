"""Barriers, spin loops, cancelling, and batches that take turns."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from tests.emulated.fragments import run_fragment
from tests.emulated.harness import HEADER, CancelAfter, Device, Never, pack

PREAMBLE = ".reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>; .shared .b32 s[64];"


def kernel(text: str, parameters: str = ".param .u64 out") -> str:
    return f"{HEADER}.visible .entry k({parameters})\n{{ {PREAMBLE}\n{text}\nret; }}\n"


def one_batch(module: LoadedModule, blocks: int, threads: int, *arguments: int) -> Batch:
    parameters = pack(module.program, "k", arguments)
    return Batch(module, "k", LaunchSetup((blocks, 1, 1), (threads, 1, 1), parameters), 0, np.arange(blocks))


ENDLESS = kernel("L: add.u32 %r0, %r0, 1; bra L;")


def test_endless_kernel_yields_and_is_cancelled() -> None:
    device = Device(1 << 20)
    batch = one_batch(device.load(ENDLESS), 4, 64, 0)
    for _ in range(20):
        assert batch.step(0.0, Never()) is False
    assert batch.steps == 20
    with pytest.raises(Cancelled):
        batch.step(3600.0, CancelAfter(500))
    assert batch.steps == 520


BULK = kernel("""mov.u32 %r0, %tid.x; mul.lo.u32 %r0, %r0, 16; cvt.u64.u32 %d0, %r0; ld.param.u64 %d1, [out];
    add.u64 %d1, %d1, %d0; mov.u32 %r1, s; cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;""")


@pytest.mark.parametrize("tier", ["numpy"], indirect=True)
def test_a_long_block_is_cancelled_between_its_operations() -> None:
    device = Device(1 << 20)
    out = device.put(np.zeros(1, "u4"))
    module = device.load(kernel("ld.param.u64 %d0, [out];" + "atom.global.add.u32 %r0, [%d0], 1;" * 100))
    with pytest.raises(Cancelled):
        one_batch(module, 1, 1, out).step(1.0, CancelAfter(6))
    assert 0 < device.get(out, np.zeros(1, "u4"))[0] < 100


def test_bulk_copies_of_many_threads_are_done_some_at_a_time() -> None:
    device = Device(1 << 20)
    untouched = np.full((64, 4), 7, "u4")
    out = device.put(untouched)
    module = device.load(BULK.replace("sm_80", "sm_90"))
    batch = one_batch(module, 1, 64, out)
    assert batch.step(0.0, Never()) is False
    done = (device.get(out, untouched) == 0).all(1)
    assert done[:8].all()
    assert not done[8:].any()
    assert batch.step(60.0, Never())
    assert not device.get(out, untouched).any()
    with pytest.raises(Cancelled):
        one_batch(module, 1, 64, out).step(60.0, CancelAfter(3))


NAPS = kernel("""mov.u32 %r0, %ntid.x; setp.gt.u32 %p0, %r0, 1;
    @%p0 nanosleep.u32 1000000; @%p0 nanosleep.u32 4000000000; @%p0 nanosleep.u32 1000000;""")


def test_nanosleep_takes_its_time_of_a_millisecond_at_most_for_all_threads_together() -> None:
    batch = one_batch(Device(1 << 20).load(NAPS), 4, 64, 0)
    began = time.perf_counter()
    while not batch.step(0.0, Never()):
        assert time.perf_counter() < began + 60
    assert time.perf_counter() >= began + 0.003


def test_a_nanosleep_whose_guard_is_false_and_a_short_one_take_no_time() -> None:
    device = Device(1 << 20)
    assert one_batch(device.load(NAPS), 1, 1, 0).step(0.0, Never())
    batch = one_batch(device.load(kernel("nanosleep.u32 20;")), 1, 1, 0)
    assert not batch.step(0.0, Never())
    assert batch.step(0.0, Never())


def test_threads_that_sleep_do_not_hold_up_others() -> None:
    """One thread sleeps until the others, which begin at another place, have set its word."""
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra SET;
      W: nanosleep.u32 1000000; ld.volatile.global.u32 %r1, [%d0]; setp.ne.u32 %p1, %r1, 63; @%p1 bra W;
      bra DONE;
      SET: atom.global.add.u32 %r2, [%d0], 1;
      DONE:"""
    device = Device(1 << 20)
    out = device.put(np.zeros(1, "u4"))
    assert one_batch(device.load(kernel(text)), 1, 64, out).step(60.0, Never())


COUNT = kernel(
    """ld.param.u64 %d0, [out]; ld.param.u32 %r1, [rounds]; mov.u32 %r2, %tid.x;
    mul.wide.u32 %d1, %r2, 4; add.s64 %d0, %d0, %d1; mov.u32 %r3, 0;
  L: mad.lo.u32 %r3, %r3, 3, %r2; sub.u32 %r1, %r1, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra L;
    st.global.u32 [%d0], %r3;""",
    ".param .u64 out, .param .u32 rounds",
)


def test_two_batches_of_one_program_take_turns() -> None:
    device = Device(1 << 20)
    module = device.load(COUNT)
    outs = [device.put(np.zeros(32, "u4")) for _ in range(2)]
    running = [one_batch(module, 1, 32, out, rounds) for out, rounds in zip(outs, (50, 90), strict=True)]
    turns = 0
    while running:
        running = [batch for batch in running if not batch.step(0.0, Never())]
        turns += 1
    assert turns > 90
    for out, rounds in zip(outs, (50, 90), strict=True):
        expected = np.zeros(32, "u4")
        for _ in range(rounds):
            expected = expected * np.uint32(3) + np.arange(32, dtype="u4")
        np.testing.assert_array_equal(device.get(out, expected), expected)


def test_barrier_after_some_threads_left() -> None:
    text = """
      setp.ge.u32 %p, %i0, 40; mov.u32 %d, 0; @%p bra OUT;
      mov.u32 %i1, 0; setp.lt.u32 %q, %i0, 3; @%q bra JOIN;
    SLOW: add.u32 %i1, %i1, 1; setp.lt.u32 %q, %i1, %i0; @%q bra SLOW;
    JOIN: bar.sync 0; mov.u32 %d, 1;
    OUT:"""
    np.testing.assert_array_equal(run_fragment(text, "u4", np.zeros(70, "u4")), np.arange(70) < 40)


def test_barriers_reduce_predicates() -> None:
    a = np.array([1, 0, 1] * 32, "u4")
    for mode, expected in (("popc.u32", 64), ("and.pred", 0), ("or.pred", 1)):
        target = "%d" if mode == "popc.u32" else "%q"
        text = f"setp.ne.u32 %p, %a, 0; bar.red.{mode} {target}, 0, %p;"
        text += "" if target == "%d" else "selp.b32 %d, 1, 0, %q;"
        np.testing.assert_array_equal(run_fragment(text, "u4", a), [expected] * 96)


def test_named_barrier_with_arrivals() -> None:
    """Warp 0 produces and arrives, warp 1 waits for it; warp 2 takes no part."""
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31;
      mul.wide.u32 %d1, %r2, 4; mov.u64 %d2, s; add.s64 %d2, %d2, %d1; add.s64 %d0, %d0, %d1;
      setp.eq.u32 %p0, %r1, 1; @%p0 bra CONSUME; setp.eq.u32 %p1, %r1, 2; @%p1 bra DONE;
      mul.lo.u32 %r3, %r2, 9; st.shared.u32 [%d2], %r3; bar.arrive 3, 64; bra DONE;
    CONSUME: bar.sync 3, 64; ld.shared.u32 %r4, [%d2]; st.global.u32 [%d0], %r4;
    DONE:"""
    device = Device(1 << 20)
    out = device.put(np.zeros(32, "u4"))
    device.launch(device.load(kernel(text)), "k", 1, 96, out)
    np.testing.assert_array_equal(device.get(out, np.zeros(32, "u4")), np.arange(32) * 9)


def test_lanes_of_a_warp_that_arrive_one_after_another_arrive_once() -> None:
    """Lanes of the producing warp loop for different times before bar.arrive; the warp counts as 32 threads."""
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; and.b32 %r2, %r0, 31; mul.wide.u32 %d1, %r2, 4;
      mov.u64 %d2, s; add.s64 %d2, %d2, %d1; add.s64 %d0, %d0, %d1; mov.u32 %r4, 0; mov.u32 %r7, 0;
      setp.gt.u32 %p0, %r0, 31; and.b32 %r5, %r0, 7; mul.lo.u32 %r5, %r5, 300; @%p0 bra CONSUME;
    PRODUCE: mov.u32 %r6, 0;
    LOOP: add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r5; @%p1 bra LOOP;
      mad.lo.u32 %r3, %r4, 100, %r0; st.volatile.shared.u32 [%d2], %r3; bar.arrive 1, 64; bar.sync 2, 64;
      add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5; @%p1 bra PRODUCE; ret;
    CONSUME: bar.sync 1, 64; ld.volatile.shared.u32 %r3, [%d2]; mad.lo.u32 %r7, %r7, 5, %r3; bar.arrive 2, 64;
      add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5; @%p1 bra CONSUME; st.global.u32 [%d0], %r7;"""
    device, expected = Device(1 << 20), np.zeros(32, "u4")
    out = device.put(expected)
    device.launch(device.load(kernel(text)), "k", 1, 64, out)
    for number in range(5):
        expected = expected * 5 + number * 100 + np.arange(32, dtype="u4")
    np.testing.assert_array_equal(device.get(out, expected), expected)


def test_a_warp_whose_other_lanes_end_has_arrived() -> None:
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 31; @%p0 bra WAIT;
      setp.gt.u32 %p1, %r0, 15; @%p1 bra LATE; bar.arrive 1, 64; ret;
    LATE: mov.u32 %r6, 0;
    LOOP: add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 3000; @%p1 bra LOOP; ret;
    WAIT: bar.sync 1, 64; mul.wide.u32 %d1, %r0, 4; add.s64 %d0, %d0, %d1; st.global.u32 [%d0], %r0;"""
    device = Device(1 << 20)
    out = device.put(np.zeros(64, "u4"))
    device.launch(device.load(kernel(text)), "k", 1, 64, out)
    np.testing.assert_array_equal(device.get(out, np.zeros(64, "u4"))[32:], np.arange(32, 64))


def test_deadlock_is_a_fault() -> None:
    """Half of a warp waits at one barrier, half at another: a GPU would hang."""
    text = """mov.u32 %r0, %tid.x; and.b32 %r0, %r0, 1; setp.eq.u32 %p0, %r0, 0; @%p0 bra B;
      bar.sync 1; bra C; B: bar.sync 2; C:"""
    device = Device(1 << 20)
    with pytest.raises(DeviceFault, match="deadlock") as caught:
        device.launch(device.load(kernel(text)), "k", 1, 32, 0)
    assert caught.value.code == 719


SPIN_LOCK = kernel(
    """ld.param.u64 %d0, [out];
  TRY: atom.global.cas.b32 %r0, [%d0], 0, 1; setp.ne.u32 %p0, %r0, 0; @%p0 bra TRY;
    ld.volatile.global.u32 %r1, [%d0+4]; add.u32 %r1, %r1, 1; st.volatile.global.u32 [%d0+4], %r1;
    membar.gl; atom.global.exch.b32 %r2, [%d0], 0;"""
)


def test_spin_lock_admits_every_thread() -> None:
    device = Device(1 << 20)
    out = device.put(np.zeros(2, "u4"))
    device.launch(device.load(SPIN_LOCK), "k", 4, 32, out)
    np.testing.assert_array_equal(device.get(out, np.zeros(2, "u4")), [0, 128])


def test_grid_wide_barrier_when_batches_take_turns() -> None:
    """Every CTA adds one and spins until all have: it needs all batches to continue."""
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %nctaid.x; mov.u32 %r1, %tid.x; setp.ne.u32 %p0, %r1, 0;
      @%p0 bra JOIN; red.global.add.u32 [%d0], 1;
    SPIN: ld.acquire.gpu.global.u32 %r2, [%d0]; setp.lt.u32 %p1, %r2, %r0; @%p1 bra SPIN;
    JOIN: bar.sync 0; red.global.add.u32 [%d0+4], 1;"""
    device = Device(1 << 20)
    module = device.load(kernel(text))
    out = device.put(np.zeros(2, "u4"))
    parameters = pack(module.program, "k", (out,))
    running = [
        Batch(module, "k", LaunchSetup((3, 1, 1), (64, 1, 1), parameters), first, np.zeros(1, np.int64))
        for first in range(3)
    ]
    while running:
        running = [batch for batch in running if not batch.step(0.0, Never())]
    np.testing.assert_array_equal(device.get(out, np.zeros(2, "u4")), [3, 192])


def test_special_registers_locate_threads() -> None:
    text = """ld.param.u64 %d0, [out]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x;
      mad.lo.u32 %r3, %r1, %r2, %r0; mov.u32 %r4, %tid.x; mov.u32 %r5, %tid.y; mov.u32 %r6, %ntid.x;
      mad.lo.u32 %r7, %r5, %r6, %r4; mov.u32 %r8, %ntid.y; mul.lo.u32 %r9, %r6, %r8; mad.lo.u32 %r7, %r3, %r9, %r7;
      mul.wide.u32 %d1, %r7, 4; add.s64 %d0, %d0, %d1; mov.u32 %r10, %smid; mov.u32 %r11, %laneid;
      mad.lo.u32 %r10, %r10, 100, %r11; st.global.u32 [%d0], %r10;"""
    device = Device(1 << 20)
    module = device.load(kernel(text))
    out = device.put(np.zeros(4 * 48, "u4"))
    sms = np.array([5, 2, 9, 2])
    batch = Batch(module, "k", LaunchSetup((2, 2, 1), (16, 3, 1), pack(module.program, "k", (out,))), 0, sms)
    assert batch.step(60.0, Never())
    lanes = np.tile(np.arange(48) % 32, 4)
    np.testing.assert_array_equal(device.get(out, np.zeros(192, "u4")), sms.repeat(48) * 100 + lanes)


def test_too_few_parameters() -> None:
    module = Device(1 << 20).load(COUNT)
    with pytest.raises(ValueError, match="12 bytes"):
        Batch(module, "k", LaunchSetup((1, 1, 1), (1, 1, 1), b""), 0, np.zeros(1, np.int64))
