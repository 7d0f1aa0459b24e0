"""Client processes that want the device at the same time: which one ran when, and where, by the executor's trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define

from pympsd.wire.executor_messages import Attach, Attached, BatchTrace
from tests.executor.executor_owner import GENERATION, SECONDS, ExecutorOwner
from tests.executor.raw_client import EMPTY, ENDLESS, RawClient

ROOT = Path(__file__).resolve().parents[2]
BLOCKS_OF_A_BATCH = 32
"""Of 1,024 threads each; 16 multiprocessors hold just these, so a context has one batch resident at a time."""
ROUNDS = 150
"""Of the kernel's loop: with these a batch lasts some slices of the scheduler."""


@pytest.fixture
def executor(start: Callable[..., ExecutorOwner], monkeypatch: pytest.MonkeyPatch) -> ExecutorOwner:
    """An executor of each test's own: its trace begins with the test. Batches have the sizes of the NumPy tier."""
    monkeypatch.setenv("PYMPSD_TIER", "numpy")
    return start().ready()


@define
class ContenderProcess:
    """A process that plays the client of a context."""

    process: subprocess.Popen[str]
    context: int

    def ask(self, order: str) -> str:
        """Send an order, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.listen()

    def listen(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the contender has ended"
        return line.strip()

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()  # type: ignore[union-attr]


Contend = Callable[..., ContenderProcess]


@pytest.fixture
def contend(executor: ExecutorOwner) -> Iterator[Contend]:
    """Start client processes of the executor."""
    started: list[ContenderProcess] = []

    def begin(context: int, stream_priority: int | None = None, **limits: int) -> ContenderProcess:
        answer, fds = executor.ask(Attach, **executor.request(context, context, True, **limits))
        assert isinstance(answer, Attached), answer
        words = [*fds, context, GENERATION, answer.shared_bytes, "" if stream_priority is None else stream_priority]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.executor.contender", *map(str, words)],
            cwd=ROOT,
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for fd in fds:
            os.close(fd)
        started.append(ContenderProcess(process, context))
        assert started[-1].listen() == "ready"
        return started[-1]

    yield begin
    for contender in started:
        contender.close()


def batches_of(executor: ExecutorOwner, context: int) -> list[BatchTrace]:
    """Return the batches a context began."""
    return [batch for batch in executor.trace().batches if batch.context == context]


def wait_for_batches(executor: ExecutorOwner, context: int, count: int) -> None:
    """Wait until a context has begun this number."""
    limit = time.monotonic() + SECONDS
    while len(batches_of(executor, context)) < count:
        assert time.monotonic() < limit, "its batches do not begin"


def test_a_high_stream_below_normal_does_not_overtake_a_normal_default_stream(
    executor: ExecutorOwner, contend: Contend
) -> None:
    below = contend(1, stream_priority=-5, priority=1, multiprocessors=16)
    normal = contend(2, multiprocessors=16)
    below.ask(f"work {600 * BLOCKS_OF_A_BATCH} 1024 {ROUNDS}")
    wait_for_batches(executor, below.context, 3)
    normal.ask(f"work {80 * BLOCKS_OF_A_BATCH} 1024 {ROUNDS}")
    normal.ask("wait")
    batch_traces = batches_of(executor, normal.context)
    assert [batch.first_block for batch in batch_traces] == [32 * number for number in range(80)]
    assert {batch.priority for batch in batch_traces} == {0}
    first, last = batch_traces[0].sequence, batch_traces[-1].sequence
    wait_for_batches(executor, below.context, len(batches_of(executor, below.context)) + 1)  # it still had work to do
    ours = batches_of(executor, below.context)
    assert {(batch.priority, batch.kernel) for batch in ours} == {(1, "work")}
    meanwhile = [batch for batch in ours if first < batch.sequence < last]
    # One turn for sixteen is what it has next to a normal one: little, but something.
    assert 1 <= len(meanwhile) <= len(batch_traces) // 4
    # The first came only when the normal one had gone first, and again.
    assert meanwhile[0].sequence > batch_traces[2].sequence


def test_two_clients_of_limited_multiprocessors_run_apart(executor: ExecutorOwner, contend: Contend) -> None:
    half = [contend(context, multiprocessors=66) for context in (1, 2)]
    third = contend(3, multiprocessors=10)
    for contender in (*half, third):
        contender.ask("work 400 32 3")
    ran_on = [frozenset(map(int, contender.ask("wait").split())) for contender in (*half, third)]
    traced = executor.trace().contexts
    assert [entry.context for entry in traced] == [1, 2, 3]
    assert [frozenset(entry.multiprocessors) for entry in traced] == ran_on
    assert ran_on[0] | ran_on[1] == frozenset(range(132))
    assert not ran_on[0] & ran_on[1]
    assert len(ran_on[2]) == 10


def test_no_context_ever_has_more_blocks_resident_than_it_has_slots(executor: ExecutorOwner) -> None:
    clients = [executor.attach(client=number, context=number, multiprocessors=number) for number in (1, 2, 3)]
    for client in clients:
        module, _ = client.load()
        for threads in (32, 1024):
            stream = client.handle()
            client.send("CREATE_STREAM", stream, 1, 0)
            client.launch(module, ENDLESS, stream=stream, grid=(10_000, 1, 1), block=(threads, 1, 1))
    for client in clients:
        wait_for_batches(executor, client.context, 1)
    limit, slices = time.monotonic() + SECONDS, executor.trace().counters["slices"]
    while executor.trace().counters["slices"] < slices + 60:  # time in which more could begin
        assert time.monotonic() < limit
    for traced in executor.trace().contexts:
        assert traced.slots == 32 * traced.context == 32 * len(traced.multiprocessors)
        assert 0 < traced.resident_high_water <= traced.slots
    # Endless blocks never leave, so what began is what is resident.
    for client in clients:
        assert sum(batch.blocks for batch in batches_of(executor, client.context)) <= 32 * client.context


def test_the_trace_contains_living_contexts_and_past_batches(executor: ExecutorOwner, client: RawClient) -> None:
    raw_client = executor.attach(client=2, context=7, multiprocessors=3)
    module, _ = raw_client.load()
    raw_client.launch(module, EMPTY, grid=(5, 1, 1))
    raw_client.good("SYNCHRONIZE_CONTEXT")
    trace = executor.trace()
    assert [(context.context, context.multiprocessors) for context in trace.contexts] == [
        (1, tuple(range(132))),
        (7, (0, 1, 2)),
    ]
    assert [context.resident_high_water for context in trace.contexts] == [0, 5]
    assert trace.batches == (BatchTrace(1, 7, "empty", 0, 5, 0),)
    assert trace.counters["batches"] == trace.counters["kernels_finished"] == 1
    executor.drop(2)
    later = executor.trace()
    assert [context.context for context in later.contexts] == [client.context]
    assert later.batches == trace.batches
    assert later.counters["contexts"] == 1


def test_the_trace_keeps_the_latest_batches_and_fits_its_message(executor: ExecutorOwner) -> None:
    client = executor.attach(client=1 << 40, context=1 << 41)
    name = "n" * 500
    module, _ = client.load(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry " + name + "() { ret; }\n"
    )
    for _ in range(5000):
        client.launch(module, 0)
    client.good("SYNCHRONIZE_CONTEXT")
    batches = executor.trace().batches
    assert [batch.sequence for batch in batches] == list(range(5000 - 4096 + 1, 5001))
    assert {batch.kernel for batch in batches} == {"n" * 100}
