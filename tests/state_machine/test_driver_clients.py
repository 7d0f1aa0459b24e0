"""Clients of the driver's own server: a process connects once for each context, and the server is asked for them."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.devices.machine import describe
from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    ChangeBackend,
    Exit,
    Instruction,
    RefuseClient,
    Reply,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
)
from pympsd.state_machine.state.client import ClientProcess, ReportedContext
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase
from pympsd.state_machine.state.turns import Turns
from pympsd.vocabulary.identities import Peer
from tests.state_machine.conftest import DEVICES, Story

A, B = 500, 600
SERVER = 847
FIRST, SECOND = 101, 102
"""PIDs of the clients 1 and 2."""


def joins(story: Story, client: int, pid: int, uid: int = A, process: int = 0) -> list[Instruction]:
    """Let a process connect as libcuda does, perhaps not for the first time."""
    peer = Peer(pid, uid, uid, (uid,))
    return story.feed(events.ClientConnected(client, ClientProcess(peer, "python3", 7, number=process), joins=True))


def list_admitted(instructions: list[Instruction]) -> list[tuple[int, int]]:
    """Return clients and the servers that they are admitted to."""
    return [
        (instruction.client, instruction.server)
        for instruction in instructions
        if isinstance(instruction, AdmitClient)
    ]


def reports(
    story: Story, contexts: dict[int, list[tuple[int, int, int]]], status: str = "ACTIVE"
) -> list[Instruction]:
    """Let the server 1 be asked; contexts are id, number and device, by PID."""
    reported = {pid: tuple(ReportedContext(*context) for context in some) for pid, some in contexts.items()}
    return story.feed(events.ServerReported(1, status, reported))


def says(story: Story, line: str) -> str:
    """Return what a command prints."""
    (reply,) = [instruction for instruction in story.says(line) if isinstance(instruction, Reply)]
    return reply.answer.printed


def turn_ends(story: Story) -> None:
    """Let the last turn timer end: the server takes no new clients any more."""
    timers = [timer for timer, _ in story.watches if timer.kind is TimerKind.TURN]
    story.feed(events.TimerEnded(timers[-1]))


def device_in_ps(story: Story) -> str:
    """Return what ps shows of the device of the only client."""
    heading, row = says(story, "ps").splitlines()
    assert row.startswith(str(FIRST))
    return row[heading.index("DEVICE") : heading.index("NAMESPACE")].strip()


@pytest.fixture
def busy(story: Story) -> Story:
    """User A's server with one client, and nobody who waits."""
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    story.take_log()
    return story


# --- further connections of a process


def test_a_further_connection_goes_to_the_processs_server_and_is_not_another_client(busy: Story) -> None:
    assert joins(busy, 2, FIRST) == [AdmitClient(2, 1, SERVER, 0)]
    assert list(busy.daemon.servers[1].clients) == [1]
    assert busy.take_log() == ["NEW CLIENT 101 from user 500: Server already exists"]
    assert says(busy, f"get_client_list {SERVER}") == "101\n"


def test_another_process_is_another_client(busy: Story) -> None:
    assert list_admitted(joins(busy, 2, SECOND)) == [(2, 1)]
    assert list(busy.daemon.servers[1].clients) == [1, 2]


def test_a_further_connection_is_admitted_though_the_turn_is_closed(busy: Story) -> None:
    joins(busy, 2, SECOND, B)
    turn_ends(busy)
    assert joins(busy, 3, 103) == [], "a new client of the same user waits"
    assert list_admitted(joins(busy, 4, FIRST)) == [(4, 1)], "its work would be lost otherwise"
    assert [entry.client for entry in busy.daemon.queue] == [2, 3]


def test_a_further_connection_is_admitted_with_an_overtaking_limit_of_0() -> None:
    story = Story(Daemon(DaemonOptions(0), DEVICES, turns=Turns(overtaking_seconds=0)))
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    joins(story, 2, SECOND, B)
    assert list_admitted(joins(story, 3, FIRST)) == [(3, 1)]


def test_a_further_connection_while_the_server_is_leaving(busy: Story) -> None:
    busy.says(f"shutdown_server {SERVER}")
    assert busy.daemon.servers[1].phase is Phase.LEAVING
    assert list_admitted(joins(busy, 2, FIRST)) == [(2, 1)]
    assert joins(busy, 3, SECOND) == [], "a new client waits for the next server"


