"""A batch that the NumPy tier has begun continues as machine code when its kernel is compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes import SECONDS

from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.device.device import EmulatedDevice
from pympsd_server.backends.emulated.scheduling import kernel_run
from pympsd_server.ptx.compiled_tier.batches import selection
from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.continuation import Exits
from pympsd_server.ptx.compiled_tier.batches.selection import begin_batch, switch_tier
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from tests.backends.contract.port_user import Notified, PortUser
from tests.emulated.harness import HEADER, Device, Never, pack

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

TIERS = ()
MULTIPROCESSORS = 4
KERNEL = """.visible .entry k(.param .u64 p)
{{ .reg .b32 %i, %j, %v, %n, %s, %y, %b, %t, %c; .reg .b64 %a, %o, %w; .reg .pred %q, %odd; .reg .f64 %d;
.shared .align 4 .b8 s[512]; .local .align 8 .b8 l[8];
ld.param.u64 %a, [p]; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %t;
mul.wide.u32 %o, %i, 8; add.s64 %a, %a, %o; mov.u32 %y, s; mad.lo.u32 %s, %t, 4, %y; mov.u32 %c, 7;
st.shared.u32 [%s], %t; cvt.u64.u32 %w, %i; st.local.u64 [l], %w; mov.u32 %v, %i; and.b32 %j, %t, 1;
setp.eq.u32 %odd, %j, 1; cvt.rn.f64.u32 %d, %i; mov.u32 %j, 0;
{body}
ld.shared.u32 %n, [%s]; add.u32 %v, %v, %n; ld.local.u64 %w, [l]; cvt.u32.u64 %n, %w; add.u32 %v, %v, %n;
cvt.rzi.u32.f64 %n, %d; add.u32 %v, %v, %n; st.global.u32 [%a], %v; st.global.u32 [%a+4], %c; ret; }}"""
"""What lives across the loop: registers, uniform and varying, of 32 and 64 bits and predicates, and memory."""
ROUND = "mad.lo.u32 %v, %v, 5, 1; add.f64 %d, %d, 0d3FE0000000000000; @%odd add.u32 %v, %v, %c; add.u32 %c, %c, 3;"
BODIES = {
    "uniform": f"AGAIN: {ROUND} add.u32 %j, %j, 1; setp.lt.u32 %q, %j, 3000; @%q bra AGAIN;",
    "threads end": f"""AGAIN: {ROUND} add.u32 %j, %j, 1; setp.gt.u32 %q, %t, %j; @%q exit;
setp.lt.u32 %q, %j, 3000; @%q bra AGAIN;""",
    "first lanes end": f"""sub.u32 %n, %t, 32; setp.lt.u32 %q, %n, 5; @%q exit;
AGAIN: {ROUND} add.u32 %j, %j, 1; setp.lt.u32 %q, %j, 3000; @%q bra AGAIN;""",
    "lanes leave": f"""mad.lo.u32 %n, %t, 3, 2500;
AGAIN: {ROUND} add.u32 %j, %j, 1; setp.lt.u32 %q, %j, %n; @%q bra AGAIN;""",
    "warps leave": f"""mov.u32 %n, 3000; setp.lt.u32 %q, %t, 40; @%q mov.u32 %n, 2;
AGAIN: {ROUND} add.u32 %j, %j, 1; setp.lt.u32 %q, %j, %n; @%q bra AGAIN;""",
    "nested": f"""OUTER: mov.u32 %n, 0;
AGAIN: {ROUND} add.u32 %n, %n, 1; setp.lt.u32 %q, %n, %t; @%q bra AGAIN;
add.u32 %j, %j, 1; setp.lt.u32 %q, %j, 60; @%q bra OUTER;""",
    "barriers": f"""AGAIN: {ROUND} bar.sync 0; ld.shared.u32 %n, [%s]; add.u32 %n, %n, %v; bar.sync 0;
