"""The documented sequences, event by event, with their instructions and lines of control.log, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    Exit,
    KillServer,
    RefuseClient,
    Reply,
    SetTimer,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
    Working,
)
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.server import MOVES, STATUS, Phase
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.phases import IllegalMove

if TYPE_CHECKING:
    from tests.state_machine.conftest import Story

REFUSED = 805
OVERFLOW_UID = 65534
"""The uid that the kernel reports for a user of another user namespace (user_namespaces(7))."""


def test_start_server_is_answered_when_the_process_has_started(story: Story) -> None:
    assert story.says("start_server -uid 500") == [SpawnServer(1, 500, None)]
    # Answered when the process has started, so that the next get_server_list shows it.
    (reply,) = story.feed(events.ServerSpawned(1, 847))
    assert isinstance(reply, Reply)
    assert (reply.answer.printed, reply.answer.refused) == ("", False)
    assert story.daemon.servers[1].status == "INITIALIZING"
    assert story.feed(events.StatusPushed(1, "ACTIVE")) == []
    assert story.daemon.servers[1].status == "ACTIVE"
    assert story.take_log() == [
        "Cmd:start_server -uid 500",
        "Starting new server 847 for user 500",
        "NEW SERVER 847: Ready",
    ]


def test_start_server_again_for_the_same_user_changes_nothing(story: Story) -> None:
    story.says("start_server -uid 500")
    for _ in range(2):
        (reply,) = story.says("start_server -uid 500")
        assert isinstance(reply, Reply)
        story.is_ready(1, 847) if story.daemon.servers[1].phase is Phase.SPAWNING else None
    assert len(story.daemon.servers) == 1


def test_the_first_client_waits_for_its_server_and_is_admitted_when_it_is_ready(story: Story) -> None:
    assert story.connects(1, 500) == [SpawnServer(1, 500, Peer(101, 500, 500, (500,)))]
    assert story.feed(events.ServerSpawned(1, 847)) == []
    assert story.feed(events.StatusPushed(1, "ACTIVE")) == [AdmitClient(1, 1, 847, 0)]
    assert story.connects(2, 500) == [AdmitClient(2, 1, 847, 0)]
    assert story.take_log() == [
        "NEW CLIENT 101 from user 500: Server is not ready, push client to pending list",
        "Starting new server 847 for user 500",
        "NEW SERVER 847: Ready",
        "NEW CLIENT 102 from user 500: Server already exists",
    ]


def test_contexts_are_known_from_what_the_server_pushes(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.feed(events.ContextPushed(1, 1, 10, 1, 0))
    assert story.daemon.servers[1].clients[1].contexts[10].number == 1
    assert story.take_log()[-1] == "NEW CLIENT 101 from user 500: Server already exists"
    story.feed(events.ContextGonePushed(1, 1, 10))
    assert story.daemon.servers[1].clients[1].contexts == {}
    assert story.feed(events.ContextPushed(1, 99, 11, 1, 0)) == []
    assert story.feed(events.ContextGonePushed(9, 1, 10)) == []


def test_a_client_of_another_user_waits_for_its_own_server(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.take_log()
    assert story.connects(2, 600) == []
    assert story.take_log() == [
        "NEW CLIENT 102 from user 600: Server is not ready, push client to pending list",
        "Client 102 of user 600 is waiting for its turn, behind user 500",
    ]
    assert story.feed(events.ClientGonePushed(1, 1)) == [ShutDownServer(1, False)]
    assert story.feed(events.ServerExited(1, 0)) == [SpawnServer(2, 600, Peer(102, 600, 600, (600,)))]
    assert story.is_ready(2, 848) == [AdmitClient(2, 2, 848, 0)]
    assert story.take_log() == [
        "Try shutting down server 847, backoff is disabled",
        "Server 847 exited with status 0",
        "Starting new server 848 for user 600",
        "NEW SERVER 848: Ready",
    ]


def test_users_take_turns_in_order_of_arrival(story: Story) -> None:
    for client, uid in ((1, 500), (2, 600), (3, 700), (4, 600)):
        story.connects(client, uid)
    assert story.is_ready(1, 847) == [AdmitClient(1, 1, 847, 0)]
    assert story.feed(events.ClientGonePushed(1, 1)) == [ShutDownServer(1, False)]
    story.feed(events.ServerExited(1, 0))
    assert story.is_ready(2, 848) == [AdmitClient(2, 2, 848, 0), AdmitClient(4, 2, 848, 0)]
    assert story.feed(events.ClientGonePushed(2, 2)) == []
    assert story.feed(events.ClientGonePushed(2, 4)) == [ShutDownServer(2, False)]
    story.feed(events.ServerExited(2, 0))
    assert story.is_ready(3, 849) == [AdmitClient(3, 3, 849, 0)]


def test_a_new_client_of_the_active_user_is_admitted_while_another_waits(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.connects(2, 600)
    assert story.connects(3, 500) == [AdmitClient(3, 1, 847, 0)]


def test_an_idle_server_stays_until_another_user_connects(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    assert story.feed(events.ClientGonePushed(1, 1)) == []
    assert story.connects(2, 600) == [ShutDownServer(1, False)]
    assert story.connects(3, 500) == []


def test_the_server_stays_if_the_waiting_client_leaves(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.connects(2, 600)
    assert story.feed(events.WaitingClientLeft(2)) == []
    assert story.feed(events.ClientGonePushed(1, 1)) == []
    assert story.daemon.queue.entries == []


def test_quit_without_a_server_exits_immediately(story: Story) -> None:
    assert story.says("quit") == [Working(1), Exit(0)]
    assert story.take_log() == ["Cmd:quit", "Exit with status 0"]


def test_quit_of_an_idle_server(story: Story) -> None:
    story.says("start_server -uid 0")
    story.is_ready(1, 847)
    story.take_log()
    assert story.says("quit") == [Working(1), ShutDownServer(1, False)]
    assert story.feed(events.ServerExited(1, 0)) == [Exit(0)]
    assert story.take_log() == [
        "Cmd:quit",
        "Try shutting down server 847, backoff is disabled",
        "Server 847 exited with status 0",
        "Exit with status 0",
    ]


def test_quit_with_a_timeout_forces_a_busy_server_then_kills_it(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.connects(2, 600)
    story.take_log()
    working, timer, refusal, leave = story.says("quit -t 1")
    assert (working, timer, leave) == (Working(1), SetTimer(Timer(TimerKind.FORCE), 1), ShutDownServer(1, False))
    assert isinstance(refusal, RefuseClient)
    assert (refusal.client, refusal.code) == (2, REFUSED)
    assert story.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == [ShutDownServer(1, True)]
    assert story.watches[-1] == (Timer(TimerKind.LEAVE, 1), 2.0)
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == [KillServer(1)]
    assert story.feed(events.ServerExited(1, -9)) == [Exit(0)]
    assert story.take_log() == [
        "Cmd:quit -t 1",
        "quit command issued with timeout of 1",
        "Try shutting down server 847, backoff is disabled",
        "Server 847 has 1 active worker threads. Server will not shutdown.",
        "Try shutting down server 847, backoff is disabled",
        "Server 847 has 1 active worker threads. Server will not shutdown.",
        "Force shutting down server 847",
        "Server 847 does not respond; killing it",
        "Server 847 exited with status -9",
        "Exit with status 0",
    ]


def test_quit_of_a_busy_server_waits_for_its_clients(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    assert story.says("quit") == [Working(1), ShutDownServer(1, False)]
    (refusal,) = story.connects(2, 500)
    assert isinstance(refusal, RefuseClient)
    assert "quitting" in refusal.reason
    assert story.feed(events.ClientGonePushed(1, 1)) == []
    assert story.feed(events.ServerExited(1, 0)) == [Exit(0)]


def test_quit_while_a_server_is_spawned_shuts_it_down_once_it_runs(story: Story) -> None:
    story.connects(1, 500)
    assert [type(instruction) for instruction in story.says("quit")] == [Working, RefuseClient]
    assert story.feed(events.ServerSpawned(1, 847)) == [ShutDownServer(1, False)]
    assert story.feed(events.StatusPushed(1, "ACTIVE")) == []
    assert story.feed(events.ServerExited(1, 0)) == [Exit(0)]


def test_a_server_spawned_after_the_forced_quit_is_killed(story: Story) -> None:
    story.connects(1, 500)
    story.says("quit -t 0")
    assert story.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == []
    assert story.feed(events.ServerSpawned(1, 847)) == [ShutDownServer(1, True)]
    assert story.watches[-1] == (Timer(TimerKind.LEAVE, 1), 2.0)
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == [KillServer(1)]
    assert story.feed(events.ServerExited(1, -9)) == [Exit(0)]


def test_commands_are_answered_while_a_quit_is_pending(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.says("quit", session=1)
    (reply,) = story.says("get_server_list", session=2)
    assert isinstance(reply, Reply)
    assert reply.answer.printed == "847\n"
    (refused,) = story.says("start_server -uid 600", session=2)
    assert isinstance(refused, Reply)
    assert refused.answer.refused
    assert "quitting" in refused.answer.diagnostic


def test_a_second_quit_joins_the_first_and_there_is_one_exit(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.says("quit", session=1)
    assert story.says("quit -t 5", session=2) == [Working(2), SetTimer(Timer(TimerKind.FORCE), 5)]
    assert story.feed(events.ServerExited(1, 0)) == [Exit(0)]
    assert story.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == []
    assert story.says("quit", session=3) == [Working(3)]
    assert story.feed(events.StopSignal()) == [SetTimer(Timer(TimerKind.FORCE), 2.0)]
    assert sum(isinstance(instruction, Exit) for instruction in story.instructions) == 1


def test_a_signal_shuts_down_within_a_time_limit(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    assert story.feed(events.StopSignal()) == [SetTimer(Timer(TimerKind.FORCE), 2.0), ShutDownServer(1, False)]
    assert story.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == [ShutDownServer(1, True)]
    assert story.feed(events.ServerExited(1, 0)) == [Exit(0)]


def test_a_force_timer_without_a_quit_does_nothing(story: Story) -> None:
    assert story.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == []
    assert story.take_log() == []


def test_a_failed_spawn_refuses_its_user_and_serves_the_next(story: Story) -> None:
    for client, uid in ((1, 500), (2, 600), (3, 500)):
        story.connects(client, uid)
    first, second, spawn = story.feed(events.SpawnFailed(1, "user 500 cannot pass the folder /root"))
    assert isinstance(first, RefuseClient)
    assert isinstance(second, RefuseClient)
    assert (first.client, second.client, first.code) == (1, 3, REFUSED)
    assert "user 500 could not be started: user 500 cannot pass the folder /root" in first.reason
    assert spawn == SpawnServer(2, 600, Peer(102, 600, 600, (600,)))
    assert story.take_log()[-1] == "Failed to start a server for user 500: user 500 cannot pass the folder /root"


def test_a_start_request_whose_spawn_failed_is_not_retried(story: Story) -> None:
    story.says("start_server -uid 500")
    (reply,) = story.feed(events.SpawnFailed(1, "no"))
    assert isinstance(reply, Reply)
    assert reply.answer.refused
    assert "could not be started: no" in reply.answer.diagnostic
    assert story.daemon.queue.entries == []


def test_a_server_that_cannot_start_refuses_its_user(story: Story) -> None:
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    assert story.feed(events.StartRefused(1, "device 0 is in use")) == []
    (refusal,) = story.feed(events.ServerExited(1, 1))
    assert isinstance(refusal, RefuseClient)
    assert "ended with status 1 before it was ready; see server.log" in refusal.reason
    assert story.take_log()[-1] == "Server 847 exited with status 1"
    assert story.connects(2, 500) == [SpawnServer(2, 500, Peer(102, 500, 500, (500,)))]


def test_after_an_active_server_died_the_next_client_gets_a_new_one(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.feed(events.ContextPushed(1, 1, 1, 1, 0))
    assert story.feed(events.ServerExited(1, -9)) == []
    assert story.connects(2, 500) == [SpawnServer(2, 500, Peer(102, 500, 500, (500,)))]


def test_a_users_own_daemon_refuses_others(own_story: Story) -> None:
    (refusal,) = own_story.connects(1, 1001)
    assert isinstance(refusal, RefuseClient)
    assert refusal.code == REFUSED
    assert "run by user 1000 and serves that user only, not 1001" in refusal.reason
    assert own_story.daemon.servers == {}
    # Of a process of another user a daemon that is not root's cannot tell whether its uid is a placeholder.
    (refusal,) = own_story.feed(
        events.ClientConnected(3, ClientProcess(Peer(103, OVERFLOW_UID, 0, foreign=True), "c", 7))
    )
    assert isinstance(refusal, RefuseClient)
    assert f"serves that user only, not {OVERFLOW_UID}" in refusal.reason
    assert [type(instruction) for instruction in own_story.connects(2, 1000)] == [SpawnServer]


def test_a_user_of_another_namespace_is_refused(story: Story) -> None:
    (refusal,) = story.feed(
        events.ClientConnected(1, ClientProcess(Peer(101, OVERFLOW_UID, 0, foreign=True), "c", 7))
    )
    assert isinstance(refusal, RefuseClient)
    assert "not mapped in the daemon's user namespace" in refusal.reason
    assert story.daemon.queue.entries == []
    # The user "nobody" of this namespace has the same uid.
    assert [type(instruction) for instruction in story.connects(2, OVERFLOW_UID)] == [SpawnServer]


def test_users_of_another_namespace_may_be_served_as_one(story: Story) -> None:
    story.daemon.options = evolve(story.daemon.options, serves_unmapped=True)
    peer = Peer(101, OVERFLOW_UID, OVERFLOW_UID, foreign=True)
    (spawn,) = story.feed(events.ClientConnected(1, ClientProcess(peer, "c", 7)))
    assert isinstance(spawn, SpawnServer)
    assert spawn.uid == OVERFLOW_UID
    assert peer.operator not in (0, OVERFLOW_UID), "the number may be the daemon's own"


def test_an_impossible_status_changes_nothing(story: Story) -> None:
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    with pytest.raises(IllegalMove):
        story.feed(events.StatusPushed(1, "FAULT"))
    assert story.daemon.servers[1].phase is Phase.INITIALIZING
    assert story.feed(events.StatusPushed(1, "ACTIVE")) == [AdmitClient(1, 1, 847, 0)]
    assert story.feed(events.StatusPushed(1, "ACTIVE")) == []
    assert story.feed(events.StatusPushed(9, "ACTIVE")) == []


def test_a_command_is_logged_as_one_line(story: Story) -> None:
    story.feed(events.OperatorLine(1, 0, parse(b"  foo\tbar \xff\r\nForged line\0hidden", 2)))
    logged = story.take_log()
    assert logged == ["Cmd:foo\tbar \udcff  Forged line", 'Unknown command "foo"']


def test_an_unknown_event_is_refused(story: Story) -> None:
    with pytest.raises(TypeError, match="str is not an event of the daemon"):
        story.feed("event")  # type: ignore[arg-type]


def test_every_phase_is_in_the_tables() -> None:
    assert set(MOVES) == set(Phase) == set(STATUS) | {Phase.GONE}


def test_an_idle_server_that_does_not_leave_is_killed_and_the_turn_passes(story: Story) -> None:
    story.says("start_server -uid 500")
    story.is_ready(1, 847)
    assert story.connects(1, 600) == [ShutDownServer(1, False)]
    assert story.watches[-1] == (Timer(TimerKind.LEAVE, 1), 5.0)
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == [KillServer(1)]
    (spawn,) = story.feed(events.ServerExited(1, -9))
    assert isinstance(spawn, SpawnServer)
    assert spawn.uid == 600
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == []


def test_a_leaving_server_with_clients_has_no_time_limit(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.says("shutdown_server 847")
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == []
    story.feed(events.ClientGonePushed(1, 1))
    assert story.watches[-1] == (Timer(TimerKind.LEAVE, 1), 5.0)
    assert story.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == [KillServer(1)]


def test_a_server_that_is_not_ready_in_time_is_killed_and_its_clients_refused(story: Story) -> None:
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    assert story.watches == [(Timer(TimerKind.START, 1), 60.0)]
    assert story.feed(events.TimerEnded(Timer(TimerKind.START, 1))) == [KillServer(1)]
    (refusal,) = story.feed(events.ServerExited(1, -9))
    assert isinstance(refusal, RefuseClient)


def test_a_ready_server_outlives_its_start_timer(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    assert story.feed(events.TimerEnded(Timer(TimerKind.START, 1))) == []


def test_during_a_fault_new_clients_go_to_the_server_and_an_idle_one_ends_its_turn(
    story: Story,
) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.feed(events.StatusPushed(1, "FAULT"))
    story.take_log()
    assert story.connects(2, 500) == [AdmitClient(2, 1, 847, 0)]
    assert story.take_log() == ["NEW CLIENT 102 from user 500: Server already exists"]
    story.feed(events.ClientGonePushed(1, 2))
    story.connects(3, 600)
    assert story.feed(events.ClientGonePushed(1, 1)) == [ShutDownServer(1, False)]
