"""A daemon after one that was killed: the state it starts with, the servers it awaits, and its way without them."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    Exit,
    Instruction,
    KillServer,
    Reply,
    SetTimer,
    ShutDownServer,
    SpawnServer,
    Timer,
    TimerKind,
    UpdateServerLimits,
    WatchClient,
    Working,
)
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.state_machine.state.daemon import Daemon, Defaults
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.takeover import TAKEOVER_TIMEOUT, first_id
from pympsd.takeover.state.records import (
    InitialDefaults,
    PersistentConfiguration,
    PersistentQuit,
    PersistentServer,
    PersistentState,
    check,
    snapshot,
)
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from tests.state_machine.conftest import DEVICES, Story

A, B, C, D = 500, 600, 700, 800
SERVER, PID = 1, 847
CLIENT = Client(7, 0, ClientProcess(Peer(4107, 0, 0), "train", 99), {3: ReportedContext(3, 1, 1)})
TIMER = Timer(TimerKind.RETURN, SERVER)
PLACES = Timer(TimerKind.PLACES)


def leave_state(**more: object) -> PersistentState:
    """Return the state of a daemon whose one server was user A's."""
    server = PersistentServer(SERVER, PID, A, 60.0, {1: 1 << 30})
    return evolve(PersistentState(generation=2, servers=(server,)), **more)


def get_printed(story: Story, line: str) -> str:
    """Return what a command prints."""
    (reply,) = story.says(line)
    assert isinstance(reply, Reply)
    return reply.answer.printed


def returns(story: Story, status: str = "ACTIVE", *clients: events.TakenOverClient, leaving: bool = False):  # type: ignore[no-untyped-def]
    """Let the server come back."""
    return story.feed(events.ServerTakenOver(SERVER, status, leaving, clients))


@pytest.fixture
def heir(story: Story) -> Story:
    """A daemon that awaits the server of user A."""
    assert [type(instruction).__name__ for instruction in story.feed(events.PredecessorDied(leave_state()))] == [
        "SetTimer"
    ]
    return story


def test_the_server_is_waited_for_for_a_while(heir: Story) -> None:
    assert heir.take_log() == [f"Server {PID} of user {A} ran under the previous daemon; waiting for its report"]
    assert get_printed(heir, "get_server_list") == f"{PID}\n"
    assert get_printed(heir, f"get_server_status {PID}") == "INITIALIZING\n"
    assert get_printed(heir, f"get_client_list {PID}") == ""


@pytest.mark.parametrize("uid", [A, B])
def test_no_server_is_started_while_an_earlier_one_is_awaited(heir: Story, uid: int) -> None:
    assert heir.connects(1, uid) == []
    assert [type(instruction).__name__ for instruction in heir.says(f"start_server -uid {uid}")] == ["Reply"]


def test_a_server_returns_with_its_clients_and_admits_waiting_ones(heir: Story) -> None:
    heir.connects(1, A)
    instructions = returns(heir, "ACTIVE", CLIENT)
    watch, admit = WatchClient(7, SERVER, 4107), AdmitClient(1, SERVER, PID, 0)
    assert instructions == [UpdateServerLimits(SERVER, 60.0, {1: 1 << 30}), watch, admit]
    assert get_printed(heir, f"get_client_list {PID}") == "4107\n101\n"
    pid, id_, server, _, namespace, command = get_printed(heir, "ps").splitlines()[1].split()
    assert (pid, id_, server, namespace, command) == ("4107", "3", str(PID), "99", "train")
    assert f"Took over server {PID} of user {A} with 1 clients" in heir.logged
    # A timer that ends late changes nothing.
    assert heir.feed(events.TimerEnded(TIMER)) == []
    assert heir.feed(events.ClientGonePushed(SERVER, 7)) == []


def test_a_returned_server_keeps_clients_of_other_users_waiting(heir: Story) -> None:
    heir.connects(1, B)
    assert AdmitClient not in map(type, returns(heir, "ACTIVE", CLIENT))
    assert heir.feed(events.ClientGonePushed(SERVER, 7)) == [ShutDownServer(SERVER, forced=False)]


