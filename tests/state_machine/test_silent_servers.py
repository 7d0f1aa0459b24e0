"""Clients whose processes have ended without their server's report, and the time a server has to leave."""

from __future__ import annotations

import pytest

from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    Exit,
    KillServer,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
    WatchClient,
)
from pympsd.state_machine.shutdown import FORCED_TIMEOUT, LEAVE_TIMEOUT, SILENCE_TIMEOUT
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.takeover.state.records import PersistentServer, PersistentState
from pympsd.vocabulary.identities import Peer
from tests.state_machine.conftest import Story

A, B = 500, 600
SERVER, PID = 1, 847
SILENCE, LEAVE = Timer(TimerKind.SILENCE, SERVER), Timer(TimerKind.LEAVE, SERVER)


@pytest.fixture
def busy(story: Story) -> Story:
    """A server of user A with the clients 1 and 2."""
    story.connects(1, A)
    story.is_ready(SERVER, PID)
    story.connects(2, A)
    story.take_log()
    story.watches.clear()
    return story


def end(story: Story, *clients: int) -> None:
    """Let the kernel report that the processes of clients have ended."""
    for client in clients:
        assert story.feed(events.ClientEnded(SERVER, client)) == []


def is_forced(story: Story) -> None:
    """Check that the server is forced to end, and killed if it does not."""
    story.take_log()
    assert story.feed(events.TimerEnded(SILENCE)) == [ShutDownServer(SERVER, forced=True)]
    output = story.take_log()
    assert (
        output[0]
        == f"All clients of server {PID} have exited, but the server has not reported this for {SILENCE_TIMEOUT:g} s"
    )
    assert output[-1] == f"Force shutting down server {PID}"
    assert story.watches[-1] == (LEAVE, FORCED_TIMEOUT)
    assert story.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]


@pytest.mark.parametrize("first", ["they end", "a user waits"])
def test_a_server_whose_clients_have_all_ended_gives_way_to_another_user(busy: Story, first: str) -> None:
    if first == "they end":
        end(busy, 1, 2)
        assert busy.watches == []
        busy.connects(3, B)
    else:
        busy.connects(3, B)
        end(busy, 1, 2)
    assert busy.watches.count((SILENCE, SILENCE_TIMEOUT)) == 1
    is_forced(busy)
    (spawn,) = busy.feed(events.ServerExited(SERVER, -9))
    assert isinstance(spawn, SpawnServer)
    assert spawn.uid == B


@pytest.mark.parametrize("line", ["quit", f"shutdown_server {PID}"])
@pytest.mark.parametrize("first", ["they end", "it is shut down"])
def test_a_leaving_server_is_forced_after_its_clients_have_ended(busy: Story, line: str, first: str) -> None:
    if first == "they end":
        end(busy, 1, 2)
    assert ShutDownServer(SERVER, forced=False) in busy.says(line)
    if first != "they end":
        end(busy, 1, 2)
    assert busy.watches == [(SILENCE, SILENCE_TIMEOUT)]
    is_forced(busy)
    assert busy.feed(events.ServerExited(SERVER, -9)) == ([Exit(0)] if line == "quit" else [])


def test_a_living_client_is_waited_for(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1)
    assert (SILENCE, SILENCE_TIMEOUT) not in busy.watches
    end(busy, 2)
    # Meanwhile a living client connects.
    busy.connects(4, A)
    assert busy.feed(events.TimerEnded(SILENCE)) == []
    assert busy.daemon.servers[SERVER].clients.keys() == {1, 2, 4}
    busy.watches.clear()
    end(busy, 4)
    assert busy.watches == [(SILENCE, SILENCE_TIMEOUT)]


