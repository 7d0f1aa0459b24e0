"""Drains: new clients are held or refused, running ones finish or are terminated in order, operators are answered."""

from __future__ import annotations

import json

import pytest

from pympsd.state_machine import events
from pympsd.state_machine.instructions import (
    AdmitClient,
    Instruction,
    Note,
    RefuseClient,
    ReleaseDriver,
    Reply,
    SetTimer,
    ShutDownServer,
    SpawnServer,
    TerminateClient,
    Timer,
    TimerKind,
    Working,
)
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.drains import TargetKind
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.takeover.state.records import InitialDefaults, check, snapshot
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.results import Result
from tests.state_machine.conftest import DEVICES, Story


@pytest.fixture
def busy(story: Story) -> Story:
    """Server 1 of user 500 with the clients 1 and 2, whose PIDs are 101 and 102."""
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.connects(2, 500)
    story.take_log()
    return story


def answers(instructions: list[Instruction]) -> list[tuple[int, str, bool]]:
    replies = [instruction for instruction in instructions if isinstance(instruction, Reply)]
    replies += [
        reply
        for instruction in instructions
        if isinstance(instruction, ReleaseDriver)
        for reply in instruction.answers
    ]
    return [(reply.session, reply.answer.printed, reply.answer.refused) for reply in replies]


def notes(instructions: list[Instruction], session: int = 1) -> list[str]:
    return [
        instruction.text
        for instruction in instructions
        if isinstance(instruction, Note) and instruction.session == session and instruction.is_output
    ]


def terminations(instructions: list[Instruction]) -> list[TerminateClient]:
    return [instruction for instruction in instructions if isinstance(instruction, TerminateClient)]


def leaves(story: Story, client: int, server: int = 1) -> list[Instruction]:
    return story.feed(events.ClientGonePushed(server, client))


def test_new_clients_wait_and_running_ones_finish(busy: Story) -> None:
    begun = busy.says("drain --user=500")
    assert Working(1) in begun
    assert notes(begun) == ["Draining --user=500: 2 clients are running, no clients are waiting."]
    assert busy.connects(3, 500) == []
    assert busy.take_log()[-1] == "Client 103 of user 500 is waiting because --user=500 is being drained"
    assert notes(leaves(busy, 1)) == ["Client 101 of user 500 on server uid_500: finished."]
    last = leaves(busy, 2)
    assert answers(last) == [(1, "Drained --user=500: no clients remain.\n", False)]
    assert busy.connects(4, 500) == []
    undrained = busy.says("undrain --user=500", session=2)
    text = "No longer draining --user=500.\n2 held clients are served now.\n"
    assert answers(undrained) == [(2, text, False)]
    assert [admit_client.client for admit_client in undrained if isinstance(admit_client, AdmitClient)] == [3, 4]


def test_other_users_are_served_meanwhile(story: Story) -> None:
    story.connects(1, 500)
    story.is_ready(1, 847)
    story.says("drain --user=500")
    assert story.connects(2, 500) == []
    leaves(story, 1)
    instructions = story.connects(3, 600)
    assert [instruction.forced for instruction in instructions if isinstance(instruction, ShutDownServer)] == [False]
    assert [
        instruction.uid
        for instruction in story.feed(events.ServerExited(1, 0))
        if isinstance(instruction, SpawnServer)
    ] == [600]


def test_refused_clients_get_a_sentence_that_names_the_drain(busy: Story) -> None:
    busy.connects(3, 600)
    begun = busy.says("drain --all --new-clients=refuse")
    reason = "--all is being drained: no new clients until 'pympsd undrain --all'"
    assert RefuseClient(3, Result.ERROR_MPS_SERVER_NOT_READY, reason) in begun
    assert busy.connects(4, 500) == [RefuseClient(4, Result.ERROR_MPS_SERVER_NOT_READY, reason)]


