"""Blocks of a compiled kernel on several threads: what must be the same as with one, and what may differ."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.selection import begin_batch
from pympsd_server.ptx.compiled_tier.native_runtime import CACHE_LINE
from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault
from pympsd_server.ptx.runtime.batch_state import LaunchSetup
from tests.emulated.harness import HEADER, Device, Never, pack, three
from tests.emulated.test_compiled_tier import LOCKS

pytest.importorskip("llvmlite", reason="the extra `compiled`, which `test` has, is not installed")

LIMIT_SECONDS = 60
MULTIPROCESSORS = 132


@pytest.fixture(autouse=True, params=[2, 4])
def _threads(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("PYMPSD_TIER", "compiled")
    monkeypatch.setenv("PYMPSD_KERNEL_THREADS", str(request.param))


def begin(
    device: Device, ptx: str, grid: int, block: int, *arguments: Any, batch_blocks: int | None = None
) -> CompiledBatch:
    """Begin a launch as one batch of all blocks, or of `batch_blocks`, in whose places the others follow."""
    module, blocks = device.load(HEADER + ptx), batch_blocks or grid
    setup = LaunchSetup(three(grid), three(block), pack(module.program, "k", arguments))
    batch = begin_batch(module, "k", setup, 0, np.arange(blocks) % MULTIPROCESSORS)
    assert isinstance(batch, CompiledBatch)
    batch.add_waves(grid // blocks - 1, blocks)
    return batch


def run(batch: CompiledBatch) -> None:
    """Run a batch in slices as the scheduler's."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not batch.step(0.001, Never()):
        assert time.monotonic() < deadline


MANY = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %b, %n, %v, %r; .reg .b64 %a, %o; .reg .f32 %f; .reg .pred %q; ld.param.u64 %a, [p];
mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %i, %tid.x; mad.lo.u32 %i, %b, %n, %i; mov.u32 %r, 0;
AGAIN: mad.lo.u32 %v, %i, 747796405, %r; shr.u32 %v, %v, 22; mul.wide.u32 %o, %v, 4; add.s64 %o, %a, %o;
red.global.add.u32 [%o], 1; atom.global.max.u32 %n, [%o+4096], %i; red.global.xor.b32 [%o+8192], %i;
add.u32 %r, %r, 1; setp.lt.u32 %q, %r, 8; @%q bra AGAIN;
cvt.rn.f32.u32 %f, %i; red.global.add.f32 [%a+12288], %f; ret; }"""
GRID = 3000


def _counts(device: Device, address: int) -> np.ndarray[Any, Any]:
    return device.get(address, np.zeros(3073, "u4"))


@pytest.fixture(scope="module")
def numpy_counts() -> np.ndarray[Any, Any]:
    """What the NumPy tier makes of MANY, which is each float in the order of blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYMPSD_TIER", "numpy")
        device = Device(1 << 20)
        address = device.put(np.zeros(3073, "u4"))
        device.launch(device.load(HEADER + MANY), "k", GRID, 64, address)
        return _counts(device, address)


def test_atomics_of_many_blocks_lose_nothing(numpy_counts: np.ndarray[Any, Any]) -> None:
    deadline, joined = time.monotonic() + LIMIT_SECONDS, 1
    while joined < 2:  # the system may run the other thread too late for one launch
        assert time.monotonic() < deadline
        device = Device(1 << 20)
        address = device.put(np.zeros(3073, "u4"))
        batch = begin(device, MANY, GRID, 64, address)
        run(batch)
        joined = batch._common.joined
        counts = _counts(device, address)
        assert counts[:3072].tolist() == numpy_counts[:3072].tolist()
        sums = counts[3072:].view("f4"), numpy_counts[3072:].view("f4")
        np.testing.assert_allclose(*sums, rtol=1e-3)


@pytest.mark.parametrize("one", ["thread", "multiprocessor"])
def test_atomics_of_floats_come_in_the_order_of_blocks_on_one_thread(
    monkeypatch: pytest.MonkeyPatch, numpy_counts: np.ndarray[Any, Any], one: str
) -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(3073, "u4"))
    if one == "thread":
        monkeypatch.setenv("PYMPSD_KERNEL_THREADS", "1")
        device.multiprocessors = MULTIPROCESSORS
    device.launch(device.load(HEADER + MANY), "k", GRID, 64, address)
    assert _counts(device, address).tolist() == numpy_counts.tolist()