st.shared.u32 [%s], %n; add.u32 %j, %j, 1; setp.lt.u32 %q, %j, 1500; @%q bra AGAIN;""",
}


def begin(ptx: str, grid: int, block: int) -> tuple[Device, int, LoadedModule, LaunchSetup, np.ndarray[Any, Any]]:
    device = Device(1 << 20)
    address = device.put(np.zeros((grid * block, 2), "u4"))
    module = device.load(HEADER + ptx)
    setup = LaunchSetup((grid, 1, 1), (block, 1, 1), pack(module.program, "k", (address,)))
    return device, address, module, setup, np.arange(grid, dtype=np.int64) % MULTIPROCESSORS


def run(ptx: str, grid: int, block: int, tier: str, least_steps: int = 1) -> tuple[list[list[int]], int]:
    """Run a launch as one batch, in slices; return its result, and the blocks of code that NumPy ran.

    With the tier `auto` the kernel is compiled after the first slices, which run at least some blocks of code, for
    another launch.
    """
    device, address, module, setup, sm_of_block = begin(ptx, grid, block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMPSD_TIER", tier)
        batch = first = begin_batch(module, "k", setup, 0, sm_of_block)
        assert isinstance(first, Batch)
        has_ended = batch.step(0.002, Never())
        while not has_ended and first.steps < least_steps:
            has_ended = batch.step(0.0001, Never())
        if not has_ended and tier == "auto":
            patch.setenv("PYMPSD_TIER", "compiled")
            assert isinstance(begin_batch(module, "k", setup, 0, sm_of_block), CompiledBatch)
            patch.setenv("PYMPSD_TIER", "auto")
        deadline = time.monotonic() + SECONDS
        while not batch.step(0.005, Never()):
            assert time.monotonic() < deadline
            batch = switch_tier(batch, module, setup, 0, sm_of_block)
    return device.get(address, np.zeros((grid * block, 2), "u4")).tolist(), first.steps


@pytest.mark.parametrize(("grid", "block"), [(1, 96), (3, 80)])
@pytest.mark.parametrize("kind", BODIES)
def test_a_batch_continues_as_machine_code(kind: str, grid: int, block: int) -> None:
    """With the same registers and memory, wherever its threads are."""
    ptx = KERNEL.format(body=BODIES[kind])
    expected, all_steps = run(ptx, grid, block, "numpy")
    result, steps = run(ptx, grid, block, "auto")
    assert result == expected
    assert 0 < steps < all_steps


AHEAD = f""".reg .b32 %k; mov.u32 %k, 0;
OUTER: mad.lo.u32 %n, %v, 0x9E3779B1, %k; shr.u32 %n, %n, 27;
CHECK: setp.eq.u32 %q, %n, 0; @%q bra NEXT;
{ROUND} sub.u32 %n, %n, 1; and.b32 %y, %n, 1; setp.eq.u32 %q, %y, 0; @%q bra EVEN;
xor.b32 %v, %v, %k; add.f64 %d, %d, 0d3FF0000000000000; bra CHECK;
EVEN: mad.lo.u32 %v, %v, 3, %k; bra CHECK;
NEXT: add.u32 %k, %k, 1; setp.lt.u32 %q, %k, 300; @%q bra OUTER;"""
"""%k counts the rounds of all lanes of a warp, which do different numbers of inner rounds in each."""


@pytest.mark.parametrize("steps", [1700, 2500, 4000])
def test_lanes_that_ran_ahead_do_not_share_a_register(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """NumPy's bursts let lanes run ahead by rounds, so that their values of %k differ."""
    monkeypatch.setattr(selection, "_STEPS_TOGETHER", 0)
    ptx = KERNEL.format(body=AHEAD)
    expected, all_steps = run(ptx, 1, 64, "numpy")
    assert steps < all_steps
    assert run(ptx, 1, 64, "auto", steps)[0] == expected


def test_lanes_do_not_run_ahead_early_in_a_batch_that_may_be_taken_over() -> None:
    ptx = KERNEL.format(body=AHEAD)
    expected, all_steps = run(ptx, 1, 64, "numpy")
    result, steps = run(ptx, 1, 64, "auto", 4000)
    assert result == expected
    assert steps < all_steps


LOCKED = f""".reg .b32 %k, %lane; .reg .pred %skips; and.b32 %lane, %t, 31; mov.u32 %k, 0;
st.shared.u32 [s+508], 0; bar.sync 0;
AGAIN: and.b32 %n, %k, 31; setp.ne.u32 %skips, %n, %lane; @%skips bra NEXT;
LOCK: atom.shared.cas.b32 %n, [s+508], 0, 1; setp.ne.u32 %q, %n, 0; @%q bra LOCK;
{ROUND} atom.shared.exch.b32 %n, [s+508], 0;
NEXT: add.u32 %k, %k, 1; setp.lt.u32 %q, %k, 3000; @%q bra AGAIN;"""
"""Lanes take a lock in turn; while one spins for it, bursts let the others run ahead by rounds."""