def test_a_report_of_the_server_restarts_its_timer(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1, 2)
    busy.watches.clear()
    # A report about an unknown client does not count.
    busy.feed(events.ClientGonePushed(SERVER, 77))
    assert busy.cancelled == []
    busy.feed(events.ClientGonePushed(SERVER, 1))
    assert (busy.cancelled, busy.watches) == ([SILENCE], [(SILENCE, SILENCE_TIMEOUT)])
    assert busy.feed(events.ClientGonePushed(SERVER, 2)) == [ShutDownServer(SERVER, forced=False)]
    assert busy.cancelled == [SILENCE] * 2
    assert busy.watches[-1] == (LEAVE, LEAVE_TIMEOUT)


def test_without_a_waiting_user_an_ended_client_changes_nothing(busy: Story) -> None:
    before = busy.says("ps")
    end(busy, 1, 2)
    assert busy.says("ps") == before
    assert busy.take_log() == ["Cmd:ps", "Cmd:ps"]
    assert busy.watches == []
    busy.feed(events.ClientGonePushed(SERVER, 1))
    busy.feed(events.ClientGonePushed(SERVER, 2))
    assert (busy.take_log(), busy.watches, busy.cancelled) == ([], [], [])


def test_the_timer_does_nothing_after_the_waiting_client_has_left(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1, 2)
    busy.feed(events.WaitingClientLeft(3))
    assert busy.feed(events.TimerEnded(SILENCE)) == []
    assert busy.feed(events.ClientEnded(9, 1)) == []


def test_the_clients_of_a_returned_server_are_watched(story: Story) -> None:
    persistent_state = PersistentState(servers=(PersistentServer(SERVER, PID, A, 60.0, {}),))
    story.feed(events.PredecessorDied(persistent_state))
    story.says(f"shutdown_server {PID}")
    clients = tuple(
        Client(client_id, 0, ClientProcess(Peer(pid, 0, 0), "c", 7)) for client_id, pid in ((7, 4107), (8, 0))
    )
    instructions = story.feed(events.ServerTakenOver(SERVER, "ACTIVE", True, clients))
    assert [instruction for instruction in instructions if isinstance(instruction, WatchClient)] == [
        WatchClient(7, SERVER, 4107),
        WatchClient(8, SERVER, 0),  # its server's session may know it by more than a PID
    ]
    story.watches.clear()
    end(story, 7)
    assert story.watches == [], "the invisible client may live"
    story.feed(events.ClientGonePushed(SERVER, 8))
    assert story.watches == [(SILENCE, SILENCE_TIMEOUT)]
    is_forced(story)


# --- the time to leave


def test_a_forced_shutdown_has_its_whole_timeout(story: Story) -> None:
    story.says(f"start_server -uid {A}")
    story.is_ready(SERVER, PID)
    story.says(f"shutdown_server {PID}")
    story.says(f"shutdown_server {PID} -f")
    assert story.watches[-2:] == [(LEAVE, LEAVE_TIMEOUT), (LEAVE, FORCED_TIMEOUT)]
    # Its earlier timer would have ended sooner.
    assert story.cancelled == [LEAVE]
    assert story.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]


def test_a_timer_that_ended_is_not_cancelled(busy: Story) -> None:
    busy.says(f"shutdown_server {PID}")
    for client in (1, 2):
        busy.feed(events.ClientGonePushed(SERVER, client))
    assert busy.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]
    busy.says(f"shutdown_server {PID} -f")
    assert busy.watches[-1] == (LEAVE, FORCED_TIMEOUT)
    assert busy.cancelled == []


def test_a_report_of_a_forced_server_does_not_extend_its_timeout(busy: Story) -> None:
    busy.says(f"shutdown_server {PID} -f")
    for client in (1, 2, 2):
        assert busy.feed(events.ClientGonePushed(SERVER, client)) == []
    assert (busy.watches, busy.cancelled) == ([(LEAVE, FORCED_TIMEOUT)], [])


def test_a_report_of_a_leaving_server_does_not_extend_its_timeout(busy: Story) -> None:
    busy.says(f"shutdown_server {PID}")
    for client in (1, 2, 2, 77):
        busy.feed(events.ClientGonePushed(SERVER, client))
    assert (busy.watches, busy.cancelled) == ([(LEAVE, LEAVE_TIMEOUT)], [])
