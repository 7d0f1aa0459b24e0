"""Executor processes of a server: started when needed, failing with a plain error, replaced after their end."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack

import pytest
import trio
import trio.testing
from attrs import define, field
from processes import suspend
from wedge import wedge

from pympsd.channel.message_channel import MessageChannel
from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Attach, DropClient, ExecutorDone, ExecutorReady, Ping
from pympsd_server.service import executors as executors_module
from pympsd_server.service.executor import Executor, ExecutorError
from pympsd_server.service.executors import Executors
from pympsd_server.state_machine.executor_slots import ExecutorSlot
from tests.executor.raw_client import ENDLESS, RawClient

SECONDS = 60
SLOT = ExecutorSlot(0)


@define
class Recorder:
    """A logger that records its calls."""

    events: list[tuple[str, dict[str, object]]] = field(factory=list)
    losses: list[tuple[ExecutorSlot, str]] = field(factory=list)

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    error = info


def executors(nursery: trio.Nursery, backend: str, log: Recorder) -> Executors:
    return Executors(
        describe("2xH200"),
        backend,
        nursery,
        log,
        on_loss=lambda slot, reason: log.losses.append((slot, reason)),
    )


async def test_a_missing_backend_is_a_plain_error_and_a_log_line_each_time() -> None:
    log = Recorder()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "opencl", log)
            for _ in range(2):
                with pytest.raises(ExecutorError, match="no backend 'opencl'") as caught:
                    await running.get_or_start(SLOT)
                assert caught.value.code == Result.ERROR_NOT_SUPPORTED
            assert running.find(SLOT) is None
    reasons = [str(fields["reason"]) for event, fields in log.events if event == "executor_not_started"]
    assert [text.partition(": ")[0] for text in reasons] == ["the executor of device 0 could not be started"] * 2
    assert all("no backend 'opencl'" in text for text in reasons)


async def test_concurrent_requests_start_one_executor_per_device() -> None:
    log = Recorder()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            started = []

            async def ask(device: int) -> None:
                started.append(await running.get_or_start(ExecutorSlot(device)))

            async with trio.open_nursery() as asking:
                for device in (0, 0, 1):
                    asking.start_soon(ask, device)
            assert len({executor.process.pid for executor in started}) == 2
            assert [event for event, _ in log.events] == ["executor_started"] * 2
            nursery.cancel_scope.cancel()


async def test_the_next_executor_is_started_when_the_loss_of_the_last_one_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a client whose context is already in the next one would be lost with those of the last one."""
    log, reaps, may_reap, losses_at_starts = Recorder(), trio.Event(), trio.Event(), []
    reap, spawn = executors_module._reap, executors_module._spawn

    async def reap_late(executor: Executor) -> int:
        reaps.set()
        await may_reap.wait()
        return await reap(executor)

    async def note_and_spawn() -> tuple[socket.socket, trio.Process]:
        losses_at_starts.append(len(log.losses))
        return await spawn()

    monkeypatch.setattr(executors_module, "_reap", reap_late)
    monkeypatch.setattr(executors_module, "_spawn", note_and_spawn)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.get_or_start(SLOT)
            os.kill(first.process.pid, signal.SIGKILL)
            await reaps.wait()
            async with trio.open_nursery() as asking:
                asking.start_soon(running.get_or_start, SLOT)
                await trio.testing.wait_all_tasks_blocked()
                may_reap.set()
            assert losses_at_starts == [0, 1]
            nursery.cancel_scope.cancel()