GRID_SYNC = """.visible .entry k(.param .u64 p)
{ .reg .b32 %n, %v, %i, %t, %due; .reg .b64 %a; .reg .pred %q, %other; ld.param.u64 %a, [p];
mov.u32 %n, %nctaid.x; mov.u32 %i, 0; mov.u32 %due, 0; mov.u32 %t, %tid.x; setp.ne.u32 %other, %t, 0;
AGAIN: bar.sync 0; add.u32 %due, %due, %n; @%other bra MET;
membar.gl; red.global.add.u32 [%a], 1;
WAIT: ld.acquire.gpu.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %due; @%q bra WAIT;
MET: bar.sync 0; ld.volatile.global.u32 %v, [%a]; setp.lt.u32 %q, %v, %due; @!%q bra GOOD;
red.global.add.u32 [%a+4], 1;
GOOD: add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 20; @%q bra AGAIN; ret; }"""


@pytest.mark.parametrize("blocks", [3, 9, 17, 64, 700])
def test_blocks_on_several_threads_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the NumPy tier took a block over")

    monkeypatch.setattr("pympsd_server.ptx.compiled_tier.batches.batch.Batch", refuse)
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    batch = begin(device, GRID_SYNC, blocks, 64, address)
    run(batch)
    assert device.get(address, np.zeros(2, "u4")).tolist() == [20 * blocks, 0]
    # Each block needs a slot, however many each worker has taken at once.
    assert blocks <= batch._common.next_slot <= len(batch._slots) < 2 * blocks


def test_lanes_that_spin_for_a_lock_of_a_lane_of_their_warp_end() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    run(begin(device, LOCKS, 6, 64, address))
    assert device.get(address, np.zeros(2, "u4")).tolist() == [0, 6 * 64]


SHARED = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v; .reg .b64 %a; .shared .align 4 .b8 s[20]; ld.param.u64 %a, [p]; st.shared.u32 [s], 7;
bar.sync 0; ld.shared.u32 %v, [s]; red.global.add.u32 [%a], %v; ret; }"""


WORK = """mov.u32 %n, 0;
WORK: mad.lo.u32 %v, %v, 5, %n; add.u32 %n, %n, 1; setp.lt.u32 %q, %n, {rounds}; @%q bra WORK;"""
FAULTS = (
    """.visible .entry k(.param .u64 p, .param .u32 first)
{ .reg .b32 %b, %n, %v, %first; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p]; ld.param.u32 %first, [first];
mov.u32 %b, %ctaid.x; mov.u32 %v, %tid.x; """
    + WORK.format(rounds=500)
    + """
red.global.add.u32 [%a], %v; setp.ge.u32 %q, %b, %first; @%q add.s64 %a, %a, 4096; st.global.u32 [%a], %v; ret; }"""
)


@pytest.mark.parametrize("batch_blocks", [2000, 100])
@pytest.mark.parametrize("first", [0, 777, 1999])
def test_the_first_block_that_faults_is_named(first: int, batch_blocks: int) -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(1, "u4"))
    with pytest.raises(DeviceFault) as caught:
        run(begin(device, FAULTS, 2000, 64, address, first, batch_blocks=batch_blocks))
    assert caught.value.block == (first, 0, 0)
    assert caught.value.thread == (0, 0, 0)
    assert f"{address + 4096:#x}" in str(caught.value)


ENDLESS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v; .reg .b64 %a; .reg .pred %q; ld.param.u64 %a, [p];
AGAIN: ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra AGAIN; red.global.add.u32 [%a+4], 1; ret; }"""


def test_cancelling_stops_all_threads() -> None:
    device, cancel = Device(1 << 20), threading.Event()
    batch = begin(device, ENDLESS, 500, 32, device.put(np.zeros(2, "u4")))
    assert not batch.step(0.02, cancel)
    timer = threading.Timer(0.02, cancel.set)
    timer.start()
    with pytest.raises(Cancelled):
        batch.step(LIMIT_SECONDS, cancel)
    timer.join()
    assert batch._common.running == 0


def test_kernels_that_have_turns_both_make_progress() -> None:
    """A kernel waits for what another one, of another client, writes in its turns; nothing runs between turns."""
    device = Device(1 << 20)
    address = device.put(np.zeros(2, "u4"))
    waiting = begin(device, ENDLESS, 40, 32, address)
    writing = begin(device, FAULTS, 4000, 64, address, 4000)
    deadline = time.monotonic() + LIMIT_SECONDS
    unfinished = [waiting, writing]
    while unfinished:
        assert time.monotonic() < deadline
        unfinished = [batch for batch in unfinished if not batch.step(0.001, Never())]
        assert waiting._common.running + writing._common.running == 0
    assert device.get(address, np.zeros(2, "u4"))[1] == 40 * 32