def test_a_returned_server_that_was_leaving_continues_to_leave(heir: Story) -> None:
    heir.connects(1, A)
    assert AdmitClient not in map(type, returns(heir, "ACTIVE", CLIENT, leaving=True))
    (spawn,) = heir.feed(events.ServerExited(SERVER, None))
    assert isinstance(spawn, SpawnServer)
    assert spawn.server == first_id(3)


def test_a_returned_server_keeps_its_fault(heir: Story) -> None:
    returns(heir, "FAULT", CLIENT)
    assert get_printed(heir, f"get_server_status {PID}") == "FAULT\n"


def test_a_server_that_does_not_return_is_killed_and_the_queue_moves_on(heir: Story) -> None:
    heir.connects(1, A)
    heir.take_log()
    assert heir.feed(events.TimerEnded(TIMER)) == [KillServer(SERVER)]
    (spawn,) = heir.feed(events.ServerExited(SERVER, None))
    assert isinstance(spawn, SpawnServer)
    assert heir.take_log() == [
        f"Server {PID} did not report within {TAKEOVER_TIMEOUT:g} s; killing it",
        f"Server {PID} has exited; its exit status is unknown because another daemon started it",
    ]


def test_a_server_that_is_not_taken_over_is_forgotten(heir: Story) -> None:
    heir.connects(1, A)
    (spawn,) = heir.feed(events.ServerNotTakenOver(SERVER, "other devices"))
    assert isinstance(spawn, SpawnServer)
    assert heir.feed(events.ServerExited(SERVER, None)) == []


def test_limits_set_meanwhile_are_sent_to_a_returned_server(heir: Story) -> None:
    heir.says(f"set_active_thread_percentage {PID} 25")
    assert returns(heir)[0] == UpdateServerLimits(SERVER, 25.0, {1: 1 << 30})


def test_shutdown_of_a_server_that_is_being_taken_over(heir: Story) -> None:
    assert ShutDownServer(SERVER, forced=False) in heir.says(f"shutdown_server {PID}")
    # It is not killed for leaving slowly, because it may have clients.
    assert heir.feed(events.TimerEnded(Timer(TimerKind.LEAVE, SERVER))) == []
    returns(heir, "ACTIVE", CLIENT)
    assert heir.feed(events.TimerEnded(Timer(TimerKind.LEAVE, SERVER))) == []
    heir.feed(events.ClientGonePushed(SERVER, 7))
    assert heir.feed(events.TimerEnded(Timer(TimerKind.LEAVE, SERVER))) == [KillServer(SERVER)]


@pytest.mark.parametrize("line", ["quit", "quit -t 0"])
def test_quit_while_a_server_is_being_taken_over(heir: Story, line: str) -> None:
    instructions = heir.says(line)
    assert instructions[0] == Working(1)
    assert ShutDownServer(SERVER, forced=False) in instructions
    if line == "quit":
        assert heir.feed(events.TimerEnded(TIMER)) == [KillServer(SERVER)]
    else:
        assert heir.feed(events.TimerEnded(Timer(TimerKind.FORCE))) == [ShutDownServer(SERVER, forced=True)]
        assert heir.feed(events.TimerEnded(Timer(TimerKind.LEAVE, SERVER))) == [KillServer(SERVER)]
    assert heir.feed(events.ServerExited(SERVER, None)) == [Exit(0)]


def quits(story: Story, *lines: str) -> PersistentState:
    """Return what a daemon with a client leaves that is killed in a quit."""
    initial = InitialDefaults.of(story.daemon)
    story.connects(1, A)
    story.is_ready(SERVER, PID)
    for line in lines:
        story.says(line)
    return snapshot(story.daemon, initial)


def test_an_operators_quit_continues(story: Story) -> None:
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    heir.feed(events.PredecessorDied(quits(story, "quit")))
    assert heir.take_log()[-1] == "An operator asked the previous daemon to quit; this daemon will quit instead"
    assert [type(instruction).__name__ for instruction in heir.connects(2, B)] == ["RefuseClient"]
    assert ShutDownServer(SERVER, forced=False) in returns(heir, "ACTIVE", CLIENT)
    # It persists for the daemon after that, too.
    assert snapshot(heir.daemon, InitialDefaults.of(heir.daemon)).quit == PersistentQuit()
    assert heir.feed(events.ServerExited(SERVER, None)) == [Exit(0)]


