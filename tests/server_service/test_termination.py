"""terminate_client is bounded: work that cannot be stopped is answered with an error number, not with silence."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define, field

from pympsd.devices.machine import describe
from pympsd.vocabulary.limits import ThreadPercentage
from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import Terminate
from pympsd.wire.link_messages import TerminateClient
from pympsd_server.service.server import Server
from pympsd_server.service.termination import TERMINATION_SECONDS, terminate_client


@define
class _Executor:
    """An executor that answers, or (``stuck``) never does."""

    stuck: bool
    generation: int = 1
    asked: list[Terminate] = field(factory=list)

    async def ask(self, request: int, message: Terminate) -> None:
        self.asked.append(message)
        if self.stuck:
            await trio.sleep_forever()


@define
class _Executors:
    executor: _Executor

    def running(self, device: int) -> _Executor:
        return self.executor

    def next_request(self) -> int:
        return 1


@define
class _Link:
    answers: list[tuple[int, int]] = field(factory=list)

    def terminated(self, token: int, code: int) -> None:
        self.answers.append((token, code))


@define
class _Log:
    said: list[str] = field(factory=list)

    def info(self, event: str, **fields: object) -> None:
        self.said.append(event)

    error = info


def _server(stuck: bool) -> tuple[Server, _Executor, _Link, _Log]:
    link: Any = _Link()
    log = _Log()
    server = Server(link, log, describe("H200"), ThreadPercentage(), {})
    executor = _Executor(stuck)
    executors: Any = _Executors(executor)
    server.executors = executors
    client = server.roster.arrive(1, 500, 0, {})
    server.roster.open_context(client, 0, 1)
    return server, executor, link, log


async def test_it_answers_success_when_all_contexts_are_stopped() -> None:
    server, executor, link, log = _server(stuck=False)
    await terminate_client(server, TerminateClient(7, 500))
    assert link.answers == [(7, Result.SUCCESS)]
    assert [asked.code for asked in executor.asked] == [Result.ERROR_MPS_CLIENT_TERMINATED]
    assert log.said[-1] == "termination_succeeded"


async def test_what_cannot_be_stopped_is_answered_with_an_error_within_the_bound(autojump_clock: object) -> None:
    server, _, link, log = _server(stuck=True)
    before = trio.current_time()
    await terminate_client(server, TerminateClient(7, 500))
    assert trio.current_time() - before == TERMINATION_SECONDS
    assert link.answers == [(7, Result.ERROR_LAUNCH_TIMEOUT)]
    assert log.said[-1] == "termination_overdue"


async def test_a_terminated_context_is_not_terminated_again() -> None:
    server, _, link, _ = _server(stuck=False)
    for token in (1, 2):
        await terminate_client(server, TerminateClient(token, 500))
    assert link.answers == [(1, Result.SUCCESS), (2, Result.ERROR_INVALID_CONTEXT)]