@pytest.mark.parametrize("threads", [32, 96, 250])
def test_blocks_of_two_threads_share_no_cache_line(threads: int) -> None:
    """Each barrier writes a block's part of these arrays: on a line of two blocks the threads would take turns."""
    device = Device(1 << 20)
    batch = begin(device, SHARED, 40, threads, device.put(np.zeros(40, "u4")))
    common = batch._common
    frames = common.frame_bytes * -(-threads // common.width)
    for first, stride in (
        (common.slot, batch._slots.strides[0]),
        (common.warp_states, common.states_bytes),
        (common.frame_slab, frames),
        (common.shared_slab, common.shared_frame),
        (common.workers, common.worker_bytes),
    ):
        assert (first % CACHE_LINE, stride % CACHE_LINE) == (0, 0)


def test_python_is_not_asked_for_warps_that_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of all warps for those that need Python took a tenth of the time, in which no thread runs a block."""
    device, steps, calls = Device(1 << 20), [], []
    monkeypatch.setattr(CompiledBatch, "_step_taken_over", lambda *_: steps.append(True))
    monkeypatch.setattr(CompiledBatch, "_serve", lambda *_: calls.append(True))
    batch = begin(device, FAULTS, 4000, 64, device.put(np.zeros(1, "u4")), 4000)
    run(batch)
    assert len(steps) > 1
    assert not calls


ESCAPES = """.visible .entry k(.param .u64 p)
{ .reg .b32 %i, %b, %n, %v; .reg .b64 %a, %o; .reg .pred %q; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x;
mov.u32 %i, %tid.x; mad.lo.u32 %i, %b, %n, %i; ld.param.u64 %a, [p];
mul.wide.u32 %o, %i, 4; add.s64 %a, %a, %o; mov.u32 %v, 5; vadd4.u32.u32.u32.add %v, %i, 0, %v;
st.global.u32 [%a], %v; ret; }"""


def test_instructions_that_escape_on_several_threads() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(40_000, "u4"))
    run(begin(device, ESCAPES, 500, 80, address))
    i = np.arange(40_000)
    assert device.get(address, np.zeros(40_000, "u4")).tolist() == (5 + i % 256 + i // 256).tolist()


POINTERS = """.visible .entry k(.param .u64 p)
{ .reg .b32 %v; .reg .b64 %a, %o; .reg .pred %q; ld.param.u64 %a, [p];
AGAIN: ld.acquire.sys.global.u64 %o, [%a]; setp.eq.u64 %q, %o, 0; @%q bra AGAIN;
ld.global.u32 %v, [%o]; red.global.add.u32 [%a+8], %v; ret; }"""


def test_all_threads_find_memory_that_is_allocated_meanwhile() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(4, "u4"))
    batch = begin(device, POINTERS, 600, 32, address)
    assert not batch.step(0.01, Never())
    late = []

    def allocate() -> None:
        late.append(device.put(np.full(1, 3, "u4")))
        device.space.write(address, late[0].to_bytes(8, "little"))

    timer = threading.Timer(0.01, allocate)
    timer.start()
    assert batch.step(LIMIT_SECONDS, Never())
    timer.join()
    assert device.get(address, np.zeros(4, "u4"))[2] == 600 * 32 * 3


def test_a_forked_process_has_threads_of_its_own() -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(40_000, "u4"))
    run(begin(device, ESCAPES, 500, 80, address))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(begin(device, ESCAPES, 500, 80, address))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


COUNT = """.visible .entry k(.param .u64 p)
{{ .reg .b32 %b, %n, %v; .reg .b64 %a, %o; .reg .pred %q; ld.param.u64 %a, [p]; mov.u32 %b, %ctaid.x; mov.u32 %v, %b;
{body} mul.wide.u32 %o, %b, 4; add.s64 %a, %a, %o; red.global.add.u32 [%a], 1; ret; }}"""


@pytest.mark.parametrize("body", ["", WORK.format(rounds=300)], ids=["straight", "with a loop"])
def test_each_of_the_blocks_that_follow_runs_once(body: str) -> None:
    device = Device(1 << 20)
    address = device.put(np.zeros(1200, "u4"))
    batch = begin(device, COUNT.format(body=body), 1200, 64, address, batch_blocks=100)
    run(batch)
    assert batch.first_block == 1100
    assert batch._common.is_straight == (not body)
    assert set(device.get(address, np.zeros(1200, "u4")).tolist()) == {64}
