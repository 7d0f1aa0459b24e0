"""Clients under a debugger, event by event: they wait for the others, run without MPS, and take no turn."""

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


def test_a_debugged_client_alone_continues_immediately(story: Story) -> None:
    assert story.connects(1, A, traced=True) == [ContinueWithoutMps(1, REASON)]
    assert story.take_log() == ["Client 101 of user 500 is being debugged; it runs without MPS"]
    assert story.daemon.servers == {}


def test_a_debugged_client_waits_for_the_admitted_clients(busy: Story) -> None:
    busy.connects(2, A)
    assert busy.connects(3, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ClientGonePushed(1, 2)) == [ContinueWithoutMps(3, REASON)]
    assert busy.take_log()[1:] == [
        "Client 103 of user 500 is being debugged; it is waiting for 2 other clients to exit",
        "Client 103 of user 500 is being debugged; it runs without MPS",
    ]


def test_a_debugged_client_waits_for_queued_clients_but_not_for_later_ones(busy: Story) -> None:
    busy.connects(2, B)
    busy.connects(3, B, traced=True)
    assert busy.connects(4, A) == [AdmitClient(4, 1, 847, 0)], "later clients are served normally"
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.WaitingClientLeft(2)) == [ContinueWithoutMps(3, REASON)]
    assert 4 in busy.daemon.servers[1].clients


def test_a_debugged_client_takes_no_turn(busy: Story) -> None:
    busy.connects(2, B, traced=True)
    assert busy.daemon.queue.entries == []
    # The server is not shut down: no other user waits.
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON)]
    assert busy.connects(3, B, traced=True) == [ContinueWithoutMps(3, REASON)]
    assert not any(isinstance(instruction, ShutDownServer) for instruction in busy.instructions)


def test_two_debugged_clients_do_not_wait_for_each_other(busy: Story) -> None:
    busy.connects(2, A, traced=True)
    busy.connects(3, B, traced=True)
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON), ContinueWithoutMps(3, REASON)]


def test_a_debugged_client_that_disconnects_is_dropped(busy: Story) -> None:
    busy.connects(2, A, traced=True)
    assert busy.feed(events.WaitingClientLeft(2)) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.daemon.queue.debugged == {}


def test_a_debugged_client_continues_after_a_servers_end_and_a_refusal(busy: Story) -> None:
    busy.connects(2, B)
    busy.connects(3, A, traced=True)
    busy.feed(events.ContextPushed(1, 1, 1, 1, 0))
    (spawn,) = busy.feed(events.ServerExited(1, -9))
    assert isinstance(spawn, SpawnServer)
    refused, gone = busy.feed(events.SpawnFailed(2, "no"))
    assert isinstance(refused, RefuseClient)
    assert gone == ContinueWithoutMps(3, REASON)


def test_a_server_fault_does_not_release_a_debugged_client(busy: Story) -> None:
    busy.feed(events.StatusPushed(1, "FAULT"))
    assert busy.connects(2, A, traced=True) == []
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ContinueWithoutMps(2, REASON)]


def test_a_users_own_daemon_refuses_debugged_clients_of_others(own_story: Story) -> None:
    (refusal,) = own_story.connects(1, 1001, traced=True)
    assert isinstance(refusal, RefuseClient)
    assert own_story.connects(2, 1000, traced=True) == [ContinueWithoutMps(2, REASON)]