@pytest.mark.parametrize(("lines", "seconds"), [(("quit -t 9", "quit -t 7"), 7.0), (("quit", "quit -t 5"), 5.0)])
def test_the_time_limit_of_an_end_begins_again(story: Story, lines: tuple[str, ...], seconds: float) -> None:
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    force = Timer(TimerKind.FORCE)
    assert SetTimer(force, seconds) in heir.feed(events.PredecessorDied(quits(story, *lines)))
    returns(heir, "ACTIVE", CLIENT)
    assert ShutDownServer(SERVER, forced=True) in heir.feed(events.TimerEnded(force))
    # Force that has been used is used again immediately.
    remembered = snapshot(heir.daemon, InitialDefaults.of(heir.daemon))
    assert SetTimer(force, 0.0) in Story(Daemon(DaemonOptions(0), DEVICES)).feed(events.PredecessorDied(remembered))


def test_a_quit_is_finished_if_no_server_was_taken_over(story: Story) -> None:
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    heir.feed(events.PredecessorDied(evolve(quits(story, "quit"), servers=())))
    assert [type(instruction).__name__ for instruction in heir.connects(2, B)] == ["SpawnServer"]


def test_a_signal_is_for_one_daemon_only(story: Story) -> None:
    quits(story)
    story.feed(events.StopSignal())
    assert snapshot(story.daemon, InitialDefaults.of(story.daemon)).quit is None


def test_a_debugged_client_waits_for_the_clients_of_a_server_that_is_taken_over(heir: Story) -> None:
    assert heir.connects(1, A, traced=True) == []
    returns(heir, "ACTIVE", CLIENT)
    assert 1 in heir.daemon.queue.debugged
    assert [type(instruction).__name__ for instruction in heir.feed(events.ClientGonePushed(SERVER, 7))] == [
        "ContinueWithoutMps"
    ]


def test_only_values_set_by_commands_persist(story: Story) -> None:
    initial = InitialDefaults.of(story.daemon)
    assert snapshot(story.daemon, initial) == PersistentState()
    story.says("set_default_active_thread_percentage 40")
    story.says("set_default_device_pinned_mem_limit 1 2G")
    remembered = snapshot(story.daemon, initial)
    assert remembered == PersistentState(
        thread_percentage=40.0, memory_limits={1: 2 << 30}, configuration=PersistentConfiguration(2, "", "")
    )
    heir = Story(Daemon(DaemonOptions(0), DEVICES, Defaults(ThreadPercentage(90.0), ClientPriority(1))))
    own = InitialDefaults.of(heir.daemon)
    heir.feed(events.PredecessorDied(remembered))
    daemon = heir.daemon
    assert (daemon.defaults.thread_percentage.value, daemon.defaults.client_priority.level) == (40.0, 1)
    assert daemon.defaults.memory_limits == {1: PinnedMemory(2 << 30)}
    # It persists for the daemon after that, too.
    assert snapshot(daemon, own) == remembered


def test_a_start_request_persists(story: Story) -> None:
    initial = InitialDefaults.of(story.daemon)
    (spawn,) = story.says(f"start_server -uid {A}")
    assert isinstance(spawn, SpawnServer)
    story.feed(events.ServerSpawned(spawn.server, PID))
    remembered = snapshot(story.daemon, initial)
    assert remembered.wishes == (A,)
    # Its process, which was not ready, has ended.
    (again,) = Story(Daemon(DaemonOptions(0), DEVICES)).feed(events.PredecessorDied(evolve(remembered, servers=())))
    assert isinstance(again, SpawnServer)
    assert again.uid == A


def leave_queue(story: Story) -> PersistentState:
    """Return what a daemon leaves in whose queue are a client of A, a request for B and another client of A.

    User C has the turn.
    """
    story.connects(1, C)
    story.is_ready(1, PID)
    initial = InitialDefaults.of(story.daemon)
    waits(story, 2, A, connection=12)
    story.says(f"start_server -uid {B}")
    waits(story, 3, B, connection=11)
    return snapshot(story.daemon, initial)