def test_after_the_timeout_clients_are_terminated_one_after_the_other(busy: Story) -> None:
    begun = busy.says("drain --user=500 --timeout=5")
    (timer,) = [instruction.timer for instruction in begun if isinstance(instruction, SetTimer)]
    assert SetTimer(Timer(TimerKind.DRAIN, timer.key), 5.0) in begun
    (first,) = terminations(busy.feed(events.TimerEnded(timer)))
    assert (first.server, first.pid, first.evicted) == (1, 101, (1,))
    ended = busy.feed(events.TerminationAnswered(1, first.token, 0))
    assert notes(ended) == ["Client 101 of user 500 on server uid_500: terminated."]
    (second,) = terminations(ended)
    assert (second.pid, second.evicted) == (102, (2,))
    last = busy.feed(events.TerminationAnswered(1, second.token, 0))
    assert answers(last) == [(1, "Drained --user=500: no clients remain.\n", False)]
    assert busy.daemon.drains.has_terminated(1)
    leaves(busy, 1)
    assert not busy.daemon.drains.has_terminated(1)


def test_then_fail_terminates_nothing_and_still_holds(busy: Story) -> None:
    busy.says("drain --user=500 --timeout=5 --then=fail")
    failed = busy.feed(events.TimerEnded(Timer(TimerKind.DRAIN, 1)))
    assert terminations(failed) == []
    text = "--user=500 was not drained within 5 s; nothing was terminated; remaining clients: 101, 102.\n"
    assert answers(failed) == [(1, text, True)]
    assert busy.connects(3, 500) == []
    listed = busy.says("get_drain_list", session=3)
    assert answers(listed) == [(3, "--user=500 not drained: 2 running, 1 held\n", False)]


def test_a_client_that_cannot_be_terminated_remains_and_is_named(busy: Story) -> None:
    (first,) = terminations(busy.says("drain --user=500 --timeout=0"))
    ended = busy.feed(events.TerminationAnswered(1, first.token, Result.ERROR_LAUNCH_TIMEOUT))
    assert notes(ended)[0].startswith(
        "Client 101 of user 500 on server uid_500: not terminated: a kernel of the client still"
    )
    (second,) = terminations(ended)
    last = busy.feed(events.TerminationAnswered(1, second.token, Result.ERROR_INVALID_CONTEXT))
    assert answers(last) == [(1, "--user=500 was not drained within 0 s; remaining clients: 101.\n", True)]


def test_a_release_ends_every_server_and_starts_none(busy: Story) -> None:
    begun = busy.says("drain --all --release")
    assert answers(begun) == []
    busy.connects(3, 600)
    assert [leaf for leaf in leaves(busy, 1) if isinstance(leaf, ShutDownServer)] == []
    assert ShutDownServer(1, False) in leaves(busy, 2)
    (released,) = [
        instruction for instruction in busy.feed(events.ServerExited(1, 0)) if isinstance(instruction, ReleaseDriver)
    ]
    assert [answer.answer.printed for answer in released.answers] == ["Drained --all: no clients remain.\n"]
    refused = answers(busy.says("start_server -uid 600", session=2))
    assert refused == [(2, "", True)]
    undrained = busy.says("undrain", session=3)
    assert [spawn_server.uid for spawn_server in undrained if isinstance(spawn_server, SpawnServer)] == [600]


def test_a_release_forces_servers_whose_clients_were_terminated_or_could_not_be(busy: Story) -> None:
    (first,) = terminations(busy.says("drain --all --release --timeout=0"))
    (second,) = terminations(busy.feed(events.TerminationAnswered(1, first.token, Result.ERROR_LAUNCH_TIMEOUT)))
    assert ShutDownServer(1, True) in busy.feed(events.TerminationAnswered(1, second.token, 0))
    ended = busy.feed(events.ServerExited(1, 0))
    assert answers(ended) == [(1, "Drained --all: no clients remain.\n", False)]


def test_a_second_drain_replaces_the_options_and_both_operators_are_answered(busy: Story) -> None:
    busy.says("drain --user=500")
    begun = busy.says("drain --user=500 --timeout=0 --then=fail", session=2)
    assert [(session, refused) for session, _, refused in answers(begun)] == [(1, True), (2, True)]


def test_overlapping_drains_share_what_was_terminated(busy: Story) -> None:
    busy.says("drain --all")
    (first,) = terminations(busy.says("drain 101 --timeout=0", session=2))
    ended = busy.feed(events.TerminationAnswered(1, first.token, 0))
    assert answers(ended) == [(2, "Drained 101: no clients remain.\n", False)]
    assert answers(leaves(busy, 2)) == [(1, "Drained --all: no clients remain.\n", False)]
    busy.connects(3, 500)
    assert [
        instruction for instruction in busy.says("undrain 101", session=3) if isinstance(instruction, AdmitClient)
    ] == []
    assert [
        instruction.client
        for instruction in busy.says("undrain --all", session=4)
        if isinstance(instruction, AdmitClient)
    ] == [3]


