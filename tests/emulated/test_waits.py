"""Threads that wait: asleep, at mbarriers, at barriers with numbers in registers, and for instructions in NumPy."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.isa.faults import Cancelled, LaunchFailed
from tests.emulated.harness import HEADER, Device, Never, batches, three

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ("numpy", "compiled", "escaping")
HOPPER = HEADER.replace("8.0", "8.3").replace("sm_80", "sm_90")
BEGIN = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %j, %n, %v, %w, %s; .reg .b64 %a, %o, %d, %t; .reg .pred %q, %z; .shared .align 8 .b64 bar[4];
.shared .b32 words[64]; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; mov.u32 %s, bar; setp.ne.u32 %z, %i, 0;
mul.wide.u32 %o, %i, 4;
"""


def begin(device: Device, body: str, grid: int, block: int, address: int, tier: str) -> Batch | CompiledBatch:
    (batch,) = batches(device.load(f"{HOPPER}{BEGIN}{body}\nret; }}"), "k", three(grid), three(block), (address,))
    assert isinstance(batch, Batch if tier == "numpy" else CompiledBatch)
    return batch


def run(body: str, grid: int, block: int, words: int, tier: str) -> list[int]:
    """Return what a kernel leaves in as many words, which were zero."""
    device, zeros = Device(1 << 20), np.zeros(words, "u4")
    address = device.put(zeros)
    assert begin(device, body, grid, block, address, tier).step(60, Never())
    words_after: list[int] = device.get(address, zeros).tolist()
    return words_after


NAPS = "nanosleep.u32 1000000; @!%z nanosleep.u32 4000000000; nanosleep.u32 1000000; nanosleep.u32 20;"


@pytest.mark.parametrize("tier", ["compiled"], indirect=True)
def test_a_sleeping_warp_takes_its_time_of_a_millisecond_at_most(tier: str) -> None:
    device = Device(1 << 20)
    batch, began = begin(device, NAPS, 40, 64, 0, tier), time.perf_counter()
    assert batch.step(60, Never())
    assert time.perf_counter() - began >= 0.003


FLAG = """mov.u32 %j, %ctaid.x; setp.eq.u32 %q, %j, LAST; @%q bra SET;
AGAIN: nanosleep.u32 2000; ld.relaxed.gpu.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN;
red.global.add.u32 [%a+4], 1; bra DONE;
SET: bar.sync 0; st.relaxed.gpu.global.u32 [%a], 1;
DONE:"""


@pytest.mark.parametrize("blocks", [2, 300])
def test_blocks_that_sleep_until_the_last_one_sets_a_flag_end(tier: str, blocks: int) -> None:
    words = run(FLAG.replace("LAST", str(blocks - 1)), blocks, 64, 2, tier)
    assert words == [1, (blocks - 1) * 64]


LOCKS = """AGAIN: atom.global.cas.b32 %v, [%a], 0, 1; setp.eq.u32 %q, %v, 0; @%q bra HAS;
nanosleep.u32 1500; bra AGAIN;
HAS: ld.volatile.global.u32 %w, [%a+4]; add.u32 %w, %w, 1; st.volatile.global.u32 [%a+4], %w;
membar.gl; atom.global.exch.b32 %v, [%a], 0;"""


def test_lanes_that_sleep_until_a_lane_of_their_warp_returns_a_lock_end(tier: str) -> None:
    assert run(LOCKS, 1, 64, 2, tier) == [0, 64]


def test_a_kernel_that_sleeps_forever_is_cancelled_and_has_slices(tier: str) -> None:
    class Soon:
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 4

    device = Device(1 << 20)
    batch = begin(device, "AGAIN: nanosleep.u32 1000000; bra AGAIN;", 3, 64, 0, tier)
    assert not batch.step(0.001, Never())
    with pytest.raises(Cancelled):
        batch.step(60, Soon())


PHASES = """@!%z mbarrier.init.shared.b64 [%s], 128; bar.sync 0; mov.u32 %n, 0; mov.u32 %j, 0;
ROUND: add.u32 %w, %s, 32; mad.lo.u32 %w, %n, 4, %w; setp.lt.u32 %q, %i, 96; @!%q bra ARRIVE;
atom.shared.add.u32 %v, [%w], %i;
ARRIVE: mbarrier.arrive.shared.b64 %d, [%s]; and.b32 %v, %n, 1;
SPIN: mbarrier.try_wait.parity.shared.b64 %q, [%s], %vHINT; @!%q bra SPIN;
ld.shared.u32 %v, [%w]; add.u32 %j, %j, %v; add.u32 %n, %n, 1; setp.lt.u32 %q, %n, 6; @%q bra ROUND;
add.s64 %a, %a, %o; st.global.u32 [%a], %j;"""


@pytest.mark.parametrize("hint", ["", ", 1000000"])
def test_phases_of_an_mbarrier_follow_each_other(tier: str, hint: str) -> None:
    """A limit of the time to wait changes nothing."""
    assert run(PHASES.replace("HINT", hint), 1, 128, 128, tier) == [6 * sum(range(96))] * 128


