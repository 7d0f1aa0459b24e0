"""Large copies by several threads: every byte once, the first error, no endless wait for room."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import wait_until

from pympsd.wire import records
from pympsd.wire.records import Record
from pympsd_client import driver as cuda
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import parallel_copy
from pympsd_client._command_stream.staging import GRAIN
from pympsd_client._objects import copies
from tests.client.conftest import ok
from tests.client.fake_executor import OPCODES, SHARED_BYTES, FakeExecutor

DONE = (cuda.CUresult.CUDA_SUCCESS,)
INVALID = (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,)


@given(st.integers(1, 1 << 20), st.integers(1, 8))
def test_slices_cover_all_bytes_once(count: int, threads: int) -> None:
    slices: list[tuple[int, int]] = []
    parallel_copy.copy_in_parallel(count, threads, lambda start, size, stop: slices.append((start, size)))
    assert len(slices) <= threads
    position = 0
    for start, size in sorted(slices):
        assert start == position
        position += size
    assert position == count


def test_half_the_cores_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (4, 2), (7, 3), (16, 4), (128, 4)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert parallel_copy.thread_count(1 << 30) == threads
        assert parallel_copy.thread_count(parallel_copy.PARALLEL_BYTES - 1) == 1


@pytest.mark.parametrize("first", [0, 2])
def test_the_first_error_ends_all_slices(first: int) -> None:
    failed = threading.Event()

    def copy(start: int, size: int, stop: threading.Event) -> None:
        if start == first * 4096:
            failed.set()
            raise CudaError(1, "no such address")
        assert failed.wait(30)
        assert stop.wait(30), "the other threads are stopped"

    with pytest.raises(CudaError, match="no such address"):
        parallel_copy.copy_in_parallel(3 * 4096, 3, copy)


def test_without_more_threads_the_caller_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sizes: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    parallel_copy.copy_in_parallel(5 * 4096, 4, lambda start, size, stop: sizes.append(size))
    assert sum(sizes) == 5 * 4096


def test_the_caller_copies_a_slice_that_its_helper_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[threading.Thread] = []
    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: late.append(thread))
    starts: list[int] = []
    parallel_copy.copy_in_parallel(3 * 4096, 3, lambda start, size, stop: starts.append(start))
    for item in late:
        begin(item)
        item.join(30)
    assert starts == [0, 4096, 8192], "and none twice"


def interrupt_the_wait(thread: int, has_left: threading.Event) -> None:
    """Press Ctrl-C when this thread waits for the others, or has left."""
    give_up = time.monotonic() + 30
    while not has_left.is_set() and time.monotonic() < give_up:
        if "wait" in sys._current_frames()[thread].f_code.co_name:
            signal.pthread_kill(thread, signal.SIGINT)
            return


def test_a_ctrl_c_during_the_wait_is_raised_after_the_helpers_have_ended() -> None:
    caller, begun, copied, remaining = threading.get_ident(), *(threading.Event() for _ in range(3))
    seen: list[bool] = []

    def copy(start: int, size: int, stop: threading.Event) -> None:
        if not start:
            assert begun.wait(30), "one that no other thread has begun would be the caller's too"
            copied.set()
        else:
            begun.set()
            assert copied.wait(30)
            for _ in range(30):  # one just before the wait would go unnoticed
                interrupt_the_wait(caller, remaining)
                if stop.wait(1) or remaining.is_set():
                    break
            seen.append(stop.is_set())
            interrupt_the_wait(caller, remaining)  # once more: it still waits
            seen.append(not remaining.is_set())

    with pytest.raises(KeyboardInterrupt):
        parallel_copy.copy_in_parallel(2 * 4096, 2, copy)
    remaining.set()
    assert seen == [True, True]


def test_a_ctrl_c_just_before_the_wait_is_raised_after_the_helpers_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait, begun, interrupted = parallel_copy._wait, threading.Event(), threading.Event()
    ended: list[bool] = []

    def interrupted_once(*arguments: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        wait(*arguments)

    def copy(start: int, size: int, stop: threading.Event) -> None:
        if start:
            begun.set()
            assert interrupted.wait(30)
            ended.append(stop.wait(30))
        else:
            assert begun.wait(30), "one that no other thread has begun would be the caller's too"

    monkeypatch.setattr(parallel_copy, "_wait", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        parallel_copy.copy_in_parallel(2 * 4096, 2, copy)
    assert ended == [True]


@pytest.fixture(params=[2, 4])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of threads that make copies of any size."""
    monkeypatch.setattr(copies, "thread_count", lambda count: request.param)
    return int(request.param)


