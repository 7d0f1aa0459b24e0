"""Users together, event by event: each has a server immediately, up to the most; none waits for another's."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    ContinueWithoutMps,
    Exit,
    Instruction,
    KillServer,
    RefuseClient,
    Reply,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
)
from pympsd.state_machine.state.client import Client, ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import MAX_SERVERS, DaemonOptions
from pympsd.state_machine.state.turns import Turns
from pympsd.takeover.state.records import InitialDefaults, snapshot
from pympsd.vocabulary.identities import Peer
from tests.state_machine.conftest import DEVICES, Story

A, B, C, D = 500, 600, 700, 800


def spawn(server: int, client: int, uid: int) -> SpawnServer:
    """Return the start of a server for a client's sake."""
    return SpawnServer(server, uid, Peer(client + 100, uid, uid, (uid,)))


@pytest.fixture
def together() -> Story:
    """Users A and B have servers 847 and 848, with clients 1 and 2."""
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES))
    assert story.connects(1, A) == [spawn(1, 1, A)]
    assert story.connects(2, B) == [spawn(2, 2, B)]
    assert story.is_ready(1, 847) == [AdmitClient(1, 1, 847, 0)]
    assert story.is_ready(2, 848) == [AdmitClient(2, 2, 848, 0)]
    return story


@pytest.fixture
def full() -> Story:
    """The same, where two servers are the most."""
    story = Story(Daemon(DaemonOptions(0, max_servers=2), DEVICES))
    for number, uid in ((1, A), (2, B)):
        story.connects(number, uid)
        story.is_ready(number, 846 + number)
    story.take_log()
    return story


def test_each_user_has_a_server_immediately_and_nobody_takes_turns(together: Story) -> None:
    assert together.connects(3, A) == [AdmitClient(3, 1, 847, 0)]
    assert together.connects(4, B) == [AdmitClient(4, 2, 848, 0)]
    assert together.connects(5, C) == [spawn(3, 5, C)]
    assert not [line for line in together.take_log() if "turn" in line or "waited" in line]
    assert not [timer for timer, _ in together.watches if timer.kind is TimerKind.TURN]
    (listed,) = together.says("get_server_list")
    assert isinstance(listed, Reply)
    assert listed.answer.printed == "847\n848\n"


def test_with_an_overtaking_limit_of_0_nobody_waits_either() -> None:
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES, turns=Turns(overtaking_seconds=0)))
    for number, uid in ((1, A), (2, B)):
        story.connects(number, uid)
        story.is_ready(number, 846 + number)
    assert story.connects(3, A) == [AdmitClient(3, 1, 847, 0)]


def test_start_server_starts_one_next_to_another_users(together: Story) -> None:
    assert together.says(f"start_server -uid {C}") == [SpawnServer(3, C, None)]
    (reply,) = together.feed(events.ServerSpawned(3, 849))
    assert isinstance(reply, Reply)
    (again,) = together.says(f"start_server -uid {A}")
    assert isinstance(again, Reply)


def test_start_server_starts_any_number_of_servers_while_there_is_room() -> None:
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES))
    story.connects(1, 1001)
    for number in range(2, MAX_SERVERS + 1):
        assert story.says(f"start_server -uid {1000 + number}") == [SpawnServer(number, 1000 + number, None)]
    # Without room it is queued, and answered before there is a process.
    (queued,) = story.says(f"start_server -uid {1001 + MAX_SERVERS}")
    assert isinstance(queued, Reply)


def test_the_next_daemon_starts_all_requested_servers_up_to_the_maximum() -> None:
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES))
    wishes = tuple(range(1001, 1007))
    left = evolve(snapshot(story.daemon, InitialDefaults.of(story.daemon)), wishes=wishes)
    started = story.feed(events.PredecessorDied(left))
    assert [
        private_executor.uid for private_executor in started if isinstance(private_executor, SpawnServer)
    ] == list(wishes)


