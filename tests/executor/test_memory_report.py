"""Memory reports: what clients hold is sent to an owner that asked for it, when it has changed."""

from __future__ import annotations

from collections.abc import Callable

from pympsd.devices.machine import describe
from pympsd.wire.executor_messages import (
    Attach,
    Attached,
    Detach,
    DropClient,
    ExecutorDone,
    ExecutorReady,
    ExecutorSetup,
    MemoryUsed,
    Ping,
)
from tests.executor.executor_owner import GENERATION, ExecutorOwner, current_build
from tests.executor.raw_client import ENDLESS, RawClient

Start = Callable[..., ExecutorOwner]


class Reports:
    """An executor that reports, and what it reported last."""

    def __init__(self, owner: ExecutorOwner) -> None:
        self.owner = owner
        self.held: dict[int, int] = {}
        self.utilization = -1
        build = current_build()
        owner.send(ExecutorSetup(build, 0, GENERATION, "emulated", describe("H200")[0], reports_memory=True))
        assert owner.receive()[0] == ExecutorReady(owner.process.pid)

    def next(self) -> tuple[object, tuple[int, ...]]:
        """Return the next message; a report is noted."""
        message, fds = self.owner.receive()
        if isinstance(message, MemoryUsed):
            self.held = message.clients
            assert message.utilization is not None
            self.utilization = message.utilization
        return message, fds

    def until(self, condition: Callable[[dict[int, int]], bool]) -> None:
        """Wait for a report that satisfies a condition."""
        while not condition(self.held):
            self.next()

    def attach(self, client: int) -> RawClient:
        """Attach a client with one context of the same number."""
        self.owner.send(Attach(request=client, **self.owner.request(client, client, True)))
        while True:
            answer, fds = self.next()
            if isinstance(answer, Attached):
                raw = RawClient.from_fds(fds, client, GENERATION, answer)
                self.owner._clients.append(raw)
                return raw


def test_the_report_follows_contexts_and_allocations(start: Start) -> None:
    reports = Reports(start())
    first = reports.attach(1)
    reports.until(lambda held: list(held) == [1])
    alone = reports.held[1]
    assert alone > 0
    address = first.allocate(64 << 20)
    reports.until(lambda held: held == {1: alone + (64 << 20)})
    reports.attach(2)
    reports.until(lambda held: held == {1: alone + (64 << 20), 2: alone})
    first.call("FREE", address)
    reports.until(lambda held: held == {1: alone, 2: alone})
    reports.owner.send(Detach(request=9, context=2))
    reports.until(lambda held: held == {1: alone})
    reports.owner.send(DropClient(request=10, client=1))
    reports.until(lambda held: held == {})


def test_many_changes_are_reported_in_few_messages(start: Start) -> None:
    reports = Reports(start())
    first = reports.attach(1)
    reports.until(lambda held: list(held) == [1])
    alone, output = reports.held[1], 0
    for _ in range(500):
        first.allocate(1 << 20)
    while reports.held != {1: alone + (500 << 20)}:
        reports.next()
        output += 1
    assert output < 100


def test_a_kernel_that_runs_is_utilization_until_it_ends(start: Start) -> None:
    reports = Reports(start())
    client = reports.attach(1)
    reports.until(lambda held: list(held) == [1])
    assert reports.utilization == 0
    module, _ = client.load()
    client.launch(module, ENDLESS)
    reports.until(lambda _: reports.utilization > 50)
    reports.owner.send(DropClient(request=9, client=1))
    reports.until(lambda held: held == {})
    reports.until(lambda _: reports.utilization == 0)


def test_an_owner_that_did_not_ask_receives_no_report(executor: ExecutorOwner) -> None:
    executor.attach().allocate(1 << 20)
    executor.drop(1)
    executor.send(Ping(99))
    assert executor.receive()[0] == ExecutorDone(99)
