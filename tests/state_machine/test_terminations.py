"""terminate_client: each is answered once, within a time limit, by the server that works on it."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.state_machine import events
from pympsd.state_machine.instructions import Instruction, Reply, SetTimer, TerminateClient, Timer, TimerKind
from tests.state_machine.conftest import Story


@pytest.fixture
def busy(story: Story) -> Story:
    """A server, 847, with a client, 101."""
    story.connects(1, 500)
    story.is_ready(1, 847)
    return story


def request_termination(story: Story, session: int = 1) -> TerminateClient:
    """Ask for a termination; return the instruction for the server."""
    instructions = story.says("terminate_client 847 101", session=session)
    (request,) = [instruction for instruction in instructions if isinstance(instruction, TerminateClient)]
    assert SetTimer(Timer(TimerKind.TERMINATION, request.token), 15.0) in instructions
    return request


def get_printed(instructions: list[Instruction]) -> list[tuple[int, str]]:
    return [
        (instruction.session, instruction.answer.printed)
        for instruction in instructions
        if isinstance(instruction, Reply)
    ]


def test_a_server_that_does_not_answer_in_time_gives_702(busy: Story) -> None:
    request = request_termination(busy)
    (reply,) = busy.feed(events.TimerEnded(Timer(TimerKind.TERMINATION, request.token)))
    assert isinstance(reply, Reply)
    assert (reply.answer.printed, reply.answer.refused) == ("702\n", True)
    assert "the server did not answer within 15 s" in reply.answer.diagnostic
    assert busy.take_log()[-1] == "702"


def test_termination_by_reset_is_sent_and_has_a_longer_timeout(busy: Story) -> None:
    assert not request_termination(busy).by_reset
    busy.daemon.options = evolve(busy.daemon.options, terminate_by_reset=True)
    instructions = busy.says("terminate_client 847 101", session=2)
    (request,) = [instruction for instruction in instructions if isinstance(instruction, TerminateClient)]
    assert request.by_reset
    assert SetTimer(Timer(TimerKind.TERMINATION, request.token), 30.0) in instructions
    (reply,) = busy.feed(events.TimerEnded(Timer(TimerKind.TERMINATION, request.token)))
    assert isinstance(reply, Reply)
    assert "the server did not answer within 30 s" in reply.answer.diagnostic
    assert get_printed(busy.feed(events.TerminationAnswered(1, request.token, 0))) == []


def test_702_names_a_remedy(busy: Story) -> None:
    (reply,) = busy.feed(events.TerminationAnswered(1, request_termination(busy).token, 702))
    assert isinstance(reply, Reply)
    assert (reply.answer.printed, reply.answer.refused) == ("702\n", True)
    assert "--terminate-by-reset" in reply.answer.diagnostic


def test_a_late_answer_is_not_taken_for_that_of_the_next_termination(busy: Story) -> None:
    first = request_termination(busy)
    busy.feed(events.TimerEnded(Timer(TimerKind.TERMINATION, first.token)))
    second = request_termination(busy)
    assert busy.feed(events.TerminationAnswered(1, first.token, 0)) == []
    assert get_printed(busy.feed(events.TerminationAnswered(1, second.token, 201))) == [(1, "201\n")]


def test_an_answer_in_time_ends_the_timer(busy: Story) -> None:
    request = request_termination(busy)
    assert get_printed(busy.feed(events.TerminationAnswered(1, request.token, 0))) == [(1, "0\n")]
    assert busy.cancelled == [Timer(TimerKind.TERMINATION, request.token)]
    assert busy.feed(events.TimerEnded(Timer(TimerKind.TERMINATION, request.token))) == []


def test_the_servers_end_answers_all_its_terminations(busy: Story) -> None:
    tokens = [request_termination(busy, session).token for session in (1, 2)]
    assert get_printed(busy.feed(events.ServerExited(1, -9))) == [(1, "806\n"), (2, "806\n")]
    assert busy.cancelled == [Timer(TimerKind.TERMINATION, token) for token in tokens]


def test_another_server_cannot_answer(busy: Story) -> None:
    request = request_termination(busy)
    assert busy.feed(events.TerminationAnswered(9, request.token, 0)) == []
