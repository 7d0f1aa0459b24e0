"""Containment of fatal faults against executors that are slow, stuck or gone: bounded, one recovery at a time."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.mind.phases import Phase
from pympsd_server.mind.roster import Client
from pympsd_server.service.containment import TEARDOWN_SECONDS, Containment
from pympsd_server.service.executors import ExecutorError
from pympsd_server.service.server import Server


@define
class _Executor:
    """Answers, never does (``stuck``), or says that it cannot stop what runs (``busy``)."""

    generation: int = 1
    stuck: bool = False
    busy: bool = False
    told: list[Terminate] = field(factory=list)

    async def ask(self, request: int, message: Terminate) -> None:
        if self.stuck:
            await trio.sleep_forever()
        if self.busy:
            raise ExecutorError(Result.ERROR_LAUNCH_TIMEOUT, "a kernel that never ends")
        self.told.append(message)


@define
class _Executors:
    """One executor a device; starting and ending one takes a while."""

    now: dict[int, _Executor] = field(factory=dict)
    retired: list[int] = field(factory=list)
    started: list[int] = field(factory=list)

    def running(self, device: int) -> _Executor | None:
        return self.now.get(device)

    def next_request(self) -> int:
        return 1

    async def retire(self, device: int) -> None:
        if device in self.now:
            self.retired.append(device)
            await trio.sleep(0.1)
            self.now.pop(device, None)

    async def of(self, device: int) -> _Executor:
        if device not in self.now:
            await trio.sleep(0.3)
            self.started.append(device)
            self.now[device] = _Executor(generation=2)
        return self.now[device]


@define
class _Notes:
    """The link to the daemon and the log: what was said."""

    statuses: list[str] = field(factory=list)

    def status(self, status: str) -> None:
        self.statuses.append(status)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: None


def _serving(nursery: trio.Nursery, executors: _Executors, devices: int) -> tuple[Server, Containment, _Notes]:
    notes = _Notes()
    link: Any = notes
    server = Server(link, link, describe(f"{devices}xH200"), ThreadPercentage(), {})
    either: Any = executors
    server.executors = either
    server.containment = Containment(server, nursery)
    server.phase = Phase.SERVING
    return server, server.containment, notes


def _client(server: Server, serial: int, *devices: int) -> Client:
    client = server.roster.arrive(serial, 100 + serial, 0, {})
    for device in devices:
        server.roster.open_context(client, device, 1)
    return client


async def test_an_executor_that_does_not_answer_keeps_nothing_from_the_others(autojump_clock: object) -> None:
    executors = _Executors({0: _Executor(stuck=True), 1: _Executor()})
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        _client(server, 1, 0, 1)
        _client(server, 2, 1)
        culprit = _client(server, 3, 1)
        (serial,) = culprit.contexts
        containment.context_faulted(serial, Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        told = {message.context: message.code for message in executors.now[1].told}
        assert told == {2: 700, 3: 700, 4: 700}
        await trio.sleep(TEARDOWN_SECONDS + 1)
        assert executors.retired == [0]


async def test_an_executor_that_cannot_stop_what_runs_is_killed(autojump_clock: object) -> None:
    executors = _Executors({0: _Executor(), 1: _Executor(busy=True)})
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        client = _client(server, 1, 0, 1)
        containment.context_faulted(min(client.contexts), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(1)
        assert executors.retired == [1]


async def test_a_fault_during_a_recovery_waits_for_it_and_spares_what_was_made_anew(autojump_clock: object) -> None:
    executors = _Executors({0: _Executor(), 1: _Executor()})
    async with trio.open_nursery() as nursery:
        server, containment, notes = _serving(nursery, executors, 2)
        first, second = _client(server, 1, 0), _client(server, 2, 1)
        containment.context_faulted(next(iter(first.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        server.lost_client(first, met=True)
        await trio.sleep(0.2)  # in the midst of making device 0 anew
        containment.context_faulted(next(iter(second.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        server.lost_client(second, met=True)
        await trio.sleep(5)
        assert (executors.retired, executors.started) == ([0, 1], [0, 1])
        assert notes.statuses == ["FAULT", "ACTIVE"]
        assert not containment.active


async def test_while_the_server_leaves_a_device_is_free_again_for_who_is_still_here(autojump_clock: object) -> None:
    executors = _Executors({0: _Executor(), 1: _Executor()})
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        culprit, other = _client(server, 1, 0), _client(server, 2, 1)
        server.leave(forced=False)
        containment.context_faulted(next(iter(culprit.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        assert containment.refusal(other, 0) is not None
        server.lost_client(culprit, met=True)
        await trio.sleep(1)
        assert executors.retired == [0]
        assert executors.started == []
        assert containment.refusal(other, 0) is None
