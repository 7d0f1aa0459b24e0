"""Threads that launch at the same time, and the ring of a real executor."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from processes import wait_until

from pympsd.wire.ring_layout import ASLEEP, HEAD, RING_BYTES, TAIL
from pympsd_client import driver as cuda
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.context import contexts
from tests.client.conftest import ok
from tests.client.launch_cache_executors import ONE, Counter, Launches, context, counter, devices, executors, launches
from tests.client.launch_cache_rig import SECONDS
from tests.client.test_client_streams import STORE, Kernels

__all__ = ["context", "counter", "devices", "executors", "launches"]

R = cuda.CUresult


# --- threads


def test_another_current_context_is_an_error(launches: Launches, context: Any, counter: Counter) -> None:
    call = launches.familiar(*counter.on(0))

    def elsewhere() -> list[tuple[Any, ...]]:
        answers = [cuda.cuLaunchKernel(*call)]
        other = ok(cuda.cuCtxCreate(None, 0, 1))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPushCurrent(context))
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxPopCurrent())
        answers.append(cuda.cuLaunchKernel(*call))
        ok(cuda.cuCtxDestroy(other))
        return answers

    with ThreadPoolExecutor(1) as thread:
        answers = thread.submit(elsewhere).result(SECONDS)
    assert [answer[0] for answer in answers] == [
        R.CUDA_ERROR_INVALID_CONTEXT, R.CUDA_ERROR_INVALID_HANDLE, R.CUDA_SUCCESS, R.CUDA_ERROR_INVALID_HANDLE,
    ]  # fmt: skip
    launches.familiar(*call)
    assert counter.count == 7


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads", "devices")
def test_threads_launch_in_contexts_of_their_own(launches: Launches) -> None:
    def work(number: int) -> bool:
        context = ok(cuda.cuCtxCreate(None, 0, number % 2))
        kernels, counter, stream = Kernels(), Counter(), ok(cuda.cuStreamCreate(1))
        store = ok(cuda.cuModuleGetFunction(kernels.module, b"store"))
        sent = np.random.default_rng(number).integers(0, 256, 100_000, np.uint8)
        back, address = np.zeros_like(sent), ok(cuda.cuMemAlloc(sent.nbytes))
        right = True
        for value in range(100):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            ok(cuda.cuLaunchKernel(store, *ONE, stream, ((int(kernels.result), 1000 * number + value), STORE), 0))
            if value % 5 == number:
                ok(cuda.cuMemcpyHtoD(address, sent, sent.nbytes))
                ok(cuda.cuMemcpyDtoH(back, address, sent.nbytes))
                right = right and bool((sent == back).all()) and kernels.read(stream) == 1000 * number + value
        right = right and counter.count == 100
        ok(cuda.cuCtxDestroy(context))
        return right

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [True] * 4
    assert (len(launches.in_python) < 800) == launches.native


@pytest.mark.usefixtures("busy_threads")
def test_threads_launch_in_one_context_while_plans_are_forgotten(
    launches: Launches, context: Any, counter: Counter
) -> None:
    def work(number: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))
        stream = ok(cuda.cuStreamCreate(1))
        for turn in range(300):
            ok(cuda.cuLaunchKernel(*counter.on(stream)))
            if turn % 50 == 10 * number:
                ok(cuda.cuStreamDestroy(ok(cuda.cuStreamCreate(1))))
        ok(cuda.cuStreamSynchronize(stream))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4), timeout=SECONDS)) == [None] * 4
    assert counter.count == 1200
    assert (len(launches.in_python) < 600) == launches.native


# --- the ring of a real executor


def _ring_of(context: Any) -> memoryview:
    ring = contexts[int(context)].usable().transport._ring
    assert ring is not None
    return ring._words


def test_an_executor_that_sleeps_takes_a_native_launch(
    launches: Launches, context: Any, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, words = launches.familiar(*counter.on(0)), _ring_of(context)
    transport = contexts[int(context)].usable().transport
    transmit, bells = transport._transmit, []

    def watched(*arguments: Any) -> int:
        bells.append(arguments)
        return transmit(*arguments)

    monkeypatch.setitem(transport.__dict__, "_transmit", watched)
    for _ in range(5):
        wait_until(lambda: words[ASLEEP // 8] != 0)
        launches.expect_familiar(*call)
        wait_until(lambda: words[HEAD // 8] == words[TAIL // 8])
    assert bells  # without them it would look again only after a while
    assert counter.count == 8


def test_a_full_ring_holds_launches_up(
    launches: Launches, devices: PrivateExecutors, context: Any, counter: Counter
) -> None:
    call, words = launches.familiar(*counter.on(0)), _ring_of(context)
    executor, count = devices._running[0]._process.pid, 6000
    wait_until(lambda: words[HEAD // 8] == words[TAIL // 8])

    def launch() -> int:
        ok(cuda.cuCtxSetCurrent(context))
        return [cuda.cuLaunchKernel(*call) for _ in range(count)].count((R.CUDA_SUCCESS,))

    os.kill(executor, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as thread:
            launched = thread.submit(launch)
            try:
                wait_until(lambda: RING_BYTES - (words[TAIL // 8] - words[HEAD // 8]) < 200)
                assert not launched.done()
            finally:
                os.kill(executor, signal.SIGCONT)
            assert launched.result(SECONDS) == count
    finally:
        os.kill(executor, signal.SIGCONT)
    assert counter.count == count + 3
