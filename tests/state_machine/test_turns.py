"""Turns between users, event by event: order of arrival, how long new clients may overtake, and the log lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    Exit,
    Instruction,
    RefuseClient,
    Reply,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
    Working,
)
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase
from pympsd.state_machine.state.turns import Turns, WaitingUser, fewest_turns, order
from pympsd.vocabulary.identities import Peer
from tests.state_machine.conftest import DEVICES, Story

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C = 500, 600, 700


def list_admitted(instructions: list[Instruction]) -> list[int]:
    """Return the ids of the clients that are admitted."""
    return [instruction.client for instruction in instructions if isinstance(instruction, AdmitClient)]


def turn_timers(story: Story) -> list[Timer]:
    """Return the timers of queue entries set until now."""
    return [timer for timer, _ in story.watches if timer.kind is TimerKind.TURN]


def turn_timer_ends(story: Story, number: int = -1) -> list[Instruction]:
    """Let a turn timer end, by default the last one that was set."""
    return story.feed(events.TimerEnded(turn_timers(story)[number]))


@pytest.fixture
def busy(story: Story) -> Story:
    """User A's server 847 with its client 1, and B's client 2 waiting."""
    story.connects(1, A)
    story.is_ready(1, 847)
    story.connects(2, B)
    story.take_log()
    return story


def test_a_waiting_client_has_a_turn_timer(busy: Story) -> None:
    assert busy.watches[-1] == (Timer(TimerKind.TURN, 2), 30.0)
    assert turn_timers(busy) == [Timer(TimerKind.TURN, 2)], "the first client cannot be overtaken"


def test_new_clients_overtake_until_the_turn_timer_ends(busy: Story) -> None:
    assert list_admitted(busy.connects(3, A)) == [3]
    assert turn_timer_ends(busy) == []
    assert busy.connects(4, A) == []
    assert busy.take_log() == [
        "NEW CLIENT 103 from user 500: Server already exists",
        "User 600 has waited 30 s; server 847 no longer accepts new clients from user 500",
        "NEW CLIENT 104 from user 500: Server is not ready, push client to pending list",
        "Client 104 of user 500 is waiting for its turn, behind user 600",
    ]
    # The admitted clients continue, and the turn passes with the last of them.
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ClientGonePushed(1, 3)) == [ShutDownServer(1, False)]
    (spawn,) = busy.feed(events.ServerExited(1, 0))
    assert isinstance(spawn, SpawnServer)
    assert spawn.uid == B
    assert list_admitted(busy.is_ready(2, 848)) == [2]
    assert busy.feed(events.ClientGonePushed(2, 2)) == [ShutDownServer(2, False)]
    busy.feed(events.ServerExited(2, 0))
    assert list_admitted(busy.is_ready(3, 849)) == [4]


def test_with_an_overtaking_limit_of_0_new_clients_never_overtake() -> None:
    story = Story(Daemon(DaemonOptions(0), DEVICES, turns=Turns(overtaking_seconds=0)))
    story.connects(1, A)
    story.is_ready(1, 847)
    story.take_log()
    story.connects(2, B)
    assert story.connects(3, A) == []
    assert story.watches == [(Timer(TimerKind.START, 1), 60.0)]
    assert story.take_log()[1:3] == [
        "Client 102 of user 600 is waiting for its turn, behind user 500",
        "User 600 has waited 0 s; server 847 no longer accepts new clients from user 500",
    ]


def test_with_an_overtaking_limit_of_0_clients_are_admitted_in_order() -> None:
    story = Story(Daemon(DaemonOptions(0), DEVICES, turns=Turns(overtaking_seconds=0)))
    for client, uid in ((1, A), (2, A), (3, B), (4, A)):
        story.connects(client, uid)
    assert list_admitted(story.is_ready(1, 847)) == [1, 2]


def test_whole_and_fractional_overtaking_limits_are_logged() -> None:
    story = Story(Daemon(DaemonOptions(0), DEVICES, turns=Turns(overtaking_seconds=0.25)))
    story.connects(1, A)
    story.is_ready(1, 847)
    story.connects(2, B)
    turn_timer_ends(story)
    assert (
        story.take_log()[-1] == "User 600 has waited 0.25 s; server 847 no longer accepts new clients from user 500"
    )


def test_closing_is_logged_once_for_a_server(busy: Story) -> None:
    busy.connects(3, C)
    turn_timer_ends(busy, 0)
    turn_timer_ends(busy, 1)
    assert [line for line in busy.take_log() if "no longer accepts new clients" in line] == [
        "User 600 has waited 30 s; server 847 no longer accepts new clients from user 500"
    ]
    busy.feed(events.ClientGonePushed(1, 1))
    busy.feed(events.ServerExited(1, 0))
    busy.is_ready(2, 848)
    assert busy.take_log()[-1] == "User 700 has waited 30 s; server 848 no longer accepts new clients from user 600"


def test_the_server_admits_new_clients_again_when_the_waiting_client_leaves(busy: Story) -> None:
    turn_timer_ends(busy)
    assert busy.connects(3, A) == []
    assert list_admitted(busy.feed(events.WaitingClientLeft(2))) == [3]
    assert list_admitted(busy.connects(4, A)) == [4]
    busy.connects(5, B)
    turn_timer_ends(busy)
    assert busy.take_log()[-1].startswith("User 600 has waited 30 s; server 847")


def test_a_late_new_client_waits_with_a_turn_timer_of_its_own(busy: Story) -> None:
    turn_timer_ends(busy)
    busy.connects(3, A)
    assert turn_timers(busy) == [Timer(TimerKind.TURN, 2), Timer(TimerKind.TURN, 4)]
    busy.feed(events.ClientGonePushed(1, 1))
    busy.feed(events.ServerExited(1, 0))
    busy.is_ready(2, 848)
    assert list_admitted(busy.connects(4, B)) == [4]
    busy.feed(events.TimerEnded(Timer(TimerKind.TURN, 4)))
    assert list_admitted(busy.connects(5, B)) == []


def test_a_client_from_before_the_turn_timers_end_is_served_with_its_users_first(busy: Story) -> None:
    busy.connects(3, C)
    busy.connects(4, B)
    turn_timer_ends(busy, 1)
    busy.connects(5, B)
    busy.feed(events.ClientGonePushed(1, 1))
    busy.feed(events.ServerExited(1, 0))
    # 4 was there when C had patience; 5 was not, and stays behind it.
    assert list_admitted(busy.is_ready(2, 848)) == [2, 4]
    for client in (2, 4):
        busy.feed(events.ClientGonePushed(2, client))
    busy.feed(events.ServerExited(2, 0))
    assert list_admitted(busy.is_ready(3, 849)) == [3]


def test_the_log_names_all_users_that_are_served_before(busy: Story) -> None:
    for client, uid in ((3, C), (4, A), (5, C), (6, B)):
        busy.connects(client, uid)
    assert [line for line in busy.take_log() if "is waiting for its turn" in line] == [
        "Client 103 of user 700 is waiting for its turn, behind user 500, user 600",
        # 105 is served with 103, and 106 with 102.
        "Client 105 of user 700 is waiting for its turn, behind user 500, user 600",
        "Client 106 of user 600 is waiting for its turn, behind user 500",
    ]


def test_waiting_for_ones_own_server_is_not_logged(story: Story) -> None:
    story.connects(1, A)
    story.connects(2, A)
    story.is_ready(1, 847)
    assert not [line for line in story.take_log() if "is waiting for its turn" in line]


def test_the_timer_of_a_client_that_left_is_cancelled(busy: Story) -> None:
    for client in range(3, 100):
        busy.connects(client, C)
        busy.feed(events.WaitingClientLeft(client))
    assert busy.cancelled == turn_timers(busy)[1:]
    assert busy.daemon.queue.timed == {2}
    # A timer that ended before it could be cancelled does nothing.
    assert busy.feed(events.TimerEnded(busy.cancelled[0])) == []
    assert list_admitted(busy.connects(100, A)) == [100]


def test_the_timer_of_an_admitted_client_is_cancelled(busy: Story) -> None:
    busy.feed(events.ClientGonePushed(1, 1))
    busy.feed(events.ServerExited(1, 0))
    busy.is_ready(2, 848)
    assert busy.cancelled == [Timer(TimerKind.TURN, 2)]


# --- start requests


def test_a_start_request_for_the_active_user_changes_nothing(busy: Story) -> None:
    turn_timer_ends(busy)
    before = list(busy.daemon.queue)
    assert [type(instruction) for instruction in busy.says(f"start_server -uid {A}")] == [Reply]
    assert list(busy.daemon.queue) == before


def test_a_start_request_for_another_user_is_served_in_order(busy: Story) -> None:
    assert [type(instruction) for instruction in busy.says(f"start_server -uid {C}")] == [Reply]
    assert busy.take_log()[-1] == "A server for user 700 is waiting for its turn, behind user 500, user 600"
    assert [type(instruction) for instruction in busy.says(f"start_server -uid {C}")] == [Reply]
    assert sum(entry.uid == C for entry in busy.daemon.queue) == 1
    busy.feed(events.ClientGonePushed(1, 1))
    busy.feed(events.ServerExited(1, 0))
    busy.is_ready(2, 848)
    assert busy.feed(events.ClientGonePushed(2, 2)) == [ShutDownServer(2, False)]
    assert busy.feed(events.ServerExited(2, 0)) == [SpawnServer(3, C, None)]
    assert busy.is_ready(3, 849) == []
    assert busy.daemon.queue.entries == []


def test_a_start_request_has_a_turn_timer_like_a_client(busy: Story) -> None:
    busy.feed(events.WaitingClientLeft(2))
    busy.says(f"start_server -uid {C}")
    assert list_admitted(busy.connects(3, A)) == [3]
    turn_timer_ends(busy)
    assert list_admitted(busy.connects(4, A)) == []


def test_a_start_request_stays_when_an_earlier_client_leaves(busy: Story) -> None:
    busy.says(f"start_server -uid {B}")
    busy.feed(events.WaitingClientLeft(2))
    busy.feed(events.ClientGonePushed(1, 1))
    assert busy.feed(events.ServerExited(1, 0)) == [SpawnServer(2, B, None)]


# --- the ends


def test_shutdown_server_passes_the_turn_when_its_clients_have_left(busy: Story) -> None:
    assert [type(instruction) for instruction in busy.says("shutdown_server 847")] == [Reply, ShutDownServer]
    assert busy.connects(3, A) == [], "a server that is shutting down admits no clients"
    assert busy.feed(events.ClientGonePushed(1, 1)) == []
    assert busy.feed(events.ServerExited(1, 0)) == [SpawnServer(2, B, Peer(102, B, B, (B,)))]
    assert list_admitted(busy.is_ready(2, 848)) == [2]


def test_shutdown_server_starts_another_for_the_first_user_in_the_queue(story: Story) -> None:
    story.connects(1, A)
    story.is_ready(1, 847)
    story.says("shutdown_server 847 -f")
    story.connects(2, A)
    story.connects(3, B)
    assert story.feed(events.ServerExited(1, 0)) == [SpawnServer(2, A, Peer(102, A, A, (A,)))]


@pytest.mark.parametrize(
    "end", [lambda story: story.says("quit"), lambda story: story.feed(events.StopSignal())], ids=["quit", "signal"]
)
def test_the_daemons_end_refuses_the_whole_queue_and_debugged_clients(
    busy: Story, end: Callable[[Story], list[Instruction]]
) -> None:
    for client, uid in ((3, C), (4, B)):
        busy.connects(client, uid)
    busy.says(f"start_server -uid {C}")
    busy.connects(5, A, traced=True)
    instructions = end(busy)
    refused = [instruction for instruction in instructions if isinstance(instruction, RefuseClient)]
    assert [(entry.client, entry.code) for entry in refused] == [(client, 805) for client in (2, 3, 4, 5)]
    assert set(busy.cancelled) == set(turn_timers(busy))
    busy.feed(events.ClientGonePushed(1, 1))
    assert busy.feed(events.ServerExited(1, 0)) == [Exit(0)]
    assert [type(instruction) for instruction in busy.says("quit")] == [Working]


def test_there_are_no_turns_in_multiuser_mode() -> None:
    story = Story(Daemon(DaemonOptions(0, multiuser=True), DEVICES, turns=Turns(overtaking_seconds=0)))
    for client, uid in ((1, A), (2, B)):
        story.connects(client, uid)
    assert list_admitted(story.is_ready(1, 847)) == [1, 2]
    assert list_admitted(story.connects(3, C)) == [3]
    assert turn_timers(story) == []
    assert [type(instruction) for instruction in story.says(f"start_server -uid {B}")] == [Reply]
    assert story.take_log() == [
        "NEW CLIENT 101 from user 0: Server is not ready, push client to pending list",
        "NEW CLIENT 102 from user 0: Server is not ready, push client to pending list",
        "Starting new server 847 for user 0",
        "NEW SERVER 847: Ready",
        "NEW CLIENT 103 from user 0: Server already exists",
        "Cmd:start_server -uid 600",
    ]
    assert story.daemon.servers[1].phase is Phase.ACTIVE


# --- turn policies


def ends(story: Story, server: int, client: int) -> list[Instruction]:
    """Let the last client of a server leave it, and the server end."""
    story.feed(events.ClientGonePushed(server, client))
    return story.feed(events.ServerExited(server, 0))


def list_spawned(instructions: list[Instruction]) -> list[int]:
    """Return the users whose servers start."""
    return [instruction.uid for instruction in instructions if isinstance(instruction, SpawnServer)]


def test_a_policy_chooses_who_is_next(story: Story) -> None:
    story.daemon.turns.policy = fewest_turns()
    story.connects(1, A)
    story.is_ready(1, 847)
    story.connects(2, B)
    ends(story, 1, 1)
    story.is_ready(2, 848)
    # A has had a turn, and C none: C is next, though A came before.
    story.connects(3, A)
    story.connects(4, C)
    assert list_spawned(ends(story, 2, 2)) == [C]


def test_the_policys_choice_is_admitted_before_a_user_who_waited_longer(story: Story) -> None:
    story.daemon.turns.policy = fewest_turns()
    story.connects(1, A)
    story.is_ready(1, 847)
    story.connects(2, B)
    ends(story, 1, 1)
    story.is_ready(2, 848)
    story.connects(3, A)
    turn_timer_ends(story)
    story.connects(4, C)
    ends(story, 2, 2)
    assert list_admitted(story.is_ready(3, 849)) == [4]
    ends(story, 3, 4)
    assert list_admitted(story.is_ready(4, 850)) == [3]


def test_a_policy_that_returns_no_waiting_user_changes_nothing(busy: Story) -> None:
    busy.daemon.turns.policy = lambda users: evolve(users[0], uid=1)
    busy.connects(3, C)
    assert list_spawned(ends(busy, 1, 1)) == [B]


@given(st.lists(st.builds(WaitingUser, st.integers(0), st.integers(1), st.integers(0, 3)), min_size=1))
def test_policies_return_one_of_those_who_wait(users: list[WaitingUser]) -> None:
    assert order()(users) is users[0]
    turn_policy = fewest_turns()(users)
    assert turn_policy.turns == min(user.turns for user in users)
    assert turn_policy is next(user for user in users if user.turns == turn_policy.turns)