def test_a_further_connection_while_the_daemon_is_quitting(busy: Story) -> None:
    busy.says("quit")
    assert list_admitted(joins(busy, 2, FIRST)) == [(2, 1)]
    assert [type(joined) for joined in joins(busy, 3, SECOND)] == [RefuseClient]


def test_no_further_connection_to_a_server_that_is_forced_to_end(busy: Story) -> None:
    busy.says(f"shutdown_server {SERVER} -f")
    assert joins(busy, 2, FIRST) == []
    assert [entry.client for entry in busy.daemon.queue] == [2], "it gets the next server"


def test_a_further_connection_during_a_fault(busy: Story) -> None:
    """As recorded: the server itself refuses it, or not."""
    busy.feed(events.StatusPushed(1, "FAULT"))
    assert list_admitted(joins(busy, 2, FIRST)) == [(2, 1)]


def test_a_process_that_has_left_is_a_new_client(busy: Story) -> None:
    joins(busy, 2, SECOND, B)
    turn_ends(busy)
    joins(busy, 3, 103)
    busy.feed(events.ClientGonePushed(1, 1))
    assert joins(busy, 4, FIRST) == []
    assert [entry.client for entry in busy.daemon.queue] == [2, 3, 4]


def test_processes_that_are_not_visible_are_distinguished(busy: Story) -> None:
    joins(busy, 2, 0, process=71)
    joins(busy, 3, 0, process=72)
    assert list(busy.daemon.servers[1].clients) == [1, 2, 3]
    assert list_admitted(joins(busy, 4, 0, process=72)) == [(4, 1)]
    assert list(busy.daemon.servers[1].clients) == [1, 2, 3]


def test_an_unknown_process_is_always_a_new_client(busy: Story) -> None:
    joins(busy, 2, SECOND, B)
    for client in (3, 4):
        joins(busy, client, 0, process=0)
    assert list(busy.daemon.servers[1].clients) == [1, 3, 4]
    turn_ends(busy)
    assert joins(busy, 5, 0) == []


def test_a_connection_that_is_not_a_further_one_waits_in_turn(busy: Story) -> None:
    """Of own servers' clients: they connect once."""
    joins(busy, 2, SECOND, B)
    turn_ends(busy)
    assert busy.connects(1001, A) == []
    assert busy.feed(events.ClientConnected(5, ClientProcess(Peer(FIRST, A, A, (A,)), "c", 7))) == []


def test_a_further_connection_counts_as_served(busy: Story) -> None:
    """A program that makes contexts proves that the server works."""
    assert not busy.daemon.servers[1].verified
    joins(busy, 2, FIRST)
    assert busy.daemon.servers[1].verified


@pytest.mark.parametrize("together", [False, True])
def test_another_users_process_with_a_reused_pid_is_not_a_further_connection(together: bool) -> None:
    """The client's end was not seen: there were too many to watch, or an earlier daemon admitted it."""
    story = Story(Daemon(DaemonOptions(0, max_servers=16 if together else 1), DEVICES))
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    assert list_admitted(joins(story, 2, FIRST, B)) == []


def test_two_connections_of_a_process_that_waits_are_one_client(story: Story) -> None:
    joins(story, 1, FIRST)
    joins(story, 2, FIRST)
    assert list_admitted(story.is_ready(1, SERVER)) == [(1, 1), (2, 1)]
    assert says(story, f"get_client_list {SERVER}") == "101\n"


def test_users_together_each_join_their_own_server() -> None:
    story = Story(Daemon(DaemonOptions(0, max_servers=16), DEVICES))
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    joins(story, 2, SECOND, B)
    story.is_ready(2, 848)
    assert list_admitted(joins(story, 3, FIRST)) == [(3, 1)]
    assert list_admitted(joins(story, 4, SECOND, B)) == [(4, 2)]


# --- what a server that was asked says