def test_a_server_without_clients_stays_while_there_is_room(together: Story) -> None:
    assert together.feed(events.ClientGonePushed(1, 1)) == []
    assert together.connects(3, C) == [spawn(3, 3, C)]
    assert together.connects(4, A) == [AdmitClient(4, 1, 847, 0)]


def test_a_servers_shutdown_makes_only_its_own_user_wait(together: Story) -> None:
    together.says("shutdown_server 847")
    assert together.connects(3, A) == []
    assert together.connects(4, B) == [AdmitClient(4, 2, 848, 0)]
    together.feed(events.ClientGonePushed(1, 1))
    assert together.feed(events.ServerExited(1, 0)) == [spawn(3, 3, A)]


def test_a_servers_failed_starts_make_only_its_own_user_wait(together: Story) -> None:
    together.connects(3, C)
    together.feed(events.ServerSpawned(3, 849))
    retry = Timer(TimerKind.RETRY, 3)
    assert [type(instruction).__name__ for instruction in together.feed(events.ServerExited(3, 1))] == ["SetTimer"]
    assert together.connects(4, D) == [spawn(4, 4, D)]
    assert together.connects(5, A) == [AdmitClient(5, 1, 847, 0)]
    assert together.feed(events.TimerEnded(retry)) == [spawn(5, 3, C)]


def test_a_server_that_cannot_start_refuses_its_own_user_only(together: Story) -> None:
    together.connects(3, C)
    together.feed(events.ServerSpawned(3, 849))
    together.feed(events.StartRefused(3, "the device is EXCLUSIVE_PROCESS, and process 847 uses it"))
    (refused,) = together.feed(events.ServerExited(3, 1))
    assert isinstance(refused, RefuseClient)
    assert (refused.client, "process 847 uses it" in refused.reason) == (3, True)
    assert together.connects(4, A) == [AdmitClient(4, 1, 847, 0)]


def test_a_debugged_client_waits_for_its_own_user_only(together: Story) -> None:
    assert [type(instruction) for instruction in together.connects(3, C, traced=True)] == [ContinueWithoutMps]
    assert together.connects(4, A, traced=True) == []
    assert together.feed(events.ClientGonePushed(2, 2)) == []
    assert [type(instruction) for instruction in together.feed(events.ClientGonePushed(1, 1))] == [ContinueWithoutMps]


def test_quit_ends_all_servers(together: Story) -> None:
    ended = [instruction for instruction in together.says("quit") if isinstance(instruction, ShutDownServer)]
    assert ended == [ShutDownServer(1, False), ShutDownServer(2, False)]
    assert together.feed(events.ServerExited(1, 0)) == []
    assert together.feed(events.ServerExited(2, 0)) == [Exit(0)]


# --- more users than servers


def test_a_user_beyond_the_most_waits_until_a_server_has_no_clients(full: Story) -> None:
    assert full.connects(3, C) == []
    assert full.connects(4, D) == []
    assert [line for line in full.take_log() if "turn" in line] == [
        "Client 103 of user 700 is waiting for its turn, behind one of 2 users",
        "Client 104 of user 800 is waiting for its turn, behind one of 2 users",
    ]
    assert full.connects(5, A) == [AdmitClient(5, 1, 847, 0)], "served users continue"
    assert full.feed(events.ClientGonePushed(2, 2)) == [ShutDownServer(2, False)]
    assert full.feed(events.ServerExited(2, 0)) == [spawn(3, 3, C)], "in order of arrival"
    assert not [timer for timer, _ in full.watches if timer.kind is TimerKind.TURN]


def test_no_more_servers_end_than_users_wait(full: Story) -> None:
    for number in (1, 2):
        assert full.feed(events.ClientGonePushed(number, number)) == []
    assert full.connects(3, C) == [ShutDownServer(1, False)], "the oldest"
    assert full.connects(4, C) == []
    assert full.connects(5, B) == [AdmitClient(5, 2, 848, 0)]
    assert full.feed(events.ServerExited(1, 0)) == [spawn(3, 3, C)]


