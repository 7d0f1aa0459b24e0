"""Clients whose processes have ended though their server does not say so, and the time a server has to leave."""

from __future__ import annotations

import pytest

from pympsd.state_machine import events
from pympsd.state_machine.admission import FORCED_TIMEOUT, LEAVE_TIMEOUT, SILENCE_TIMEOUT
from pympsd.state_machine.instructions import Exit, KillServer, ShutDownServer, SpawnServer, WatchClient
from pympsd.state_machine.persistent_state import PersistentServer, PersistentState
from pympsd.state_machine.timers import Timer, TimerKind
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
    """The kernel says that the processes of clients have ended."""
    for client in clients:
        assert story.feed(events.ClientEnded(SERVER, client)) == []


def is_forced(story: Story) -> None:
    """The server is told to leave at once, and killed when it does not."""
    story.take_log()
    assert story.feed(events.TimerEnded(SILENCE)) == [ShutDownServer(SERVER, forced=True)]
    said = story.take_log()
    assert said[0] == f"All clients of server {PID} have ended, but it has not said so for {SILENCE_TIMEOUT:g} s"
    assert said[-1] == f"Force shutting down server {PID}"
    assert story.watches[-1] == (LEAVE, FORCED_TIMEOUT)
    assert story.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]


@pytest.mark.parametrize("first", ["they end", "somebody waits"])
def test_who_waits_for_a_server_whose_clients_have_all_ended_gets_a_turn(busy: Story, first: str) -> None:
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
@pytest.mark.parametrize("first", ["they end", "it is told to leave"])
def test_a_server_that_is_to_leave_is_not_waited_for_when_its_clients_have_ended(
    busy: Story, line: str, first: str
) -> None:
    if first == "they end":
        end(busy, 1, 2)
    assert ShutDownServer(SERVER, forced=False) in busy.says(line)
    if first != "they end":
        end(busy, 1, 2)
    assert busy.watches == [(SILENCE, SILENCE_TIMEOUT)]
    is_forced(busy)
    assert busy.feed(events.ServerExited(SERVER, -9)) == ([Exit(0)] if line == "quit" else [])


def test_one_that_lives_is_waited_for(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1)
    assert (SILENCE, SILENCE_TIMEOUT) not in busy.watches
    end(busy, 2)
    # Meanwhile one comes that lives.
    busy.connects(4, A)
    assert busy.feed(events.TimerEnded(SILENCE)) == []
    assert busy.daemon.servers[SERVER].clients.keys() == {1, 2, 4}
    busy.watches.clear()
    end(busy, 4)
    assert busy.watches == [(SILENCE, SILENCE_TIMEOUT)]


def test_a_server_that_speaks_has_its_time_anew(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1, 2)
    busy.watches.clear()
    # A word about somebody who is no client of its is none.
    busy.feed(events.ClientGonePushed(SERVER, 77))
    assert busy.cancelled == []
    busy.feed(events.ClientGonePushed(SERVER, 1))
    assert (busy.cancelled, busy.watches) == ([SILENCE], [(SILENCE, SILENCE_TIMEOUT)])
    assert busy.feed(events.ClientGonePushed(SERVER, 2)) == [ShutDownServer(SERVER, forced=False)]
    assert busy.cancelled == [SILENCE] * 2
    assert busy.watches[-1] == (LEAVE, LEAVE_TIMEOUT)


def test_where_nobody_waits_nothing_is_done_and_nothing_is_seen(busy: Story) -> None:
    before = busy.says("ps")
    end(busy, 1, 2)
    assert busy.says("ps") == before
    assert busy.take_log() == ["Cmd:ps", "Cmd:ps"]
    assert busy.watches == []
    busy.feed(events.ClientGonePushed(SERVER, 1))
    busy.feed(events.ClientGonePushed(SERVER, 2))
    assert (busy.take_log(), busy.watches, busy.cancelled) == ([], [], [])


def test_when_the_one_who_waited_has_left_nothing_is_done(busy: Story) -> None:
    busy.connects(3, B)
    end(busy, 1, 2)
    busy.feed(events.WaitingClientLeft(3))
    assert busy.feed(events.TimerEnded(SILENCE)) == []
    assert busy.feed(events.ClientEnded(9, 1)) == []


def test_the_clients_of_a_server_that_returns_are_watched_where_they_can_be_seen(story: Story) -> None:
    left = PersistentState(servers=(PersistentServer(SERVER, PID, A, 60.0, {}),))
    story.feed(events.PredecessorDied(left))
    story.says(f"shutdown_server {PID}")
    clients = tuple(events.ReturnedClient(serial, pid, "c", 7) for serial, pid in ((7, 4107), (8, 0)))
    told = story.feed(events.ServerReturned(SERVER, "ACTIVE", True, clients))
    assert [one for one in told if isinstance(one, WatchClient)] == [WatchClient(7, SERVER, 4107)]
    story.watches.clear()
    end(story, 7)
    assert story.watches == [], "the other one may live"
    story.feed(events.ClientGonePushed(SERVER, 8))
    assert story.watches == [(SILENCE, SILENCE_TIMEOUT)]
    is_forced(story)


# --- the time to leave


def test_force_has_its_whole_time_whenever_it_comes(story: Story) -> None:
    story.says(f"start_server -uid {A}")
    story.is_ready(SERVER, PID)
    story.says(f"shutdown_server {PID}")
    story.says(f"shutdown_server {PID} -f")
    assert story.watches[-2:] == [(LEAVE, LEAVE_TIMEOUT), (LEAVE, FORCED_TIMEOUT)]
    # The time it had before would have ended sooner.
    assert story.cancelled == [LEAVE]
    assert story.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]


def test_a_time_that_is_over_is_not_cancelled(busy: Story) -> None:
    busy.says(f"shutdown_server {PID}")
    for client in (1, 2):
        busy.feed(events.ClientGonePushed(SERVER, client))
    assert busy.feed(events.TimerEnded(LEAVE)) == [KillServer(SERVER)]
    busy.says(f"shutdown_server {PID} -f")
    assert busy.watches[-1] == (LEAVE, FORCED_TIMEOUT)
    assert busy.cancelled == []


def test_a_forced_server_gets_no_more_time_by_what_it_says(busy: Story) -> None:
    busy.says(f"shutdown_server {PID} -f")
    for client in (1, 2, 2):
        assert busy.feed(events.ClientGonePushed(SERVER, client)) == []
    assert (busy.watches, busy.cancelled) == ([(LEAVE, FORCED_TIMEOUT)], [])


def test_nor_does_one_that_leaves(busy: Story) -> None:
    busy.says(f"shutdown_server {PID}")
    for client in (1, 2, 2, 77):
        busy.feed(events.ClientGonePushed(SERVER, client))
    assert (busy.watches, busy.cancelled) == ([(LEAVE, LEAVE_TIMEOUT)], [])