def test_reported_contexts_are_those_of_ps_in_the_servers_order(busy: Story) -> None:
    joins(busy, 2, SECOND)
    joins(busy, 3, 103)
    reports(busy, {SECOND: [(9, 1, 1)], FIRST: [(4, 1, 0), (-1, 2, 1)]})
    assert says(busy, f"get_client_list {SERVER}") == "102\n101\n103\n", "those without a context come last"
    _, *rows = [row.split() for row in says(busy, "ps").splitlines()]
    assert [row[:3] for row in rows] == [["102", "9", "847"], ["101", "4", "847"]]
    text = f"[0] 00:00.0, {DEVICES[0].name}\n101.1\n[1] 00:01.0, {DEVICES[1].name}\n102.1\n101.2\n"
    assert says(busy, "get_device_client_list") == text


def test_a_later_report_replaces_the_earlier(busy: Story) -> None:
    reports(busy, {FIRST: [(4, 1, 0)]})
    reports(busy, {})
    assert says(busy, "ps") == ""
    assert says(busy, f"get_client_list {SERVER}") == "101\n"
    assert busy.daemon.servers[1].clients[1].contexts == {}


def test_a_process_that_the_server_lists_and_nobody_admitted_is_passed_over(busy: Story) -> None:
    reports(busy, {4711: [(4, 1, 0)]})
    assert says(busy, "ps") == ""
    assert list(busy.daemon.servers[1].clients) == [1]


def test_contexts_of_processes_that_are_not_visible_are_listed_under_the_first(busy: Story) -> None:
    joins(busy, 2, 0, process=71)
    joins(busy, 3, 0, process=72)
    reports(busy, {0: [(4, 1, 0), (-1, 2, 0)]})
    contexts = [list(client.contexts) for client in busy.daemon.servers[1].clients.values()]
    assert contexts == [[4, -1], [], []]


def test_a_report_of_contexts_counts_as_served_and_one_without_does_not(busy: Story) -> None:
    reports(busy, {FIRST: []})
    assert not busy.daemon.servers[1].verified
    reports(busy, {FIRST: [(1, 1, 0)]})
    assert busy.daemon.servers[1].verified


@pytest.mark.parametrize(("reported", "shown"), [("ACTIVE", "ACTIVE"), ("FAULT", "FAULT")])
def test_the_reported_status_is_shown(busy: Story, reported: str, shown: str) -> None:
    reports(busy, {}, reported)
    assert says(busy, f"get_server_status {SERVER}") == f"{shown}\n"
    reports(busy, {}, "ACTIVE")
    assert says(busy, f"get_server_status {SERVER}") == "ACTIVE\n"


def test_a_late_report_of_a_leaving_server_is_ignored(busy: Story) -> None:
    busy.says(f"shutdown_server {SERVER}")
    reports(busy, {FIRST: [(1, 1, 0)]}, "ACTIVE")
    assert busy.daemon.servers[1].phase is Phase.LEAVING


def test_a_report_of_a_server_that_has_ended_is_passed_over(busy: Story) -> None:
    busy.feed(events.ServerExited(1, 0))
    assert reports(busy, {FIRST: [(1, 1, 0)]}) == []
    assert busy.daemon.servers == {}


def test_the_turn_passes_when_the_last_client_has_gone_whatever_was_reported(busy: Story) -> None:
    joins(busy, 2, FIRST)
    reports(busy, {FIRST: [(1, 1, 0), (-1, 2, 0)]})
    joins(busy, 3, SECOND, B)
    assert busy.feed(events.ClientGonePushed(1, 2)) == [], "a further connection has no end of its own"
    assert busy.feed(events.ClientGonePushed(1, 1)) == [ShutDownServer(1, False)]
    assert [
        instruction.uid
        for instruction in busy.feed(events.ServerExited(1, 0))
        if isinstance(instruction, SpawnServer)
    ] == [B]


# --- devices that the server reports


def test_devices_are_taken_from_the_first_server_that_reports_them() -> None:
    story = Story(Daemon(DaemonOptions(0), ()))
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    assert says(story, "device_query").splitlines()[2:] == [
        "",
        "Server 847",
        *says(story, "device_query").splitlines()[1:2],
    ]
    assert story.feed(events.DevicesReported(DEVICES)) == []
    assert story.daemon.devices == DEVICES
    story.feed(events.DevicesReported(describe("H100")))
    assert story.daemon.devices == DEVICES, "later ones change nothing"


