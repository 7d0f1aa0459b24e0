"""Room made on a full device: never for a shortage that has passed, nor for a client that has gone."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import MAX_MEMORY, MemoryGroup, ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.eviction import FREED_SECONDS, attach_with_room, make_room
from pympsd_server.service.executor import ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord


@define
class _Executor:
    """Terminates a context in 10 ms; its client's memory is free some ``seconds`` later."""

    executors: _Executors
    seconds: float

    async def ask(self, request: int, message: Terminate) -> None:
        await trio.sleep(0.01)
        self.executors.nursery.start_soon(self.executors.free, message.context, self.seconds)


@define
class _Executors:
    nursery: trio.Nursery
    server: Server
    bytes_held: dict[int, int] = field(factory=dict)
    seconds: float = 0.0
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    @property
    def accounts(self) -> _Executors:
        return self

    def usage(self, device: int) -> dict[int, int]:
        return dict(self.bytes_held)

    def executor_of(self, context: ContextRecord) -> _Executor:
        return _Executor(self, self.seconds)

    def next_request(self) -> int:
        return 1

    async def free(self, context: int, seconds: float) -> None:
        await trio.sleep(seconds)
        for client in self.server.client_table.clients.values():
            if context in client.contexts:
                self.bytes_held[client.id] = 0
        self.changed.unpark_all()


@define
class _Log:
    said: list[tuple[str, int]] = field(factory=list)

    def info(self, event: str, **fields: Any) -> None:
        self.said.append((event, fields.get("pid", 0)))

    error = info

    def evicted(self) -> list[int]:
        return [pid for event, pid in self.said if event == "client_evicted"]


@define
class _Containment:
    server: Server
    executors: _Executors
    making_room: trio.Lock = field(factory=trio.Lock)


def _full(nursery: trio.Nursery, seconds: float = 0.0) -> tuple[Any, _Log]:
    """Return a full device: PIDs 101 (10) and 102 (8) have borrowed, 103 and 104 (1 each) are guaranteed 5 each."""
    log = _Log()
    server = Server(None, log, describe("H200"), ThreadPercentage(), {})  # type: ignore[arg-type]
    executors = _Executors(nursery, server, seconds=seconds)
    for client_id, soft, count in ((1, 0, 10), (2, 0, 8), (3, 5, 1), (4, 5, 1)):
        client = server.client_table.add_client(client_id, 100 + client_id, 0, {})
        client.groups = {0: (MemoryGroup(f"cgroup /{client_id}", MAX_MEMORY, soft),)}
        server.client_table.open_context(client, 0, 1)
        executors.bytes_held[client_id] = count
    return _Containment(server, executors), log


def _caller(containment: _Containment, client_id: int) -> ClientRecord:
    return containment.server.client_table.clients[client_id]


async def test_two_simultaneous_shortages_end_no_more_clients_than_one() -> None:
    answers = []
    async with trio.open_nursery() as nursery:
        containment, log = _full(nursery)

        async def ask(client_id: int) -> None:
            answers.append(await make_room(containment, 0, _caller(containment, client_id), 1))

        nursery.start_soon(ask, 3)
        nursery.start_soon(ask, 4)
    assert answers == [True, True]
    assert log.evicted() == [101]


async def test_a_second_shortage_that_is_larger_than_what_was_freed_ends_another() -> None:
    async with trio.open_nursery() as nursery:
        containment, log = _full(nursery)
        nursery.start_soon(make_room, containment, 0, _caller(containment, 3), 1)
        nursery.start_soon(make_room, containment, 0, _caller(containment, 4), 12)
    assert log.evicted() == [101, 102]


async def test_no_client_is_evicted_for_a_client_that_has_exited() -> None:
    async with trio.open_nursery() as nursery:
        containment, log = _full(nursery)
        caller = _caller(containment, 3)
        containment.server.client_table.remove_client(3)
        assert not await make_room(containment, 0, caller, 1)
    assert log.evicted() == []


async def test_a_client_that_was_ended_before_is_not_ended_again(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        containment, log = _full(nursery, seconds=60.0)  # its memory stays, for another one uses it
        before = trio.current_time()
        assert await make_room(containment, 0, _caller(containment, 3), 1)
        assert trio.current_time() - before < FREED_SECONDS + 1
        assert await make_room(containment, 0, _caller(containment, 3), 1)
        assert not await make_room(containment, 0, _caller(containment, 3), 1)
        nursery.cancel_scope.cancel()
    assert log.evicted() == [101, 102]


async def test_the_caller_tries_again_when_the_memory_is_free(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        containment, _ = _full(nursery, seconds=0.5)
        assert await make_room(containment, 0, _caller(containment, 3), 1)
        assert containment.executors.bytes_held[1] == 0


async def test_a_context_is_tried_a_few_times(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        containment, log = _full(nursery)
        tries = []

        async def attach() -> Any:
            tries.append(trio.current_time())
            raise ExecutorError(Result.ERROR_OUT_OF_MEMORY, "full", short=1)

        with pytest.raises(ExecutorError, match="full"):
            await attach_with_room(containment, 0, _caller(containment, 3), attach)
    assert log.evicted() == [101, 102]
    assert len(tries) == 3
