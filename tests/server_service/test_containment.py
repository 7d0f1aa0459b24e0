"""Containment of fatal faults with executors that are slow, stuck or gone: bounded, one recovery at a time."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, evolve, field

from pympsd.devices.machine import describe, parse_toml
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd_server.service.containment import HOLD_SECONDS, TEARDOWN_SECONDS, Containment
from pympsd_server.service.executor import ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.client_table import ClientRecord, ContextRecord
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot
from pympsd_server.state_machine.server_phase import ServerPhase

SLOT = ExecutorSlot(0)


@define
class _Executor:
    """Answers, never answers (``stuck``), or reports that it cannot stop the work (``busy``)."""

    slot: ExecutorSlot = SLOT
    generation: int = 1
    stuck: bool = False
    busy: bool = False
    requests: list[Terminate] = field(factory=list)

    async def ask(self, request: int, message: Terminate) -> None:
        if self.stuck:
            await trio.sleep_forever()
        if self.busy:
            raise ExecutorError(Result.ERROR_LAUNCH_TIMEOUT, "a kernel that never ends")
        self.requests.append(message)


@define
class _Executors:
    """One executor per slot; starting and ending one takes a while."""

    running: dict[ExecutorSlot, _Executor] = field(factory=dict)
    ended: list[ExecutorSlot] = field(factory=list)
    started: list[int] = field(factory=list)

    @classmethod
    def at(cls, *executors: _Executor) -> _Executors:
        """Return executors of devices 0, 1 ... for all users."""
        slots = (ExecutorSlot(device) for device in range(len(executors)))
        return cls({slot: evolve(executor, slot=slot) for slot, executor in zip(slots, executors, strict=True)})

    @property
    def ended_devices(self) -> list[int]:
        return [slot.device for slot in self.ended]

    def executor_of(self, context: ContextRecord) -> _Executor | None:
        executor = self.running.get(context.slot)
        return executor if executor is not None and executor.generation == context.generation else None

    def next_request(self) -> int:
        return 1

    async def vacate(self, slot: ExecutorSlot) -> None:
        if slot in self.running:
            await self.end(self.running[slot])

    async def end(self, executor: _Executor) -> None:
        if self.running.get(executor.slot) is executor:
            self.ended.append(executor.slot)
            await trio.sleep(0.1)
            self.running.pop(executor.slot, None)

    async def get_or_start(self, slot: ExecutorSlot) -> _Executor:
        if slot not in self.running:
            await trio.sleep(0.3)
            self.started.append(slot.device)
            self.running[slot] = _Executor(slot, generation=2)
        return self.running[slot]


@define
class _Recorder:
    """The link to the daemon, which records statuses, and a log."""

    statuses: list[str] = field(factory=list)

    def status(self, status: str) -> None:
        self.statuses.append(status)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **fields: None


def _serving(nursery: trio.Nursery, executors: _Executors, devices: int) -> tuple[Server, Containment, _Recorder]:
    recorder = _Recorder()
    link: Any = recorder
    server = Server(link, link, describe(f"{devices}xH200"), ThreadPercentage(), {})
    fake_executors: Any = executors
    containment = Containment(server, fake_executors, nursery)
    server.observers.append(containment)
    server.phase = ServerPhase.SERVING
    return server, containment, recorder


def _client(server: Server, id_: int, *devices: int, user: int = ALL_USERS) -> ClientRecord:
    client = server.client_table.add_client(id_, 100 + id_, 0, {}, max(user, 0))
    for device in devices:
        server.client_table.open_context(client, device, 1, user=user)
    return client


async def test_an_executor_that_does_not_answer_does_not_delay_the_others(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(stuck=True), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        _client(server, 1, 0, 1)
        _client(server, 2, 1)
        culprit = _client(server, 3, 1)
        (id_,) = culprit.contexts
        containment.context_faulted(id_, Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        codes = {message.context: message.code for message in executors.running[ExecutorSlot(1)].requests}
        assert codes == {2: 700, 3: 700, 4: 700}
        await trio.sleep(TEARDOWN_SECONDS + 1)
        assert executors.ended_devices == [0]


async def test_an_executor_that_cannot_stop_its_work_is_killed(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(), _Executor(busy=True))
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        client = _client(server, 1, 0, 1)
        containment.context_faulted(min(client.contexts), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(1)
        assert executors.ended_devices == [1]


async def test_a_fault_during_a_recovery_waits_and_spares_the_new_executor(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, recorder = _serving(nursery, executors, 2)
        first, second = _client(server, 1, 0), _client(server, 2, 1)
        containment.context_faulted(next(iter(first.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        server.client_left(first, connected=True)
        await trio.sleep(0.2)  # while the executor of device 0 is being replaced
        containment.context_faulted(next(iter(second.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        server.client_left(second, connected=True)
        await trio.sleep(5)
        assert (executors.ended_devices, executors.started) == ([0, 1], [0, 1])
        assert recorder.statuses == ["FAULT", "ACTIVE"]
        assert not containment.active


async def test_while_the_server_is_leaving_remaining_clients_may_use_the_device_again(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 2)
        culprit, other = _client(server, 1, 0), _client(server, 2, 1)
        server.leave(forced=False)
        containment.context_faulted(next(iter(culprit.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        assert containment.refusal(other, 0) is not None
        server.client_left(culprit, connected=True)
        await trio.sleep(1)
        assert executors.ended_devices == [0]
        assert executors.started == []
        assert containment.refusal(other, 0) is None


async def test_a_reset_ends_the_executor_immediately_and_counts_as_a_fatal_fault(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(stuck=True), _Executor())
    async with trio.open_nursery() as nursery:
        server, containment, recorder = _serving(nursery, executors, 2)
        culprit, neighbour, elsewhere = _client(server, 1, 0), _client(server, 2, 0, 1), _client(server, 3, 1)
        (context,) = culprit.contexts.values()
        before = trio.current_time()
        await containment.reset(context, "an operator's request")
        assert trio.current_time() - before < TEARDOWN_SECONDS
        assert executors.ended_devices == [0]
        # The others are torn down concurrently, in any order.
        requests = executors.running[ExecutorSlot(1)].requests
        assert sorted((request.context, request.code) for request in requests) == [(3, 719), (4, 719)]
        for client in (culprit, neighbour, elsewhere):
            assert containment.active
            server.client_left(client, connected=True)
        await trio.sleep(1)
        assert recorder.statuses == ["FAULT", "ACTIVE"]
        assert executors.started == [0, 1]


async def test_a_reset_spares_a_newer_executor_in_the_slot(autojump_clock: object) -> None:
    executors = _Executors.at(_Executor(generation=2))
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 1)
        (context,) = _client(server, 1, 0).contexts.values()
        await containment.reset(context, "an operator's request")
        assert executors.ended_devices == []
        assert not containment.active


async def test_a_fault_in_one_users_executor_does_not_reach_another_user(autojump_clock: object) -> None:
    slots = (ExecutorSlot(0, 500), ExecutorSlot(0, 600))
    executors = _Executors({slot: _Executor(slot) for slot in slots})
    async with trio.open_nursery() as nursery:
        server, containment, recorder = _serving(nursery, executors, 1)
        sharing = "isolates_address_spaces = false\n[[device]]\n"
        server.devices = parse_toml(sharing)
        culprit, other = _client(server, 1, 0, user=500), _client(server, 2, 0, user=600)
        containment.context_faulted(next(iter(culprit.contexts)), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        assert executors.running[slots[1]].requests == []
        assert (containment.refuses(culprit), containment.refuses(other)) == (True, False)
        assert containment.refusal(culprit, 0) is not None
        assert containment.refusal(other, 0) is None
        server.client_left(culprit, connected=True)
        await trio.sleep(1)
        assert executors.ended == [slots[0]]
        assert recorder.statuses == ["FAULT", "ACTIVE"]
        assert not containment.active


async def test_a_fault_in_the_executor_of_a_partition_leaves_the_server_active(autojump_clock: object) -> None:
    slots = (ExecutorSlot(0, 0, "p"), ExecutorSlot(0, 0, "q"))
    executors = _Executors({slot: _Executor(slot) for slot in slots})
    async with trio.open_nursery() as nursery:
        server, containment, recorder = _serving(nursery, executors, 1)
        server.devices = parse_toml("isolates_address_spaces = false\n[[device]]\n")
        culprit, other, new_client = (server.client_table.add_client(id_, 100 + id_, 0, {}) for id_ in (1, 2, 3))
        for client, partition in ((culprit, "p"), (other, "q"), (new_client, "p")):
            client.partitions = {0: partition}
        for client in (culprit, other):
            server.client_table.open_context(client, 0, 1, user=0, partition=client.partitions[0], has_executor=True)
        containment.context_faulted(min(culprit.contexts), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        await trio.sleep(0.01)
        assert executors.running[slots[1]].requests == []
        assert [containment.refuses(client) for client in (new_client, other)] == [True, False]
        assert containment.refusal(other, 0) is None
        server.client_left(culprit, connected=True)
        await trio.sleep(1)
        assert executors.ended == [slots[0]]
        assert recorder.statuses == []
        assert not containment.active


async def test_a_new_client_is_held_for_a_bounded_time_and_not_while_an_affected_process_is_there(
    autojump_clock: object,
) -> None:
    executors = _Executors.at(_Executor())
    async with trio.open_nursery() as nursery:
        server, containment, _ = _serving(nursery, executors, 1)
        culprit, new_client = _client(server, 1, 0), _client(server, 2)
        containment.pidfds[culprit.id] = -1
        containment.context_faulted(min(culprit.contexts), Result.ERROR_ILLEGAL_ADDRESS, "wild")
        began = trio.current_time()
        await containment.hold(new_client)
        assert trio.current_time() == began
        del containment.pidfds[culprit.id]  # its session has ended, what it held is never freed
        await containment.hold(new_client)
        assert trio.current_time() == began + HOLD_SECONDS
        server.client_left(culprit, connected=True)
        await containment.hold(new_client)
        assert not containment.refuses(new_client)
        assert trio.current_time() < began + HOLD_SECONDS + 1
