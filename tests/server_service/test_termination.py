"""terminate_client is bounded: work that cannot be stopped is answered with an error, or ended by a reset."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd.wire.link_messages import TerminateClient
from pympsd_server.service.eviction import TERMINATION_SECONDS, terminate_client
from pympsd_server.service.executor import ExecutorError
from pympsd_server.service.server import Server
from pympsd_server.state_machine.client_table import ContextRecord


@define
class _Executor:
    """An executor that answers, or (``stuck``) never does, or reports that kernels of a context still run."""

    stuck: bool
    running: set[int] = field(factory=set)
    generation: int = 1
    requests: list[Terminate] = field(factory=list)

    async def ask(self, request: int, message: Terminate) -> None:
        self.requests.append(message)
        if self.stuck:
            await trio.sleep_forever()
        if message.context in self.running:
            await trio.sleep(2)
            raise ExecutorError(Result.ERROR_LAUNCH_TIMEOUT, "it still runs")


@define
class _Executors:
    executor: _Executor

    def executor_of(self, context: ContextRecord) -> _Executor:
        return self.executor

    def next_request(self) -> int:
        return 1


@define
class _Link:
    answers: list[tuple[int, int]] = field(factory=list)

    def answer_termination(self, token: int, code: int) -> None:
        self.answers.append((token, code))


@define
class _Log:
    said: list[str] = field(factory=list)

    def info(self, event: str, **fields: object) -> None:
        self.said.append(event)

    error = info


@define
class _Containment:
    """Records the contexts that were reset."""

    server: Server
    executors: _Executors
    reset_contexts: list[int] = field(factory=list)
    evicted: set[int] = field(factory=set)

    async def reset(self, context: ContextRecord, reason: str) -> None:
        assert "process 500" in reason
        self.reset_contexts.append(context.id)


def _containment(stuck: bool) -> tuple[_Containment, _Executor, _Link, _Log]:
    link: Any = _Link()
    log = _Log()
    server = Server(link, log, describe("H200"), ThreadPercentage(), {})
    executor = _Executor(stuck)
    client = server.client_table.add_client(1, 500, 0, {})
    server.client_table.open_context(client, 0, 1)
    return _Containment(server, _Executors(executor)), executor, link, log


async def _terminate(containment: Any, requests: TerminateClient) -> None:
    await terminate_client(containment, requests)


async def test_success_is_answered_when_all_contexts_have_stopped() -> None:
    containment, executor, link, log = _containment(stuck=False)
    await _terminate(containment, TerminateClient(7, 500))
    assert link.answers == [(7, Result.SUCCESS)]
    assert [requests.code for requests in executor.requests] == [Result.ERROR_MPS_CLIENT_TERMINATED]
    assert log.said[-1] == "termination_succeeded"


async def test_work_that_cannot_be_stopped_is_answered_with_an_error_within_the_limit(autojump_clock: object) -> None:
    containment, _, link, log = _containment(stuck=True)
    before = trio.current_time()
    await _terminate(containment, TerminateClient(7, 500))
    assert trio.current_time() - before == TERMINATION_SECONDS
    assert link.answers == [(7, Result.ERROR_LAUNCH_TIMEOUT)]
    assert log.said[-1] == "termination_overdue"


async def test_a_terminated_context_is_not_terminated_again() -> None:
    containment, _, link, _ = _containment(stuck=False)
    for token in (1, 2):
        await _terminate(containment, TerminateClient(token, 500))
    assert link.answers == [(1, Result.SUCCESS), (2, Result.ERROR_INVALID_CONTEXT)]


async def _terminate_with_a_kernel(by_reset: bool) -> tuple[_Containment, _Link, _Log]:
    """Terminate a client with two contexts; the kernel of the second one never ends."""
    containment, executor, link, log = _containment(stuck=False)
    server = containment.server
    server.client_table.open_context(server.client_table.clients[1], 0, 1)
    executor.running.add(2)
    await _terminate(containment, TerminateClient(7, 500, by_reset))
    return containment, link, log


async def test_without_by_reset_a_kernel_that_never_ends_is_answered_with_702(autojump_clock: object) -> None:
    containment, link, log = await _terminate_with_a_kernel(by_reset=False)
    assert link.answers == [(7, Result.ERROR_LAUNCH_TIMEOUT)]
    assert containment.reset_contexts == []
    assert [context.id for context in containment.server.client_table.clients[1].active_contexts()] == [2]
    assert log.said[-1] == "termination_overdue"


async def test_with_by_reset_running_work_is_ended_and_success_is_answered(autojump_clock: object) -> None:
    containment, link, log = await _terminate_with_a_kernel(by_reset=True)
    assert link.answers == [(7, Result.SUCCESS)]
    assert containment.reset_contexts == [2]
    assert containment.server.client_table.clients[1].active_contexts() == []
    assert log.said[-3:] == ["termination_overdue", "termination_by_reset", "termination_succeeded"]


async def test_with_by_reset_work_that_stops_in_time_causes_no_reset(autojump_clock: object) -> None:
    containment, _, link, _ = _containment(stuck=False)
    await _terminate(containment, TerminateClient(7, 500, by_reset=True))
    assert link.answers == [(7, Result.SUCCESS)]
    assert containment.reset_contexts == []
