"""Executor processes as a server keeps them: started when needed, refused plainly, replaced at their end."""

from __future__ import annotations

import os
import signal

import pytest
import trio
from attrs import define, field
from processes import suspend
from wedge import wedge

from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach, DropClient, ExecutorDone, Ping
from pympsd_server.service import executors as executors_module
from pympsd_server.service.executors import Executor, ExecutorError, Executors
from pympsd_server.state_machine.executor_slots import Place

SECONDS = 60
HERE = Place(0)


@define
class Notes:
    """A logger that keeps what it is told."""

    said: list[tuple[str, dict[str, object]]] = field(factory=list)
    losses: list[tuple[Place, str]] = field(factory=list)

    def info(self, event: str, **fields: object) -> None:
        self.said.append((event, fields))

    error = info


def executors(nursery: trio.Nursery, backend: str, log: Notes) -> Executors:
    return Executors(
        describe("2xH200"),
        backend,
        "pympsd-server",
        nursery,
        log,
        on_fault=lambda *_: None,
        on_loss=lambda place, reason: log.losses.append((place, reason)),
    )


async def test_a_backend_that_is_not_there_is_a_plain_error_and_a_line_each_time() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "opencl", log)
            for _ in range(2):
                with pytest.raises(ExecutorError, match="no backend 'opencl'") as caught:
                    await running.of(HERE)
                assert caught.value.code == Result.ERROR_NOT_SUPPORTED
            assert running.running(HERE) is None
    told = [str(fields["reason"]) for event, fields in log.said if event == "executor_not_started"]
    assert [text.partition(": ")[0] for text in told] == ["the executor of device 0 could not be started"] * 2
    assert all("no backend 'opencl'" in text for text in told)


async def test_one_executor_a_device_however_many_ask() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            found = []

            async def ask(device: int) -> None:
                found.append(await running.of(Place(device)))

            async with trio.open_nursery() as asking:
                for device in (0, 0, 1):
                    asking.start_soon(ask, device)
            assert len({executor.process.pid for executor in found}) == 2
            assert [event for event, _ in log.said] == ["executor_started"] * 2
            nursery.cancel_scope.cancel()


async def test_an_executor_that_was_killed_is_replaced_by_the_next_generation() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.of(HERE)
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            while running.running(HERE) is first:
                await trio.sleep(0)
            with pytest.raises(ExecutorError) as caught:
                await first.ask(1, object())
            assert caught.value.code == Result.ERROR_MPS_RPC_FAILURE
            second = await running.of(HERE)
            assert (first.generation, second.generation) == (1, 2)
            nursery.cancel_scope.cancel()
    ended = [fields["status"] for event, fields in log.said if event == "executor_ended"]
    assert ended[0] == -signal.SIGKILL
    assert log.losses == [(HERE, "the executor of device 0 ended with status -9")]


async def test_a_retired_executor_is_no_loss_and_gone_when_that_is_said() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.of(HERE)
            await running.retire(HERE)
            assert first.process.returncode == -signal.SIGKILL
            await running.retire(HERE)
            assert (await running.of(HERE)).generation == 2
            nursery.cancel_scope.cancel()
    assert log.losses == []


async def test_each_user_has_an_executor_and_one_that_is_not_used_makes_room() -> None:
    log, used, held = Notes(), {Place(0, 500)}, []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            running.is_used = used.__contains__
            running.on_memory = lambda device, clients: held.append((device, clients))
            first, second = await running.of(Place(0, 500)), await running.of(Place(0, 600))
            assert len({executor.process.pid for executor in (first, second)}) == 2
            assert (first.generation, second.generation) == (1, 2), "no two of a device have the same"
            elsewhere = await running.of(Place(1, 600))
            third = await running.of(Place(0, 700))
            assert running.running(Place(0, 600)) is None
            assert second.process.returncode == -signal.SIGKILL
            alive = {Place(0, 500): first, Place(0, 700): third, Place(1, 600): elsewhere}
            assert {place: running.running(place) for place in alive} == alive
            assert (await running.of(Place(0, 600))).generation == 4
            assert running.running(Place(0, 700)) is None
            nursery.cancel_scope.cancel()
    assert log.losses == []
    users = {fields["pid"]: fields["uid"] for event, fields in log.said if event == "executor_user"}
    assert users[first.process.pid] == 500


async def test_what_clients_hold_on_a_device_is_told_of_all_users_together() -> None:
    told: list[tuple[int, dict[int, int]]] = []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", Notes())
            running.on_memory = lambda device, clients: told.append((device, clients))
            for client, user in ((1, 500), (2, 600)):
                executor = await running.of(Place(0, user))
                number = running.next_request()
                _, fds = await executor.ask(number, Attach(number, client, client, True, 0, 0, 0))
                for fd in fds:
                    os.close(fd)
            while not told or told[-1][1].keys() != {1, 2}:
                await trio.sleep(0)
            await running.retire(Place(0, 500))
            assert told[-1][0] == 0
            assert told[-1][1].keys() == {2}
            nursery.cancel_scope.cancel()


async def test_an_executor_with_kernels_of_those_who_have_gone_ends_when_nobody_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, used = Notes(), {HERE}
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            running.is_used = used.__contains__
            executor = await running.of(HERE)

            async def answer(self: Executor, request: int, message: object) -> tuple[object, tuple[int, ...]]:
                return ExecutorDone(request, unfinished=1), ()

            await running.end_if_forsaken(executor)
            assert not executor.retired, "nothing of anybody runs"
            with monkeypatch.context() as patch:
                patch.setattr(Executor, "ask", answer)
                await executor.free(DropClient(7, 1))
            await running.end_if_forsaken(executor)
            assert not executor.retired, "somebody else is there"
            used.clear()
            await running.end_if_forsaken(executor)
            assert executor.gone.is_set()
            assert (await running.of(HERE)).generation == 2
            nursery.cancel_scope.cancel()
    assert log.losses == []
    assert ("executor_forsaken", {"device": 0, "pid": executor.process.pid}) in log.said


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_wedged_executor_is_killed_and_a_stopped_one_is_not(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "pympsd_server.service.executors"
    monkeypatch.setattr(f"{module}.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(f"{module}.SILENCE_SECONDS", 0.2)
    asked, look = trio.Event(), executors_module._stopped

    def is_stopped(pid: int) -> bool:
        asked.set()
        monkeypatch.setattr(f"{module}.SILENCE_SECONDS", SECONDS)  # it may be as slow as it likes when it goes on
        return look(pid)

    monkeypatch.setattr(f"{module}._stopped", is_stopped)
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.of(HERE)
            if stopped:
                suspend(first.process.pid)
            else:
                wedge(first.process.pid, os.getpid())
            await asked.wait()
            if stopped:
                os.kill(first.process.pid, signal.SIGCONT)
                request = running.next_request()
                await first.ask(request, Ping(request))
            else:
                await first.gone.wait()
            nursery.cancel_scope.cancel()
    assert [place for place, _ in log.losses] == ([] if stopped else [HERE])
    assert ("executor_silent" in [event for event, _ in log.said]) is not stopped
