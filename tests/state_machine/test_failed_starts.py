"""Servers that end before they are ready: tried again after growing pauses, then given up."""

from __future__ import annotations

import pytest

from pympsd.devices.machine import describe
from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    Instruction,
    RefuseClient,
    Reply,
    SetTimer,
    SpawnServer,
    Timer,
    TimerKind,
)
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.vocabulary.results import Result
from tests.state_machine.conftest import Story


def dies(story: Story, server: int) -> list[Instruction]:
    """Let a server be spawned and end before it is ready."""
    story.feed(events.ServerSpawned(server, 800 + server))
    return story.feed(events.ServerExited(server, 1, "ImportError: no module"))


def pause_ends(story: Story, server: int) -> list[Instruction]:
    return story.feed(events.TimerEnded(Timer(TimerKind.RETRY, server)))


def list_spawned(instructions: list[Instruction]) -> list[int]:
    return [instruction.uid for instruction in instructions if isinstance(instruction, SpawnServer)]


def list_refused(instructions: list[Instruction]) -> list[int]:
    return [instruction.client for instruction in instructions if isinstance(instruction, RefuseClient)]


@pytest.mark.parametrize("name", ["u5", "uid_500"])
def test_a_named_server_that_could_not_be_started_is_reported_once(name: str) -> None:
    story = Story(Daemon(DaemonOptions(0, protocol=3, max_servers=9), describe("H200")))
    story.says(f"server create {name} --uid=500")
    for namespace in ("", "default"):
        story.feed(events.NamespaceOpened(name, namespace))
    (spawn,) = (instruction for instruction in story.instructions if isinstance(instruction, SpawnServer))
    (reply,) = (
        instruction
        for instruction in story.feed(events.SpawnFailed(spawn.server, "no memory"))
        if isinstance(instruction, Reply)
    )
    assert reply.answer.printed == f"Server '{name}' could not be started: no memory\n"


def test_four_starts_with_growing_pauses_then_a_refusal(story: Story) -> None:
    story.connects(1, 500)
    for server, seconds in ((1, 0.1), (2, 0.5), (3, 2.0)):
        assert dies(story, server) == [SetTimer(Timer(TimerKind.RETRY, server), seconds)]
        assert story.take_log()[-1] == (
            "the MPS server of user 500 ended with status 1 before it was ready: ImportError: no module; "
            f"trying again in {seconds:g} s"
        )
        assert list_spawned(pause_ends(story, server)) == [500]
    (refusal,) = dies(story, 4)
    assert isinstance(refusal, RefuseClient)
    assert (refusal.client, refusal.code) == (1, Result.ERROR_MPS_CONNECTION_FAILED)
    assert refusal.reason == (
        "the MPS server of user 500 ended with status 1 before it was ready: ImportError: no module; see "
        "server.log; the start was tried 4 times"
    )
    assert story.take_log()[-1].startswith(
        "Giving up after 4 attempts to start a server for user 500: the MPS server of"
    )
    assert story.daemon.failed_starts == {}


def test_a_client_after_the_refusal_begins_a_new_count(story: Story) -> None:
    story.connects(1, 500)
    for server in (1, 2, 3):
        dies(story, server)
        pause_ends(story, server)
    dies(story, 4)
    assert list_spawned(story.connects(2, 500)) == [500]
    assert dies(story, 5) == [SetTimer(Timer(TimerKind.RETRY, 5), 0.1)]


def test_a_server_that_serves_clears_the_count(story: Story) -> None:
    story.connects(1, 500)
    dies(story, 1)
    pause_ends(story, 1)
    (admitted,) = story.is_ready(2, 847)
    assert admitted.client == 1  # type: ignore[union-attr]
    story.feed(events.ContextPushed(2, 1, 1, 1, 0))
    story.feed(events.ServerExited(2, -9))
    story.connects(2, 500)
    assert dies(story, 3) == [SetTimer(Timer(TimerKind.RETRY, 3), 0.1)]


def test_a_start_with_a_stated_cause_is_not_repeated(story: Story) -> None:
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    story.feed(events.StartRefused(1, "device 0 is in use"))
    (refusal,) = story.feed(events.ServerExited(1, 1))
    assert isinstance(refusal, RefuseClient)
    assert refusal.reason == (
        "the MPS server of user 500 cannot start: device 0 is in use; it ended with status 1 before it was ready; "
        "see server.log"
    )


def test_a_start_that_timed_out_is_not_repeated(story: Story) -> None:
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    story.feed(events.TimerEnded(Timer(TimerKind.START, 1)))
    (refusal,) = story.feed(events.ServerExited(1, -9))
    assert isinstance(refusal, RefuseClient)
    assert "it was not ready within 60 s" in refusal.reason


def test_the_next_user_is_served_after_the_refusal_and_not_during_a_pause(story: Story) -> None:
    story.connects(1, 500)
    dies(story, 1)
    assert story.connects(2, 600) == []
    assert story.connects(3, 500) == []
    for server in (1, 2):
        assert list_spawned(pause_ends(story, server)) == [500]
        dies(story, server + 1)
    pause_ends(story, 3)
    instructions = dies(story, 4)
    assert list_refused(instructions) == [1, 3]
    assert list_spawned(instructions) == [600]