def waits(story: Story, client: int, uid: int, connection: int) -> list[Instruction]:
    """Let a client connect; its connection has an id."""
    peer = Peer(client + 100, uid, uid, (uid,))
    return story.feed(events.ClientConnected(client, ClientProcess(peer, "waits", 7), connection=connection))


def begins_for(instructions: list[Instruction]) -> list[int]:
    """Return the users for whom a server is started."""
    return [instruction.uid for instruction in instructions if isinstance(instruction, SpawnServer)]


def is_queued(story: Story) -> list[tuple[int, int]]:
    """Return the users and clients in the queue."""
    return [(entry.uid, entry.client) for entry in story.daemon.queue]


@pytest.mark.parametrize("order", [(11, 12), (12, 11)])
def test_the_queue_keeps_its_order_in_whatever_order_its_clients_return(story: Story, order: tuple[int, int]) -> None:
    persistent_state = leave_queue(story)
    assert is_queued(story) == [(A, 2), (B, 0), (B, 3)]
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    heir.feed(events.PredecessorDied(persistent_state, connections=frozenset({11, 12})))
    heir.connects(9, D)  # later than all of them
    uids = {12: A, 11: B}
    for connection in order:
        waits(heir, connection, uids[connection], connection)
    assert is_queued(heir) == [(A, 12), (B, 0), (B, 11), (D, 9)]
    again = snapshot(heir.daemon, InitialDefaults.of(heir.daemon))
    assert again.queue_order == (12, 0, 11), "the last client's connection is not known"
    assert again.wishes == (B,)


def test_a_start_request_does_not_overtake_a_client_that_has_not_returned(story: Story) -> None:
    kept = evolve(leave_queue(story), servers=())
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    inherited = heir.feed(events.PredecessorDied(kept, connections=frozenset({11, 12})))
    assert inherited == [SetTimer(PLACES, TAKEOVER_TIMEOUT)], "no server is started"
    between = snapshot(heir.daemon, InitialDefaults.of(heir.daemon))
    assert between.queue_order == kept.queue_order, "a daemon that is killed soon leaves the same queue"
    assert begins_for(waits(heir, 5, A, connection=12)) == [A]


def test_a_client_that_waited_and_does_not_return_is_given_up(story: Story) -> None:
    kept = evolve(leave_queue(story), servers=())
    for connections, timed in ((frozenset({11}), []), (frozenset({12}), [B])):
        heir = Story(Daemon(DaemonOptions(0), DEVICES))
        begun = begins_for(heir.feed(events.PredecessorDied(kept, connections=connections)))
        assert begun == ([] if timed else [B])
        assert begins_for(heir.feed(events.TimerEnded(PLACES))) == timed
        assert heir.daemon.queue.reserved == {}


def test_a_waiting_client_that_the_next_daemon_refuses_does_not_block_the_queue(story: Story) -> None:
    kept = evolve(leave_queue(story), servers=())
    heir = Story(Daemon(DaemonOptions(0), DEVICES))
    heir.feed(events.PredecessorDied(kept, connections=frozenset({12})))
    foreign = Peer(105, A, A, (A,), foreign=True)
    assert begins_for(heir.feed(events.ClientConnected(5, ClientProcess(foreign, "waits", 7), connection=12))) == [B]


@pytest.mark.parametrize(
    "bad",
    [
        leave_state(thread_percentage=0.0),
        leave_state(client_priority=7),
        leave_state(generation=-1),
        leave_state(memory_limits={9: 5}),
        leave_state(memory_limits={0: -5}),
        leave_state(servers=(PersistentServer(1, 0, A, 60.0, {}),)),
        leave_state(servers=(PersistentServer(1, PID, A, 101.0, {}),)),
        leave_state(servers=(PersistentServer(1, PID, A, 60.0, {2: 5}),)),
        leave_state(quit=PersistentQuit(-1.0)),
    ],
)
def test_an_impossible_state_is_refused(bad: PersistentState) -> None:
    check(leave_state(), len(DEVICES))
    with pytest.raises(ValueError, match=r"."):
        check(bad, len(DEVICES))
