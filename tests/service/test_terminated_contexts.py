"""The driver's server is asked once to terminate a context, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import Factory, define, field

from pympsd.service.sessions.driver.watched_clients import DriverTerminations
from pympsd.vocabulary.results import Result
from pympsd.wire.driver import server_commands as commands

PID = 7


@define
class Link:
    """A link to a server whose answers the test gives: its contexts immediately, the others later."""

    contexts: list[int]
    requests: list[Callable[[int], None]] = field(factory=list)

    def ask(self, question: commands.Question[Any], answered: Callable[[Any], None]) -> None:
        """Take a question."""
        if question.packets == commands.device_clients().packets:
            present = tuple(commands.DriverContext(PID, number) for number in self.contexts)
            answered((commands.DeviceClients("GPU-0", "", present),))
        else:
            assert question.packets == commands.terminate(PID).packets
            self.requests.append(answered)


@define
class Operators:
    """Asks for terminations; keeps the answers, and what is noted for the next daemon."""

    link: Link
    answers: list[int] = field(factory=list)
    noted: list[frozenset[int]] = field(factory=list)
    terminations: DriverTerminations = field(
        default=Factory(
            lambda self: DriverTerminations(lambda _, contexts: self.noted.append(contexts)), takes_self=True
        )
    )

    def terminate(self) -> None:
        self.terminations.terminate(self.link, PID, self.answers.append)  # type: ignore[arg-type]


def test_a_termination_is_noted_before_the_servers_request() -> None:
    operators = Operators(Link([1, 2]))
    operators.terminate()
    assert (operators.noted, len(operators.link.requests)) == ([frozenset({1, 2})], 1)
    operators.terminate()
    assert (operators.answers, len(operators.link.requests)) == ([Result.ERROR_INVALID_CONTEXT], 1)
    operators.link.contexts.append(3)
    operators.link.requests[0](0)
    assert operators.noted[-1] == {1, 2, 3}, "the one that came may have been terminated"


def test_after_a_failure_there_is_no_further_request() -> None:
    operators = Operators(Link([1]))
    operators.terminate()
    operators.link.requests[0](Result.ERROR_UNKNOWN)
    operators.terminate()
    assert operators.answers == [Result.ERROR_UNKNOWN, Result.ERROR_INVALID_CONTEXT]


def test_another_process_with_that_pid_is_terminated() -> None:
    operators = Operators(Link([1]))
    operators.terminate()
    operators.link.requests[0](0)
    operators.link.contexts.clear()
    operators.terminate()
    operators.link.requests[1](Result.ERROR_INVALID_CONTEXT)
    operators.link.contexts.append(1)
    operators.terminate()
    assert len(operators.link.requests) == 3


def test_new_contexts_next_to_terminated_ones_are_refused() -> None:
    operators = Operators(Link([1]))
    operators.terminations.restore(PID, frozenset({1}))
    operators.link.contexts.append(2)
    operators.terminate()
    assert (operators.answers, operators.link.requests) == ([Result.ERROR_NOT_SUPPORTED], [])
    operators.link.contexts.remove(1)
    operators.terminate()
    assert len(operators.link.requests) == 1
