"""Executor processes as a server keeps them: started when needed, refused plainly, replaced at their end."""

from __future__ import annotations

import os
import signal

import pytest
import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Ping
from pympsd_server.service.executors import ExecutorError, Executors

SECONDS = 30


@define
class Notes:
    """A logger that keeps what it is told."""

    said: list[tuple[str, dict[str, object]]] = field(factory=list)
    losses: list[tuple[int, str]] = field(factory=list)

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
        on_loss=lambda device, reason: log.losses.append((device, reason)),
    )


async def test_a_backend_that_is_not_there_is_a_plain_error_each_time() -> None:
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "opencl", Notes())
            for _ in range(2):
                with pytest.raises(ExecutorError, match="no backend 'opencl'") as caught:
                    await running.of(0)
                assert caught.value.code == Result.ERROR_NOT_SUPPORTED
            assert running.running(0) is None


async def test_one_executor_a_device_however_many_ask() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            found = []

            async def ask(device: int) -> None:
                found.append(await running.of(device))

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
            first = await running.of(0)
            os.kill(first.process.pid, signal.SIGKILL)
            await first.process.wait()
            while running.running(0) is first:
                await trio.sleep(0)
            with pytest.raises(ExecutorError) as caught:
                await first.ask(1, object())
            assert caught.value.code == Result.ERROR_MPS_RPC_FAILURE
            second = await running.of(0)
            assert (first.generation, second.generation) == (1, 2)
            nursery.cancel_scope.cancel()
    ended = [fields["status"] for event, fields in log.said if event == "executor_ended"]
    assert ended[0] == -signal.SIGKILL
    assert log.losses == [(0, "the executor of device 0 ended with status -9")]


async def test_a_retired_executor_is_no_loss_and_gone_when_that_is_said() -> None:
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.of(0)
            await running.retire(0)
            assert first.process.returncode == -signal.SIGKILL
            await running.retire(0)
            assert (await running.of(0)).generation == 2
            nursery.cancel_scope.cancel()
    assert log.losses == []


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_wedged_executor_is_killed_and_a_stopped_one_is_not(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wedged: here its owner merely says that it is not stopped, for nothing else makes that thread silent.
    module = "pympsd_server.service.executors"
    monkeypatch.setattr(f"{module}.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(f"{module}.SILENCE_SECONDS", 0.2)
    asked = trio.Event()

    def is_stopped(pid: int) -> bool:
        asked.set()
        return stopped

    monkeypatch.setattr(f"{module}._stopped", is_stopped)
    log = Notes()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            running = executors(nursery, "emulated", log)
            first = await running.of(0)
            os.kill(first.process.pid, signal.SIGSTOP)
            await asked.wait()
            if stopped:
                os.kill(first.process.pid, signal.SIGCONT)
                request = running.next_request()
                await first.ask(request, Ping(request))
            else:
                await first.gone.wait()
            nursery.cancel_scope.cancel()
    assert [device for device, _ in log.losses] == ([] if stopped else [0])
    assert ("executor_silent" in [event for event, _ in log.said]) is not stopped