@pytest.mark.parametrize("target", ["--server=uid_500", "--all", "101"])
def test_a_later_drain_does_not_wait_for_what_an_earlier_one_has_terminated(busy: Story, target: str) -> None:
    leaves(busy, 2)
    (termination,) = terminations(busy.says("drain --user=500 --timeout=0"))
    busy.feed(events.TerminationAnswered(1, termination.token, 0))
    later = busy.says(f"drain {target} --timeout=5 --then=fail", session=2)
    assert notes(later, 2) == [f"Draining {target}: no clients are running, no clients are waiting."]
    assert answers(later) == [(2, f"Drained {target}: no clients remain.\n", False)]
    busy.says("undrain --user=500", session=3)
    assert busy.daemon.drains.has_terminated(1)


def test_the_drain_of_a_client_ends_when_the_client_ends(busy: Story) -> None:
    busy.says("drain 101")
    assert answers(leaves(busy, 1)) == [(1, "Drained 101: no clients remain.\n", False)]
    assert len(busy.daemon.drains) == 0


def test_undrain_answers_whoever_waits(busy: Story) -> None:
    busy.says("drain --all")
    undrained = answers(busy.says("undrain --all", session=2))
    assert undrained == [
        (2, "No longer draining --all.\n", False),
        (1, "--all was undrained before it was drained; remaining clients: 101, 102.\n", True),
    ]


def test_a_part_of_a_target_cannot_be_undrained(busy: Story) -> None:
    busy.says("drain --all")
    (refused,) = [
        instruction.answer
        for instruction in busy.says("undrain --user=500", session=2)
        if isinstance(instruction, Reply)
    ]
    assert (refused.refused, refused.diagnostic) == (True, "--user=500 is not being drained. Drains: --all.")


def test_clients_of_a_device_are_those_with_a_context_there(busy: Story) -> None:
    busy.feed(events.ContextPushed(1, 1, 1, 1, 0))
    busy.feed(events.ContextPushed(1, 2, 2, 1, 1))
    begun = busy.says("drain --device=1")
    assert notes(begun) == [f"Draining --device={DEVICES[1].uuid}: 1 client is running, no clients are waiting."]
    instructions = busy.feed(events.ContextGonePushed(1, 2, 2))
    assert answers(instructions) == [(1, f"Drained --device={DEVICES[1].uuid}: no clients remain.\n", False)]


@pytest.mark.parametrize(("visible", "is_held"), [(None, True), ("0,1", True), ("0", False)])
def test_draining_a_device_holds_only_new_clients_that_can_see_the_device(
    story: Story, visible: str | None, is_held: bool
) -> None:
    story.says("drain --device=1")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    started = story.feed(events.ClientConnected(1, _process(101, 500), environment))
    assert any(isinstance(private_executor, SpawnServer) for private_executor in started) is not is_held


def _process(pid: int, uid: int) -> ClientProcess:
    return ClientProcess(Peer(pid, uid, uid), "client")


def test_json_has_a_line_for_each_end(busy: Story) -> None:
    begun = busy.says("drain --all --json --timeout=9")
    ended = leaves(busy, 1)
    timeout = busy.feed(events.TimerEnded(Timer(TimerKind.DRAIN, 1)))
    (request,) = terminations(timeout)
    last = busy.feed(events.TerminationAnswered(1, request.token, 0))
    printed = [*notes(begun), *notes(ended), *notes(timeout), *notes(last), *(text for _, text, _ in answers(last))]
    client = {"uid": 500, "server": "uid_500"}
    assert [json.loads(text) for text in printed] == [
        {"target": "--all", "event": "begun", "clients": [{"pid": 101, **client}, {"pid": 102, **client}]},
        {"target": "--all", "event": "ended", "pid": 101, **client, "how": "finished"},
        {"target": "--all", "event": "timeout"},
        {"target": "--all", "event": "ended", "pid": 102, **client, "how": "terminated"},
        {"target": "--all", "event": "done", "drained": True, "left": []},
    ]


