"""Containment of fatal faults against executors that are slow, stuck or gone: bounded, one recovery at a time."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, evolve, field

from pympsd.devices.machine import describe, from_toml
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.containment import TEARDOWN_SECONDS, Containment
from pympsd_server.service.executors import ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.executor_slots import EVERYBODY, Place
from pympsd_server.state_machine.phases import Phase
from pympsd_server.state_machine.roster import Client, Context

HERE = Place(0)


@define
class _Executor:
    """Answers, never does (``stuck``), or says that it cannot stop what runs (``busy``)."""

    place: Place = HERE
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
    """One executor a place; starting and ending one takes a while."""

    now: dict[Place, _Executor] = field(factory=dict)
    ended: list[Place] = field(factory=list)
    started: list[int] = field(factory=list)

    @classmethod
    def at(cls, *executors: _Executor) -> _Executors:
        """Return executors of devices 0, 1 ... for everybody."""
        places = (Place(device) for device in range(len(executors)))
        return cls({place: evolve(one, place=place) for place, one in zip(places, executors, strict=True)})

    @property
    def retired(self) -> list[int]:
        return [place.device for place in self.ended]

    def that_runs(self, context: Context) -> _Executor | None:
        found = self.now.get(context.place)
        return found if found is not None and found.generation == context.generation else None

    def next_request(self) -> int:
        return 1

    async def retire(self, place: Place) -> None:
        if place in self.now:
            await self.end(self.now[place])

    async def end(self, executor: _Executor) -> None:
        if self.now.get(executor.place) is executor:
            self.ended.append(executor.place)
            await trio.sleep(0.1)
            self.now.pop(executor.place, None)

    async def of(self, place: Place) -> _Executor:
        if place not in self.now:
            await trio.sleep(0.3)
            self.started.append(place.device)
            self.now[place] = _Executor(place, generation=2)
        return self.now[place]


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


def _client(server: Server, serial: int, *devices: int, user: int = EVERYBODY) -> Client:
    client = server.roster.arrive(serial, 100 + serial, 0, {}, max(user, 0))
    for device in devices:
        server.roster.open_context(client, device, 1, user=user)
    return client


async def test_an_executor_that_does_not_answer_keeps_nothing_from_the_others(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(stuck=True), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        _client(server, 1, 0, 1)
        _client(server, 2, 1)
        culprit = _client(server, 3, 1)
        (serial,) = culprit.contexts
        containment.context_faulted(serial, Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        told = {message.context: message.code for message in executors.now[Place(1)].told}
        assert told == {2: 700, 3: 700, 4: 700}
        await trio.sleep(TEARDOWN_SECONDS + 1)
        assert executors.retired == [0]


async def test_an_executor_that_cannot_stop_what_runs_is_killed(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(), _Executor(busy=True))
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        client = _client(server, 1, 0, 1)
        containment.context_faulted(min(client.contexts), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(1)
        assert executors.retired == [1]


async def test_a_fault_during_a_recovery_waits_for_it_and_spares_what_was_made_anew(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(), _Executor())
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
    executors = _Executors.at(_Executor(), _Executor())
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


async def test_a_reset_ends_the_executor_at_once_and_is_a_fatal_fault_of_its_device(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(stuck=True), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, notes = _serving(nursery, executors, 2)
        culprit, neighbour, elsewhere = _client(server, 1, 0), _client(server, 2, 0, 1), _client(server, 3, 1)
        (context,) = culprit.contexts.values()
        before = trio.current_time()
        await containment.reset(context, "an operator's wish")
        assert trio.current_time() - before < TEARDOWN_SECONDS
        assert executors.retired == [0]
        # They are told at once, in any order.
        assert sorted((told.context, told.code) for told in executors.now[Place(1)].told) == [(3, 719), (4, 719)]
        for client in (culprit, neighbour, elsewhere):
            assert containment.active
            server.lost_client(client, met=True)
        await trio.sleep(1)
        assert notes.statuses == ["FAULT", "ACTIVE"]
        assert executors.started == [0, 1]


async def test_a_reset_spares_an_executor_that_has_taken_the_place_meanwhile(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(generation=2))
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 1)
        (context,) = _client(server, 1, 0).contexts.values()
        await containment.reset(context, "an operator's wish")
        assert executors.retired == []
        assert not containment.active


async def test_a_fault_in_one_users_executor_costs_another_user_nothing(autojump_clock: object) -> None:
    places = (Place(0, 500), Place(0, 600))
    executors = _Executors({place: _Executor(place) for place in places})
    async with trio.open_nursery() as nursery:
        server, containment, notes = _serving(nursery, executors, 1)
        sharing = "isolates_address_spaces = false\n[[device]]\n"
        server.devices = from_toml(sharing)
        culprit, other = _client(server, 1, 0, user=500), _client(server, 2, 0, user=600)
        containment.context_faulted(next(iter(culprit.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        assert executors.now[places[1]].told == []
        assert (containment.refuses(culprit), containment.refuses(other)) == (True, False)
        assert containment.refusal(culprit, 0) is not None
        assert containment.refusal(other, 0) is None
        server.lost_client(culprit, met=True)
        await trio.sleep(1)
        assert executors.ended == [places[0]]
        assert notes.statuses == ["FAULT", "ACTIVE"]
        assert not containment.active
