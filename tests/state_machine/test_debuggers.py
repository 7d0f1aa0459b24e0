"""Clients under a debugger, event by event: they wait for the others, run without MPS, and are nobody's turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pympsd.state_machine import events
from pympsd.state_machine.debuggers import REASON
from pympsd.state_machine.instructions import (
    AdmitClient,
    LetGoWithoutMps,
    RefuseClient,
    SpawnServer,
    TellServerToLeave,
)

if TYPE_CHECKING:
    from tests.state_machine.conftest import Story

A, B = 500, 600


@pytest.fixture
def busy(story: Story) -> Story:
    """User A's server 847 with its client 1."""
    story.knocks(1, A)
    story.is_ready(1, 847)
    story.take_log()
    return story


def test_alone_it_goes_on_at_once(story: Story) -> None:
    assert story.knocks(1, A, traced=True) == [LetGoWithoutMps(1, REASON)]
    assert story.take_log() == ["Client 101 of user 500 is under a debugger: it goes on without MPS"]
    assert story.daemon.servers == {}


def test_it_waits_for_the_clients_that_are_there(busy: Story) -> None:
    busy.knocks(2, A)
    assert busy.knocks(3, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ClientGonePushed(1, 2)) == [LetGoWithoutMps(3, REASON)]
    assert busy.take_log()[1:] == [
        "Client 103 of user 500 is under a debugger: it waits for 2 to leave",
        "Client 103 of user 500 is under a debugger: it goes on without MPS",
    ]


def test_it_waits_for_those_in_line_too_but_not_for_later_ones(busy: Story) -> None:
    busy.knocks(2, B)
    busy.knocks(3, B, traced=True)
    assert busy.knocks(4, A) == [AdmitClient(4, 1, 847, 0)], "later clients are served normally"
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ClientLeftTheLine(2)) == [LetGoWithoutMps(3, REASON)]
    assert 4 in busy.daemon.servers[1].clients


def test_it_is_nobodys_turn(busy: Story) -> None:
    busy.knocks(2, B, traced=True)
    assert busy.daemon.line == []
    # Not told to leave: nobody waits for the server's place.
    assert busy.feed(events.ClientGonePushed(1, 1)) == [LetGoWithoutMps(2, REASON)]
    assert busy.knocks(3, B, traced=True) == [LetGoWithoutMps(3, REASON)]
    assert not any(isinstance(told, TellServerToLeave) for told in busy.told)


def test_two_debuggers_do_not_wait_for_each_other(busy: Story) -> None:
    busy.knocks(2, A, traced=True)
    busy.knocks(3, B, traced=True)
    assert busy.feed(events.ClientGonePushed(1, 1)) == [LetGoWithoutMps(2, REASON), LetGoWithoutMps(3, REASON)]


def test_one_that_dies_while_it_waits_is_forgotten(busy: Story) -> None:
    busy.knocks(2, A, traced=True)
    assert busy.feed(events.ClientLeftTheLine(2)) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.daemon.debugged == {}


def test_the_end_of_a_server_and_a_refusal_are_ends_of_clients(busy: Story) -> None:
    busy.knocks(2, B)
    busy.knocks(3, A, traced=True)
    busy.feed(events.ContextPushed(1, 1, 1, 1, 0))
    (spawn,) = busy.feed(events.ServerExited(1, -9))
    assert isinstance(spawn, SpawnServer)
    refused, gone = busy.feed(events.SpawnFailed(2, "no"))
    assert isinstance(refused, RefuseClient)
    assert gone == LetGoWithoutMps(3, REASON)


def test_a_fault_of_the_server_is_none_of_its_business(busy: Story) -> None:
    busy.feed(events.StatusPushed(1, "FAULT"))
    assert busy.knocks(2, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == [LetGoWithoutMps(2, REASON)]


def test_a_users_own_daemon_refuses_debuggers_of_others(own_story: Story) -> None:
    (refusal,) = own_story.knocks(1, 1001, traced=True)
    assert isinstance(refusal, RefuseClient)
    assert own_story.knocks(2, 1000, traced=True) == [LetGoWithoutMps(2, REASON)]