def test_a_pause_ends_without_a_start_if_its_client_has_left(story: Story) -> None:
    story.connects(1, 500)
    dies(story, 1)
    story.connects(2, 600)
    assert list_spawned(story.feed(events.WaitingClientLeft(1))) == [600]
    assert pause_ends(story, 1) == []
    assert story.daemon.failed_starts == {}


def test_a_start_request_is_retried_and_given_up_too(story: Story) -> None:
    story.says("start_server -uid 500")
    for server in (1, 2, 3):
        dies(story, server)
        assert list_spawned(pause_ends(story, server)) == [500]
    assert dies(story, 4) == []
    assert story.daemon.queue.entries == []


def test_the_timer_of_an_earlier_pause_does_nothing(story: Story) -> None:
    story.connects(1, 500)
    dies(story, 1)
    assert pause_ends(story, 7) == []
    assert list_spawned(pause_ends(story, 1)) == [500]


@pytest.mark.parametrize("line", ["quit", "quit -t 5"])
def test_a_quit_in_a_pause_refuses_immediately_and_exits(story: Story, line: str) -> None:
    story.connects(1, 500)
    dies(story, 1)
    instructions = story.says(line)
    assert list_refused(instructions) == [1]
    assert type(instructions[-1]).__name__ == "Exit"
    assert pause_ends(story, 1) == []


# --- ready, and gone before it served anybody


def crashes(story: Story, server: int) -> list[Instruction]:
    """Let a server become ready and end with its first client."""
    admitted = story.is_ready(server, 800 + server)
    assert [type(instruction).__name__ for instruction in admitted] == ["AdmitClient"]
    return story.feed(events.ServerExited(server, -11, "Segmentation fault"))


def crash_loop(story: Story) -> RefuseClient:
    """Let clients of user 500 connect again and again; return how they are refused."""
    story.connects(1, 500)
    for server, seconds in ((1, 0.1), (2, 0.5), (3, 2.0)):
        assert crashes(story, server) == [SetTimer(Timer(TimerKind.RETRY, server), seconds)]
        assert story.connects(server + 1, 500) == []
        assert list_spawned(pause_ends(story, server)) == [500]
    assert crashes(story, 4) == [SetTimer(Timer(TimerKind.RETRY, 4), 5.0)]
    (refusal,) = story.connects(5, 500)
    assert isinstance(refusal, RefuseClient)
    return refusal


def test_a_server_that_ends_with_its_first_client_is_tried_four_times(story: Story) -> None:
    refusal = crash_loop(story)
    assert (refusal.client, refusal.code) == (5, Result.ERROR_MPS_CONNECTION_FAILED)
    assert refusal.reason == (
        "the MPS server of user 500 ended with status -11 after it was ready but before it served anybody: "
        "Segmentation fault; see server.log; the start was tried 4 times; try again in 5 s"
    )


def test_other_users_are_served_during_a_refusal_which_ends_after_a_while(story: Story) -> None:
    crash_loop(story)
    assert list_spawned(story.connects(6, 600)) == [600]
    story.is_ready(5, 847)
    story.feed(events.ContextPushed(5, 6, 1, 1, 0))
    story.feed(events.ServerExited(5, -9))
    assert list_refused(story.connects(7, 500)) == [7]
    assert pause_ends(story, 4) == []
    assert "uid_500" not in story.daemon.failed_starts
    assert list_spawned(story.connects(8, 500)) == [500]


def test_failures_after_the_pause_count_too(story: Story) -> None:
    for server in (1, 2, 3, 4):
        assert list_spawned(story.connects(server, 500)) == [500]
        crashes(story, server)
        if server < 4:
            assert pause_ends(story, server) == []
    assert list_refused(story.connects(5, 500)) == [5]


def test_a_failure_is_dropped_after_a_while(story: Story) -> None:
    story.connects(1, 500)
    crashes(story, 1)
    pause_ends(story, 1)
    assert (Timer(TimerKind.FAILURE_EXPIRY, 1), 10.0) in story.watches
    story.feed(events.TimerEnded(Timer(TimerKind.FAILURE_EXPIRY, 1)))
    assert story.daemon.failed_starts == {}


@pytest.mark.parametrize(
    "served",
    [
        events.ContextPushed(1, 1, 1, 1, 0),
        events.ClientGonePushed(1, 1),
        events.TimerEnded(Timer(TimerKind.TRIAL, 1)),
    ],
    ids=["a context", "an orderly end", "a while"],
)
def test_a_server_that_has_served_is_not_a_failure(story: Story, served: events.Event) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.connects(2, 500)
    story.feed(served)
    assert story.feed(events.ServerExited(1, -9)) == []
    assert list_spawned(story.connects(3, 500)) == [500]


def test_a_server_that_was_shut_down_is_not_a_failure(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.says("shutdown_server 847 -f")
    assert story.feed(events.ServerExited(1, 0)) == []
    assert list_spawned(story.connects(2, 500)) == [500]