@pytest.mark.parametrize("size", [1, 4097, (1 << 20) + 1, 40 << 20, (53 << 20) + 12345])
def test_parallel_copies_return_the_same_bytes(context: Any, threads: int, size: int) -> None:
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    back, address = np.zeros(size + 64, np.uint8), ok(cuda.cuMemAlloc(size))
    for copy in (cuda.cuMemcpyHtoD, lambda *arguments: cuda.cuMemcpyHtoDAsync(*arguments, 0)):
        source = sent.copy()
        assert copy(address, source, size) == DONE
        source[:] = 0  # it may change as soon as the call has returned
        back[:] = 0
        assert cuda.cuMemcpyDtoH(back, address, size) == DONE
        assert (back[:size] == sent).all()
        assert not back[size:].any()


def test_errors_of_parallel_copies_are_returned(context: Any, threads: int) -> None:
    size = 40 << 20
    address, host = ok(cuda.cuMemAlloc(size)), np.zeros(size + 1, np.uint8)
    assert cuda.cuMemcpyHtoD(address, host, size + 1) == INVALID
    assert cuda.cuMemcpyDtoH(host, address, size + 1) == INVALID
    assert cuda.cuMemcpyHtoD(address, host, size) == DONE
    assert cuda.cuCtxSynchronize() == DONE


def test_threads_make_parallel_copies_at_the_same_time(context: Any, threads: int) -> None:
    size, handle = 24 << 20, ok(cuda.cuCtxGetCurrent())
    wrong: list[int] = []

    def work(seed: int) -> None:
        ok((*cuda.cuCtxSetCurrent(handle), None))
        sent = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        back, address = np.zeros(size, np.uint8), ok(cuda.cuMemAlloc(size))
        for _ in range(3):
            ok((*cuda.cuMemcpyHtoD(address, sent, size), None))
            ok((*cuda.cuMemcpyDtoH(back, address, size), None))
            if not (back == sent).all():
                wrong.append(seed)
            back[:] = 0

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a copy waits for ever"
    assert not wrong


def test_a_thread_that_waits_for_room_notices_it_without_an_answer(executor: FakeExecutor) -> None:
    """No answer announces the room that another thread frees when it has copied out."""
    context = executor.context()
    transport = context.usable().transport
    kept = [transport.sequence() for _ in range(4)]
    for sequence in kept:
        assert transport.staging.take(sequence, SHARED_BYTES // 4, context, is_kept=True) is not None
    waits, slots = threading.Event(), []

    def wait_for_room() -> None:
        waits.set()
        slots.append(transport.take_slot(transport.sequence(), GRAIN, context))

    waiter = threading.Thread(target=wait_for_room)
    waiter.start()
    assert waits.wait(10)
    executor.send(records.pack_answer(OPCODES["QUERY_EVENT"], 1 << 40, 0))  # expected by no caller
    wait_until(lambda: executor.unread() == 0)  # the waiter reads
    transport.staging.release_on_answer(kept[0])
    transport.free_slot(kept[0])
    waiter.join(10)
    assert not waiter.is_alive(), "it still reads, and nothing comes"
    assert slots == [0]


def test_a_parallel_copy_leaves_no_slot_in_use(executor: FakeExecutor, threads: int) -> None:
    context, size = executor.context(), 3 * SHARED_BYTES + 5
    transport = context.usable().transport
    host = np.arange(size, dtype=np.uint32).astype(np.uint8)
    back = np.zeros(size, np.uint8)
    moved: dict[int, bytes] = {}

    def reply(record: Record) -> bytes:
        _, address, offset, count = executor.operands(record)
        if record.opcode == OPCODES["COPY_TO_DEVICE"]:
            moved[address] = executor.shared[offset : offset + count]
        else:
            executor.shared[offset : offset + count] = moved[address]
        return executor.answer(record)

    executor.reply = reply
    copies.copy_to_device(context, 0, 1 << 30, host.ctypes.data, size, wait=True)
    copies.copy_from_device(context, 0, back.ctypes.data, 1 << 30, size)
    assert (back == host).all()
    assert transport.staging.in_use == 0
