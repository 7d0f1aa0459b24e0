"""Clients under a debugger, event by event: they wait for the others, run without MPS, and are nobody's turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pympsd.state_machine import events
from pympsd.state_machine.debuggers import REASON
from pympsd.state_machine.instructions import (
    AdmitClient,
    ContinueWithoutMps,
    RefuseClient,
    ShutDownServer,
    SpawnServer,
)

if TYPE_CHECKING:
    from tests.state_machine.conftest import Story

A, B = 500, 600


@pytest.fixture
def busy(story: Story) -> Story:
    """User A's server 847 with its client 1."""
    story.connects(1, A)
    story.is_ready(1, 847)
    story.take_log()
    return story


def test_alone_it_goes_on_at_once(story: Story) -> None:
    assert story.connects(1, A, traced=True) == [ContinueWithoutMps(1, REASON)]
    assert story.take_log() == ["Client 101 of user 500 is under a debugger: it goes on without MPS"]
    assert story.daemon.servers == {}


def test_it_waits_for_the_clients_that_are_there(busy: Story) -> None:
    busy.connects(2, A)
    assert busy.connects(3, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ClientGonePushed(1, 2)) == [ContinueWithoutMps(3, REASON)]
    assert busy.take_log()[1:] == [
        "Client 103 of user 500 is under a debugger: it waits for 2 to leave",
        "Client 103 of user 500 is under a debugger: it goes on without MPS",
    ]


def test_it_waits_for_those_in_line_too_but_not_for_later_ones(busy: Story) -> None:
    busy.connects(2, B)
    busy.connects(3, B, traced=True)
    assert busy.connects(4, A) == [AdmitClient(4, 1, 847, 0)], "later clients are served normally"
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.WaitingClientLeft(2)) == [ContinueWithoutMps(3, REASON)]
    assert 4 in busy.daemon.servers[1].clients


def test_it_is_nobodys_turn(busy: Story) -> None:
    busy.connects(2, B, traced=True)
    assert busy.daemon.queue == []
    # Not told to leave: nobody waits for the server's place.
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON)]
    assert busy.connects(3, B, traced=True) == [ContinueWithoutMps(3, REASON)]
    assert not any(isinstance(told, ShutDownServer) for told in busy.instructions)


def test_two_debuggers_do_not_wait_for_each_other(busy: Story) -> None:
    busy.connects(2, A, traced=True)
    busy.connects(3, B, traced=True)
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON), ContinueWithoutMps(3, REASON)]


def test_one_that_dies_while_it_waits_is_forgotten(busy: Story) -> None:
    busy.connects(2, A, traced=True)
    assert busy.feed(events.WaitingClientLeft(2)) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.daemon.debugged == {}


def test_the_end_of_a_server_and_a_refusal_are_ends_of_clients(busy: Story) -> None:
    busy.connects(2, B)
    busy.connects(3, A, traced=True)
    busy.feed(events.ContextPushed(1, 1, 1, 1, 0))
    (spawn,) = busy.feed(events.ServerExited(1, -9))
    assert isinstance(spawn, SpawnServer)
    refused, gone = busy.feed(events.SpawnFailed(2, "no"))
    assert isinstance(refused, RefuseClient)
    assert gone == ContinueWithoutMps(3, REASON)


def test_a_fault_of_the_server_is_none_of_its_business(busy: Story) -> None:
    busy.feed(events.StatusPushed(1, "FAULT"))
    assert busy.connects(2, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON)]


def test_a_users_own_daemon_refuses_debuggers_of_others(own_story: Story) -> None:
    (refusal,) = own_story.connects(1, 1001, traced=True)
    assert isinstance(refusal, RefuseClient)
    assert own_story.connects(2, 1000, traced=True) == [ContinueWithoutMps(2, REASON)]