def test_devices_that_are_known_stay(busy: Story) -> None:
    busy.feed(events.DevicesReported(describe("H100")))
    assert busy.daemon.devices == DEVICES


def test_ps_before_the_devices_are_known() -> None:
    """The server has contexts on devices that it has yet to report to the daemon."""
    story = Story(Daemon(DaemonOptions(0), ()))
    joins(story, 1, FIRST)
    story.is_ready(1, SERVER)
    reports(story, {FIRST: [(1, 1, 0)]})
    assert says(story, f"get_client_list {SERVER}") == "101\n"
    assert says(story, "get_device_client_list") == ""
    assert device_in_ps(story) == ""


def test_ps_shows_a_device_that_only_the_server_reports(busy: Story) -> None:
    reports(busy, {FIRST: [(1, 1, 1)]})
    assert device_in_ps(busy) == DEVICES[1].uuid[:22]
    for unknown in (-1, len(DEVICES)):
        reports(busy, {FIRST: [(1, 1, unknown)]})
        assert device_in_ps(busy) == ""


def test_the_silence_timer_is_not_set_for_a_process_that_is_watched_by_the_daemon(busy: Story) -> None:
    joins(busy, 2, SECOND, B)
    busy.feed(events.ClientGonePushed(1, 1))
    assert not [timer for timer, _ in busy.watches if timer == Timer(TimerKind.SILENCE, 1)]


# --- a driver's server that is not known

UNKNOWN = events.ServerUnknown(1, "it is not known")


@pytest.fixture
def choosing(story: Story) -> Story:
    """A daemon that may take another backend, with a client that waits for its first server."""
    story.daemon.options = evolve(story.daemon.options, has_other_backend=True)
    story.connects(1, 500)
    story.feed(events.ServerSpawned(1, 847))
    return story


def test_another_backend_is_taken_when_its_servers_have_ended(choosing: Story) -> None:
    refused, ended = choosing.feed(UNKNOWN)
    assert isinstance(refused, RefuseClient)
    assert "it is not known; the daemon takes another backend" in refused.reason
    assert ended == ShutDownServer(1, forced=True)
    assert choosing.feed(events.ServerExited(1, 0)) == [ChangeBackend()]


@pytest.mark.parametrize("end", ["quit", "signal"])
def test_the_end_of_the_daemon_comes_before_that(choosing: Story, end: str) -> None:
    choosing.feed(UNKNOWN)
    choosing.says("quit") if end == "quit" else choosing.feed(events.StopSignal())
    assert choosing.feed(events.ServerExited(1, 0)) == [Exit(0)]


def test_a_backend_that_has_served_somebody_stays(choosing: Story) -> None:
    choosing.feed(events.StatusPushed(1, "ACTIVE"))
    choosing.feed(events.ServerReported(1, "ACTIVE", {101: (ReportedContext(1, 1, 0),)}))
    assert choosing.feed(UNKNOWN) == []
    assert choosing.daemon.quitting is None


def test_the_limits_of_a_client_are_what_the_daemon_has_set(story: Story) -> None:
    story.daemon.options = evolve(story.daemon.options, has_own_servers=False)
    assert says(story, "set_default_active_thread_percentage 50") == "50.0\n"
    story.says("set_default_device_pinned_mem_limit 0 2G")
    joins(story, 1, FIRST)
    story.feed(events.ServerSpawned(1, SERVER))
    story.feed(events.StatusPushed(1, "ACTIVE"))
    limits = story.daemon.servers[1].clients[1].limits
    assert limits is not None
    assert (limits.thread_percentage, limits.memory[0], limits.multiprocessors[0]) == (50.0, 2 << 30, 66)


def test_memory_is_that_of_the_last_reading(story: Story) -> None:
    joins(story, 1, FIRST)
    story.feed(events.ServerSpawned(1, SERVER))
    story.feed(events.StatusPushed(1, "ACTIVE"))
    client = story.daemon.servers[1].clients[1]
    story.feed(events.ClientMemoryRead(1, {FIRST: {0: 4096}, SECOND: {0: 1}}))
    assert client.memory == {0: 4096}
    story.feed(events.ClientMemoryRead(1, {}))
    assert client.memory == {}