def test_lanes_of_a_warp_stay_together_while_their_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class HeldQueue:
        def add(self, facilities: object, size: int, compile_queued: Callable[..., None], drop: object) -> None:
            held.append(compile_queued)

    held: list[Callable[..., None]] = []
    monkeypatch.setattr(selection, "_queue", HeldQueue())
    monkeypatch.setattr(selection, "_SECONDS_BEFORE_COMPILING", 0.0)
    monkeypatch.setattr(selection, "_STEPS_TOGETHER", 2048)
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    ptx = KERNEL.format(body=LOCKED)
    device, address, module, setup, sm_of_block = begin(ptx, 1, 96)
    batch = first = begin_batch(module, "k", setup, 0, sm_of_block)
    assert isinstance(first, Batch)
    while first.steps < 4000:
        assert not batch.step(0.0, Never())
        batch = switch_tier(batch, module, setup, 0, sm_of_block)
    (compile_queued,) = held
    compile_queued(lambda: False)
    while not batch.step(0.0 if batch is first else SECONDS, Never()):
        batch = switch_tier(batch, module, setup, 0, sm_of_block)
    assert first.steps < 5000
    assert device.get(address, np.zeros((96, 2), "u4")).tolist() == run(ptx, 1, 96, "numpy")[0]


@pytest.mark.parametrize("kind", ["uniform", "barriers"])
def test_a_batch_of_several_threads_of_the_host_continues_as_machine_code(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its threads have room for more blocks than there are."""
    monkeypatch.setenv("PYMPSD_KERNEL_THREADS", "2")
    ptx = KERNEL.format(body=BODIES[kind])
    expected, all_steps = run(ptx, 40, 40, "numpy")
    result, steps = run(ptx, 40, 40, "auto")
    assert result == expected
    assert 0 < steps < all_steps


def test_the_exits_of_a_batch_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    created = []

    class CountedExits(Exits):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            created.append(self)

    monkeypatch.setattr(selection, "Exits", CountedExits)
    ptx = KERNEL.format(body=BODIES["barriers"])
    assert run(ptx, 3, 80, "auto")[0] == run(ptx, 3, 80, "numpy")[0]
    assert len(created) == 1


ENDLESS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p];
AGAIN: ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN; st.global.u32 [%a+4], 7; ret; }"""


def test_a_single_batch_that_loops_for_ever_becomes_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    device, address, module, setup, sm_of_block = begin(ENDLESS, 1, 64)
    batch, deadline = begin_batch(module, "k", setup, 0, sm_of_block), time.monotonic() + SECONDS
    while isinstance(batch, Batch):
        assert time.monotonic() < deadline
        assert not batch.step(0.01, Never())
        batch = switch_tier(batch, module, setup, 0, sm_of_block)
    assert isinstance(batch, CompiledBatch)
    assert not batch.step(0.01, Never())
    device.space.write(address, (1).to_bytes(4, "little"))
    assert batch.step(SECONDS, Never())
    assert device.get(address, np.zeros(2, "u4")).tolist() == [1, 7]


def test_the_scheduler_asks_in_its_short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    has_switched = threading.Event()

    def switch(*arguments: Any) -> Batch | CompiledBatch:
        batch = switch_tier(*arguments)
        if isinstance(batch, CompiledBatch):
            has_switched.set()
        return batch

    monkeypatch.setattr(kernel_run, "switch_tier", switch)
    device = EmulatedDevice(describe("H200")[0], 0)
    waits, other = PortUser.on(device, client=1), PortUser.on(device, client=1)
    word = other.words()
    waits.launch("until", word, 1, block=(64, 1, 1))
    try:
        assert has_switched.wait(SECONDS)
    finally:
        other.put(word, 1)
        assert waits.synchronize() == Result.SUCCESS
        device.close()


def test_a_batch_runs_the_next_blocks_in_its_places_unless_another_kernel_reserves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    device = EmulatedDevice(describe("H200")[0], 0)
    user = PortUser.on(device, multiprocessors=1)  # space for two blocks of 1,024 threads
    word, streams = user.words(), [user.context.create_stream(True, 0) for _ in range(3)]
    shape = {"grid": (8, 1, 1), "block": (1024, 1, 1)}
    try:
        user.launch("until", word, 1, stream=streams[0], **shape)
        user.launch("store", word, 1, stream=streams[1], grid=(2, 1, 1), block=(1024, 1, 1), cooperative=True)
        stored = Notified()
        streams[1].notify(stored)
        assert stored.stays_silent()
        user.put(word, 1, stream=streams[2])
        assert user.synchronize() == Result.SUCCESS
        traces = [(trace.kernel, trace.first_block, trace.blocks) for trace in device.batch_traces]
        assert traces == [("until", 0, 2), ("store", 0, 2), *(("until", first, 2) for first in (2, 4, 6))]
    finally:
        device.close()


COUNTED = """.visible .entry k(.param .u64 p)
{ .reg .b32 %b, %v; .reg .b64 %a, %o; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %b, %ctaid.x;
mul.wide.u32 %o, %b, 4; add.s64 %o, %a, %o; red.global.add.u32 [%o+4], 1;
AGAIN: ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN; ret; }"""


def test_blocks_that_follow_are_not_those_of_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first batch waits there is space for a small second one."""
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    device, blocks, block = EmulatedDevice(describe("H200")[0], 0), 4000, 256
    user = PortUser.on(device)
    user._module = user.context.load_module((HEADER + COUNTED).encode())
    words, streams = user.words(blocks + 1), [user.context.create_stream(True, 0) for _ in range(2)]
    try:
        user.put(words, 1)
        user.launch("k", words, block=(block, 1, 1))  # batches of kernels that are compiled are larger
        user.put(words, 0)
        assert user.synchronize() == Result.SUCCESS
        before = len(device.batch_traces)
        user.launch("k", words, stream=streams[0], grid=(blocks, 1, 1), block=(block, 1, 1))
        deadline = time.monotonic() + SECONDS
        while len(device.batch_traces) < before + 2:
            assert time.monotonic() < deadline
            user.word(words, stream=streams[1])
        user.put(words, 1, stream=streams[1])
        assert user.synchronize() == Result.SUCCESS
        counts = np.frombuffer(user.read(words + 4, 4 * blocks), np.uint32)
        assert counts.tolist() == [2 * block, *[block] * (blocks - 1)]
        assert sum(trace.blocks for trace in list(device.batch_traces)[before:]) == blocks
    finally:
        device.close()


MEETINGS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %t, %v, %sum, %j, %own, %others, %base; .reg .b64 %a, %o; .reg .pred %even, %q;
.shared .align 4 .b8 s[256];
ld.param.u64 %a, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 8; add.s64 %a, %a, %o; mov.u32 %base, s;
mad.lo.u32 %own, %t, 4, %base; xor.b32 %others, %own, 4; and.b32 %v, %t, 1; setp.eq.u32 %even, %v, 0;
mov.u32 %j, 0; mov.u32 %sum, 0;
AGAIN: add.u32 %v, %t, %j; @%even bra EVEN;
st.volatile.shared.u32 [%own], %v; bar.warp.sync -1; ld.volatile.shared.u32 %v, [%others]; bar.warp.sync -1; bra ON;
EVEN: st.volatile.shared.u32 [%own], %v; bar.warp.sync -1; ld.volatile.shared.u32 %v, [%others]; bar.warp.sync -1;
ON: mad.lo.u32 %sum, %sum, 3, %v; add.u32 %j, %j, 1; setp.lt.u32 %q, %j, 4; @%q bra AGAIN;
st.global.u32 [%a], %sum; ret; }"""
"""The lanes of two branches exchange values: they meet at two barriers, before and after they read."""


def test_lanes_that_meet_at_two_places_continue_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is taken over at each possible moment, so also when some of the lanes have been released."""
    threads, numbers = 40, np.arange(40, dtype="u4")
    device, address, module, setup, sm_of_block = begin(MEETINGS, 1, threads)
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    begin_batch(module, "k", setup, 0, sm_of_block)
    monkeypatch.setenv("PYMPSD_TIER", "auto")
    expected = np.zeros(threads, "u4")
    for number in range(4):
        expected = expected * 3 + (numbers ^ 1) + number
    switches = steps = 0
    while True:
        batch: Batch | CompiledBatch = Batch(module, "k", setup, 0, sm_of_block)
        if any(batch.step(0, Never()) for _ in range(steps)):
            break
        batch = switch_tier(batch, module, setup, 0, sm_of_block)
        switches += isinstance(batch, CompiledBatch)
        while not batch.step(1.0, Never()):
            pass
        np.testing.assert_array_equal(device.get(address, np.zeros((threads, 2), "u4"))[:, 0], expected, str(steps))
        steps += 1
    assert switches > 2