def test_a_quit_refuses_the_held_and_the_drain_continues(busy: Story) -> None:
    busy.says("drain --all")
    busy.connects(3, 500)
    assert [
        instruction.client for instruction in busy.says("quit", session=2) if isinstance(instruction, RefuseClient)
    ] == [3]
    leaves(busy, 1)
    assert answers(leaves(busy, 2)) == [(1, "Drained --all: no clients remain.\n", False)]


def test_the_next_daemon_continues_a_drain(busy: Story) -> None:
    initial = InitialDefaults.of(Daemon(DaemonOptions(0), DEVICES))
    busy.says("drain --user=500 --timeout=5")
    busy.feed(events.ClientConnected(3, _process(103, 500), connection=33))
    state = snapshot(busy.daemon, initial)
    check(state, len(DEVICES))
    assert state.queue_order == (33,)
    clients = tuple(busy.daemon.servers[1].clients.values())
    after = Story(Daemon(DaemonOptions(0), DEVICES))
    instructions = after.feed(events.PredecessorDied(state, connections=frozenset({33})))
    assert SetTimer(Timer(TimerKind.DRAIN, 1), 5.0) in instructions
    # Nothing is decided before the servers have returned.
    assert terminations(after.feed(events.TimerEnded(Timer(TimerKind.DRAIN, 1)))) == []
    (request,) = terminations(after.feed(events.ServerTakenOver(1, "ACTIVE", False, clients)))
    assert request.pid == 101
    assert after.feed(events.ClientConnected(1 << 41, _process(103, 500), connection=33)) == []
    (joined,) = [
        instruction for instruction in after.says("drain --user=500", session=8) if isinstance(instruction, Working)
    ]
    assert joined.session == 8
    assert snapshot(after.daemon, initial).drains[0].clients.keys() == {1, 2}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("drain", "'drain' takes one target, not 0: PID, --server, --namespace, --cgroup, --user, --device, --all."),
        ("drain --all --user=5", "'drain' takes one target, not 2: PID, --server,"),
        ("drain 7", "No client with PID 7."),
        ("drain --server=a", "No server named 'a', nor with this PID."),
        ("drain --namespace=a/b", "'--namespace' needs a daemon of protocol 3: protocol 2 has no namespaces."),
        ("drain --device=9", "No device '9'. Devices: 0 ("),
        ("drain --cgroup=a", "A cgroup is named by its full path"),
        ("drain --user=joe", "--user must be a user's number, not 'joe'."),
        ("drain --all --then=fail", "'drain' needs --timeout=<seconds> with --then."),
        ("drain --all --timeout=-1", "--timeout must be a number of seconds from 0 to 86400, not '-1'."),
        ("drain --all --timeout=5 --then=die", "--then must be terminate or fail, not 'die'."),
        ("drain --all --new-clients=no", "--new-clients must be wait or refuse, not 'no'."),
        ("drain --user=5 --release", "'drain' needs --all with --release"),
        ("undrain --all", "--all is not being drained. Drains: none."),
    ],
)
def test_bad_words_are_refused(story: Story, line: str, problem: str) -> None:
    (reply,) = [instruction for instruction in story.says(line) if isinstance(instruction, Reply)]
    assert reply.answer.refused
    assert reply.answer.diagnostic.startswith(problem)
    assert len(story.daemon.drains) == 0


@pytest.mark.parametrize(
    ("line", "uid", "is_allowed"),
    [
        ("drain --all", 500, False),
        ("drain --device=0", 500, False),
        ("drain --cgroup=/a", 500, False),
        ("drain --user=500", 500, True),
        ("drain --user=600", 500, False),
        ("drain 101", 500, True),
        ("drain 101", 600, False),
        ("drain --server=847", 500, True),
        ("drain --server=uid_500", 600, False),
    ],
)
def test_users_may_drain_only_their_own_clients_and_servers(
    busy: Story, line: str, uid: int, is_allowed: bool
) -> None:
    replies = [instruction.answer for instruction in busy.says(line, uid=uid) if isinstance(instruction, Reply)]
    assert [answer.refused for answer in replies] == ([] if is_allowed else [True])
    assert [drain.target.kind for drain in busy.daemon.drains] == ([TargetKind(_kind(line))] if is_allowed else [])


def _kind(line: str) -> str:
    word = line.split()[1]
    return word.lstrip("-").partition("=")[0] if word.startswith("-") else "client"