async def test_opening_a_context_does_not_wait_for_a_pending_start_of_the_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clients that came at the same time: the second one waited for ever."""
    is_starting, may_start = trio.Event(), trio.Event()
    await_ready = executors_module._await_ready

    async def await_ready_late(channel: MessageChannel) -> ExecutorReady:
        is_starting.set()
        await may_start.wait()
        return await await_ready(channel)

    monkeypatch.setattr(executors_module, "_await_ready", await_ready_late)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", Recorder())
            nursery.start_soon(running.get_or_start, SLOT)
            await is_starting.wait()
            await running.wait_until_ended(SLOT)
            may_start.set()
            assert (await running.get_or_start(SLOT)).generation == 1
            nursery.cancel_scope.cancel()


async def test_an_executor_that_was_killed_is_replaced_by_the_next_generation() -> None:
    log = Recorder()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.get_or_start(SLOT)
            os.kill(first.process.pid, signal.SIGKILL)
            await first.gone.wait()
            with pytest.raises(ExecutorError) as caught:
                await first.ask(1, object())
            assert caught.value.code == Result.ERROR_MPS_RPC_FAILURE
            second = await running.get_or_start(SLOT)
            assert (first.generation, second.generation) == (1, 2)
            nursery.cancel_scope.cancel()
    ended = [fields["status"] for event, fields in log.events if event == "executor_ended"]
    assert ended[0] == -signal.SIGKILL
    ((slot, reason),) = log.losses
    assert slot == SLOT
    assert re.fullmatch(
        r"the executor of device 0 ended with status -9, possibly out of memory \((cgroup|this machine).* MiB.*\)",
        reason,
    )
    assert [fields["reason"] for event, fields in log.events if event == "executor_killed"] == [reason]


async def test_vacating_a_slot_reaps_the_executor_and_reports_no_loss() -> None:
    log = Recorder()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.get_or_start(SLOT)
            await running.vacate(SLOT)
            assert first.process.returncode == -signal.SIGKILL
            await running.vacate(SLOT)
            assert (await running.get_or_start(SLOT)).generation == 2
            nursery.cancel_scope.cancel()
    assert log.losses == []


async def test_each_user_has_an_executor_and_unused_ones_make_room() -> None:
    log, used, held = Recorder(), {ExecutorSlot(0, 500)}, []
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            running.is_used = used.__contains__
            running.on_memory = lambda device, clients: held.append((device, clients))
            first, second = (
                await running.get_or_start(ExecutorSlot(0, 500)),
                await running.get_or_start(ExecutorSlot(0, 600)),
            )
            assert len({executor.process.pid for executor in (first, second)}) == 2
            assert (first.generation, second.generation) == (1, 2), "no two of a device have the same"
            elsewhere = await running.get_or_start(ExecutorSlot(1, 600))
            third = await running.get_or_start(ExecutorSlot(0, 700))
            assert running.find(ExecutorSlot(0, 600)) is None
            assert second.process.returncode == -signal.SIGKILL
            alive = {ExecutorSlot(0, 500): first, ExecutorSlot(0, 700): third, ExecutorSlot(1, 600): elsewhere}
            assert {slot: running.find(slot) for slot in alive} == alive
            assert (await running.get_or_start(ExecutorSlot(0, 600))).generation == 4
            assert running.find(ExecutorSlot(0, 700)) is None
            nursery.cancel_scope.cancel()
    assert log.losses == []
    users = {fields["pid"]: fields["uid"] for event, fields in log.events if event == "executor_user"}
    assert users[first.process.pid] == 500


async def test_the_memory_of_all_users_clients_on_a_device_is_reported_together() -> None:
    reports: list[tuple[int, dict[int, int]]] = []
    both = trio.Event()

    def record(device: int, clients: dict[int, int]) -> None:
        reports.append((device, clients))
        if clients.keys() == {1, 2}:
            both.set()

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", Recorder())
            running.on_memory = record
            for client, user in ((1, 500), (2, 600)):
                executor = await running.get_or_start(ExecutorSlot(0, user))
                number = running.next_request()
                _, fds = await executor.ask(number, Attach(number, client, client, True, Quota(0, 0, 0)))
                for fd in fds:
                    os.close(fd)
            await both.wait()
            await running.vacate(ExecutorSlot(0, 500))
            assert reports[-1][0] == 0
            assert reports[-1][1].keys() == {2}
            nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_the_utilization_of_a_device_is_the_sum_of_its_running_executors() -> None:
    slots = [ExecutorSlot(0, user) for user in (500, 600)]
    with trio.fail_after(SECONDS), ExitStack() as clients:
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", Recorder())
            running.on_memory = lambda device, used: None
            assert running.get_utilization(0) is None, "no executor has reported"
            for client, slot in enumerate(slots, 1):
                executor = await running.get_or_start(slot)
                number = running.next_request()
                attached, fds = await executor.ask(number, Attach(number, client, client, True, Quota(0, 0, 0)))
                raw = RawClient.from_fds(fds, client, executor.generation, attached)
                clients.callback(raw.stream.close)
                raw.launch(raw.load()[0], ENDLESS)
            while running.get_utilization(0) != 100:  # two kernels that run all the time
                await trio.sleep(0)
            await running.vacate(slots[0])
            while running.get_utilization(0) <= 50:
                await trio.sleep(0)
            await running.vacate(slots[1])
            assert (running.get_utilization(0), running.get_utilization(1)) == (0, None)
            nursery.cancel_scope.cancel()


async def test_an_unused_executor_with_unfinished_kernels_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, used = Recorder(), {SLOT}
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            running.is_used = used.__contains__
            executor = await running.get_or_start(SLOT)

            async def answer(self: Executor, request: int, message: object) -> tuple[object, tuple[int, ...]]:
                return ExecutorDone(request, unfinished=1), ()

            await running.end_if_abandoned(executor)
            assert not executor.end_expected, "no kernel is unfinished"
            with monkeypatch.context() as patch:
                patch.setattr(Executor, "ask", answer)
                await executor.free(DropClient(7, 1))
            await running.end_if_abandoned(executor)
            assert not executor.end_expected, "it is still used"
            used.clear()
            await running.end_if_abandoned(executor)
            assert executor.gone.is_set()
            assert (await running.get_or_start(SLOT)).generation == 2
            nursery.cancel_scope.cancel()
    assert log.losses == []
    assert ("executor_abandoned", {"device": 0, "pid": executor.process.pid}) in log.events


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_wedged_executor_is_killed_and_a_stopped_one_is_not(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "pympsd_server.service.executors"
    monkeypatch.setattr(f"{module}.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(f"{module}.SILENCE_SECONDS", 0.2)
    was_queried, look = trio.Event(), executors_module._is_stopped

    def is_stopped(pid: int) -> bool:
        was_queried.set()
        monkeypatch.setattr(f"{module}.SILENCE_SECONDS", SECONDS)  # any delay is fine once it continues
        return look(pid)

    monkeypatch.setattr(f"{module}._is_stopped", is_stopped)
    log = Recorder()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.get_or_start(SLOT)
            if stopped:
                suspend(first.process.pid)
            else:
                wedge(first.process.pid, os.getpid())
            await was_queried.wait()
            if stopped:
                os.kill(first.process.pid, signal.SIGCONT)
                request = running.next_request()
                await first.ask(request, Ping(request))
            else:
                await first.gone.wait()
            nursery.cancel_scope.cancel()
    assert [slot for slot, _ in log.losses] == ([] if stopped else [SLOT])
    assert ("executor_silent" in [event for event, _ in log.events]) is not stopped