STATES = """@!%z mbarrier.init.shared.b64 [%s], 65; bar.sync 0; setp.lt.u32 %q, %i, 2;
@%q mbarrier.arrive_drop.shared.b64 %d, [%s]; @!%q mbarrier.arrive.shared.b64 %d, [%s];
mbarrier.pending_count.b64 %v, %d; bar.sync 0; @%z bra WAIT;
mbarrier.expect_tx.relaxed.cta.shared.b64 [%s], 48; mbarrier.arrive.noComplete.shared.b64 %t, [%s], 1;
mbarrier.test_wait.shared.b64 %q, [%s], %d; @%q add.u32 %v, %v, 1000;
mbarrier.complete_tx.relaxed.cta.shared.b64 [%s], 16; mbarrier.complete_tx.relaxed.cta.shared.b64 [%s], 32;
mbarrier.arrive.shared.b64 _, [%s];
WAIT: mbarrier.test_wait.shared.b64 %q, [%s], %d; @!%q bra WAIT;
ld.shared.u64 %t, [%s]; cvt.u32.u64 %w, %t; xor.b32 %v, %v, %w; shr.u64 %t, %t, 32; cvt.u32.u64 %w, %t;
xor.b32 %v, %v, %w; mul.lo.u32 %j, %i, 8; mbarrier.inval.shared.b64 [%s];
add.s64 %a, %a, %o; st.global.u32 [%a], %v;"""


def test_an_mbarrier_counts_arrivals_that_drop_and_bytes(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    after = run(STATES, 1, 64, 64, tier)
    monkeypatch.setenv("PYMPSD_TIER", "numpy")
    assert after == run(STATES, 1, 64, 64, "numpy")
    assert len(set(after)) == 64


NAMED = """shr.u32 %j, %i, 6; add.u32 %n, %j, 3; mov.u32 %w, words; mad.lo.u32 %s, %i, 4, %w; and.b32 %v, %i, 63;
setp.lt.u32 %q, %v, 32; @%q mov.u32 %v, 7; @!%q mov.u32 %v, 5; add.u32 %v, %v, %j; and.b32 %w, %i, 63;
bar.sync %n, 64; xor.b32 %w, %i, 32; add.s64 %a, %a, %o; st.global.u32 [%a], %v; barrier.sync %n, 64;
mul.lo.u32 %w, %w, 4; cvt.u64.u32 %o, %w; ld.param.u64 %a, [p]; add.s64 %d, %a, %o; ld.global.u32 %w, [%d];
bar.sync 0; mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; st.global.u32 [%a], %w;"""


def test_warps_name_their_barriers_in_registers(tier: str) -> None:
    expected = [(5 if i % 64 < 32 else 7) + i // 64 for i in range(256)]
    assert run(NAMED, 1, 256, 256, tier) == expected


def test_lanes_that_wait_at_different_barriers_are_a_deadlock(tier: str) -> None:
    with pytest.raises(LaunchFailed, match="deadlock"):
        run("and.b32 %n, %i, 1; bar.sync %n;", 1, 64, 1, tier)


def test_an_arrival_without_a_count_is_refused(tier: str) -> None:
    with pytest.raises(LaunchFailed, match=r"bar\.arrive without a thread count"):
        run("bar.arrive 1;", 1, 64, 1, tier)


IN_LOOP = """mov.u32 %n, 0; mov.u32 %v, 0; and.b32 %j, %i, 3;
AGAIN: vadd4.u32.u32.u32.add %v, %tid.x, 0, %v; vadd.s32.s32.s32 %v, %ctaid.x, %v; add.u32 %n, %n, 1;
setp.le.u32 %q, %n, %j; @%q bra AGAIN;
bar.sync 0; mov.u32 %w, %ctaid.x; mad.lo.u32 %w, %w, 64, %i; mul.wide.u32 %o, %w, 4; add.s64 %a, %a, %o;
st.global.u32 [%a], %v;"""


def test_instructions_of_the_numpy_tier_are_in_loops_and_read_special_registers(tier: str) -> None:
    expected = [((i & 3) + 1) * (i + block) for block in range(3) for i in range(64)]
    assert run(IN_LOOP, 3, 64, 3 * 64, tier) == expected


BEHIND = """setp.lt.u32 %q, %i, 7; @%q bra LOW; add.u32 %v, %i, 1; bra JOIN;
LOW: mov.u32 %v, 5; bra JOIN;
JOIN: vadd4.u32.u32.u32.add %v, %i, 0, %v; mov.u32 %w, words; mad.lo.u32 %s, %i, 4, %w; st.shared.u32 [%s], %v;
bar.sync 0; xor.b32 %j, %i, 63; mad.lo.u32 %s, %j, 4, %w; ld.shared.u32 %v, [%s]; add.s64 %a, %a, %o;
st.global.u32 [%a], %v;"""


def test_a_barrier_is_behind_an_instruction_of_the_numpy_tier_in_a_block_where_lanes_join(tier: str) -> None:
    expected = [i + (5 if i < 7 else i + 1) for i in range(63, -1, -1)]
    assert run(BEHIND, 1, 64, 64, tier) == expected


WARPS = "mov.u32 %v, %nwarpid; add.s64 %a, %a, %o; st.global.u32 [%a], %v;"


def test_the_number_of_warps_is_that_of_a_multiprocessor(tier: str) -> None:
    assert run(WARPS, 1, 40, 40, tier) == [64] * 40