def test_a_server_that_an_operator_ends_makes_room_only_when_its_clients_have_gone(full: Story) -> None:
    full.says("shutdown_server 847")
    full.feed(events.ClientGonePushed(2, 2))
    assert full.connects(3, C) == [ShutDownServer(2, False)], "the other one ends first"


def test_ended_clients_behind_a_silent_server_do_not_keep_its_place(full: Story) -> None:
    assert full.feed(events.ClientEnded(1, 1)) == []
    assert Timer(TimerKind.SILENCE, 1) not in dict(full.watches)
    full.connects(3, C)
    assert full.watches[-1] == (Timer(TimerKind.SILENCE, 1), 10.0)
    assert full.feed(events.TimerEnded(Timer(TimerKind.SILENCE, 1))) == [ShutDownServer(1, True)]
    assert full.feed(events.TimerEnded(Timer(TimerKind.LEAVE, 1))) == [KillServer(1)]
    assert full.feed(events.ServerExited(1, -9)) == [spawn(3, 3, C)]


def test_a_silent_server_is_left_alone_while_there_is_room(together: Story) -> None:
    together.feed(events.ClientEnded(1, 1))
    assert together.connects(3, C) == [spawn(3, 3, C)]
    assert Timer(TimerKind.SILENCE, 1) not in dict(together.watches)


def test_sixteen_servers_may_run_together() -> None:
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES))
    started: list[Instruction] = []
    for number in range(1, MAX_SERVERS + 2):
        started += story.connects(number, 1000 + number)
    assert [
        private_executor.uid for private_executor in started if isinstance(private_executor, SpawnServer)
    ] == list(range(1001, 1017))
    assert story.take_log()[-1] == "Client 117 of user 1017 is waiting for its turn, behind one of 16 users"


# --- another daemon, with or without the option


def take_over_all(before: Story, most_servers: int) -> Story:
    """Return the next daemon's story, its servers returned with their clients 1 and 2."""
    persistent_state = snapshot(before.daemon, InitialDefaults.of(Daemon(DaemonOptions(0), DEVICES)))
    story = Story(Daemon(DaemonOptions(0, max_servers=most_servers), DEVICES))
    story.feed(events.PredecessorDied(persistent_state))
    for number in (1, 2):
        client = Client(number, 0, ClientProcess(Peer(100 + number, 0, 0), "c", 7))
        story.feed(events.ServerTakenOver(number, "ACTIVE", leaving=False, clients=(client,)))
    story.take_log()
    return story


def test_the_next_daemon_takes_over_both_servers(together: Story) -> None:
    story = take_over_all(together, MAX_SERVERS)
    assert story.connects(3, A) == [AdmitClient(3, 1, 847, 0)]
    assert story.connects(4, B) == [AdmitClient(4, 2, 848, 0)]


def test_while_one_server_is_being_taken_over_other_users_continue(together: Story) -> None:
    persistent_state = snapshot(together.daemon, InitialDefaults.of(Daemon(DaemonOptions(0), DEVICES)))
    story = Story(Daemon(DaemonOptions(0, max_servers=MAX_SERVERS), DEVICES))
    story.feed(events.PredecessorDied(persistent_state))
    assert story.connects(3, A) == []
    (started,) = story.connects(4, C)
    assert isinstance(started, SpawnServer)
    assert started.uid == C


def test_a_daemon_of_users_in_turn_ends_the_servers_that_are_too_many(together: Story) -> None:
    story = take_over_all(together, most_servers=1)
    assert story.connects(3, C) == []
    assert story.take_log()[-1] == "Client 103 of user 700 is waiting for its turn, behind user 500, user 600"
    assert story.feed(events.ClientGonePushed(1, 1)) == [ShutDownServer(1, False)]
    assert story.feed(events.ServerExited(1, 0)) == []
    assert story.feed(events.ClientGonePushed(2, 2)) == [ShutDownServer(2, False)]
    (started,) = story.feed(events.ServerExited(2, 0))
    assert isinstance(started, SpawnServer)
    assert started.uid == C
