"""Shares of the daemon: what a user may have, what all users leave for others, and what nobody's servers delay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from attrs import evolve

from pympsd.commands.grammar.line import parse
from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine import events, shares
from pympsd.state_machine import instructions as do
from pympsd.state_machine.decide import handle
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon, Usage
from pympsd.state_machine.state.options import MAX_NAMED_SERVERS, DaemonOptions
from pympsd.takeover.state.records import InitialDefaults, PersistentState, check, snapshot
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limit_table import percentage_on
from pympsd.vocabulary.shares import (
    CONNECTIONS,
    DESCRIPTORS,
    NAMESPACES,
    PROCESSES,
    SERVERS,
    SM_CHUNKS,
    BadResourceShare,
    Shares,
)

Command = Callable[..., str]
USER, OTHER = 1000, 1001


@pytest.fixture
def daemon() -> Daemon:
    """Root's daemon of protocol 3 on two devices."""
    return new_daemon()


def new_daemon(devices: str = "2xH200") -> Daemon:
    return Daemon(
        DaemonOptions(0, protocol=3, max_servers=MAX_NAMED_SERVERS + 1, pipe_directory="/p"),
        describe(devices),
        usage=Usage(Shares(descriptors=1 << 20)),
    )


@pytest.fixture
def command(daemon: Daemon) -> Command:
    """Carry out a command of a user; return the refusal, or nothing. Sockets are opened."""
    sessions = count(1)

    def decide(uid: int, line: str, file: str | None = None) -> str:
        text = None if file is None else file.encode()
        return get_reason(daemon, events.OperatorLine(next(sessions), uid, parse(line.encode(), 3), file=text))

    return decide


def get_reason(daemon: Daemon, event: events.Event) -> str:
    """Handle an event, and what follows from it; return why a command or a client was refused."""
    refusal = ""
    left = [event]
    while left:
        for instruction in handle(daemon, left.pop(0), answer_line):
            match instruction:
                case do.OpenNamespace(server, namespace, _):
                    left.append(events.NamespaceOpened(server, namespace, ""))
                case do.Reply(_, answer) if answer.refused:
                    refusal += answer.printed + answer.diagnostic
                case do.RefuseClient(_, code, reason):
                    refusal += f"{code}: {reason}"
    return refusal


def connect(daemon: Daemon, uid: int, server: str = "") -> str:
    """Connect a client of a user; return why it was refused."""
    client = daemon.queue.tickets.take() + 10_000
    return get_reason(
        daemon, events.ClientConnected(client, ClientProcess(Peer(client, uid, uid), "train", 7), server=server)
    )


def fill(command: Command, users: range) -> str:
    """Have users make servers until each is refused; return the last refusal."""
    refusal = ""
    for uid in users:
        for number in count():
            if refusal := command(uid, f"server create u{uid}_{number} --allowed-devices=0"):
                break
    return refusal


def test_users_together_leave_servers_for_others_first_clients_and_for_root(daemon: Daemon, command: Command) -> None:
    refusal = fill(command, range(1000, 1020))
    assert refusal == (
        "All users together have 128 of at most 128 servers that are not reserved; an administrator can delete some "
        "('server list' has their users).\n"
    )
    assert len(daemon.named_servers) == 128
    for uid in range(2000, 2096):
        assert connect(daemon, uid) == ""
    assert connect(daemon, 2096) == (
        "805: all users together have 224 of at most 224 servers that are not reserved; an administrator can delete "
        "some ('server list' has their users)"
    )
    assert connect(daemon, 0) == ""
    tables = "".join(f"[servers.r{number}]\nuid = {USER}\n" for number in range(31))
    assert command(0, "config apply F", f'schema_version = "1.0"\n{tables}') == ""
    assert len(daemon.named_servers) == SERVERS.total
    assert "Everybody together has 256 of at most 256 servers; " in command(0, "server create more")
    assert daemon.usage.refusals[0, "servers"] == 1


def test_root_may_give_a_user_more_than_a_share_which_counts_for_that_user(daemon: Daemon, command: Command) -> None:
    daemon.usage.shares = Shares({"servers": 1})
    assert command(USER, "server create a") == ""
    assert command(0, f"server create b --uid={USER}") == ""
    assert "has 2 of at most 1 servers (a, b): delete one of them" in command(USER, "server create c")
    assert command(USER, "server create").startswith("'server create' needs <name> or --uid=<n>.")
    assert command(USER, f"server create --uid={USER}") == "", "a user's own server is not part of the share"
    assert command(0, f"server set b --uid={OTHER}") != "", "while it starts"
    assert shares.count_used(daemon, SERVERS, USER) == 2


def test_the_daemons_own_user_has_no_share(command: Command, daemon: Daemon) -> None:
    daemon.options = evolve(daemon.options, uid=USER)
    daemon.usage.shares = Shares({"servers": 0, "namespaces": 0})
    assert command(USER, "server create a") == ""
    assert command(USER, "namespace create n --server=a") == ""


@pytest.mark.parametrize(("devices", "cost"), [("", 3), (" --allowed-devices=1", 2)])
def test_a_server_counts_the_processes_that_it_may_start(
    daemon: Daemon, command: Command, devices: str, cost: int
) -> None:
    daemon.usage.shares = Shares({"processes": 7})
    count = 0
    while not (refusal := command(USER, f"server create s{count}{devices}")):
        count += 1
    assert (count, shares.count_used(daemon, PROCESSES, USER)) == (7 // cost, 7 // cost * cost)
    assert (
        f"has {count * cost} of at most 7 processes, and {cost} more are needed: delete a server, or give" in refusal
    )


def test_partitions_that_contain_faults_cost_processes(daemon: Daemon, command: Command) -> None:
    daemon.usage.shares = Shares({"processes": 5})
    partition = "sm-partition create {} --server=s --device=0 --chunks=1"
    assert command(USER, "server create s") == ""
    for name in "abc":
        assert command(USER, partition.format(name)) == ""
    limited = "--active-thread-percentage=50"
    assert "and 3 more are needed" in command(USER, f"server set s --contain=partition {limited}")
    assert percentage_on(daemon.named_servers["s"].namespaces["default"].limits).value == 100.0, "nothing is changed"
    assert command(USER, "sm-partition delete c --server=s --device=0") == ""
    assert command(USER, "server set s --contain=partition") == ""
    assert "has 5 of at most 5 processes" in command(USER, partition.format("d"))
    own = f"uid_{USER}"
    assert command(USER, f"server create --uid={USER}") == ""
    assert command(USER, f"server set {own} --contain=partition") == ""
    assert "has 5 of at most 5 processes" in command(USER, partition.format("e").replace("=s", f"={own}"))


def test_users_leave_chunks_of_each_device_for_root(daemon: Daemon, command: Command) -> None:
    partition = "sm-partition create {} --server={} --device={} --chunks={}"
    for uid, name in ((USER, "s"), (OTHER, "o"), (OTHER + 1, "q")):
        assert command(uid, f"server create {name}") == ""
    uuid = daemon.devices[0].uuid
    assert command(USER, partition.format("a", "s", 0, 7)) == command(USER, partition.format("a", "s", 1, 8)) == ""
    assert command(USER, partition.format("b", "s", 0, 2)) == (
        f"User 1000 has 7 of at most 8 SM chunks of device {uuid}, and 2 more are needed: delete an SM partition, or "
        "ask an administrator for a larger share (--user-share sm-chunks=57, or sm-chunks in [shares] of the "
        "configuration file).\n"
    )
    assert command(USER, partition.format("b", "s", 0, 1)) == command(OTHER, partition.format("a", "o", 0, 4)) == ""
    assert command(OTHER + 1, partition.format("a", "q", 0, 1)) == (
        f"All users together have 12 of at most 12 SM chunks of device {uuid} that are not reserved, and 1 more are "
        "needed; an administrator can delete some ('sm-partition list' has their servers).\n"
    )
    assert (shares.count_used(daemon, SM_CHUNKS, USER), shares.count_used(daemon, SM_CHUNKS, OTHER)) == (50, 25)
    assert shares.count_used_together(daemon, SM_CHUNKS) == 75
    assert (
        command(0, "server create r")
        == command(0, partition.format("a", "r", 0, 3) + " --include-remainder=true")
        == ""
    )


def test_namespaces_of_all_servers_count_and_default_does_not(daemon: Daemon, command: Command) -> None:
    daemon.usage.shares = Shares({"namespaces": 2})
    assert command(USER, "server create s") == command(USER, "server create t") == ""
    assert command(USER, f"server create --uid={USER}") == ""
    assert (
        command(USER, "namespace create a --server=s")
        == command(USER, f"namespace create b --server=uid_{USER}")
        == ""
    )
    assert "has 2 of at most 2 namespaces: delete one of them" in command(USER, "namespace create c --server=t")
    assert command(USER, "namespace delete a --server=s") == ""
    assert command(USER, "namespace create c --server=t") == ""
    assert command(0, "namespace create d --server=t") == ""
    assert shares.count_used(daemon, NAMESPACES, USER) == 3


def test_few_descriptors_are_divided_among_users_and_root(daemon: Daemon, command: Command) -> None:
    daemon.usage.shares = Shares(descriptors=1024)
    refusal = fill(command, range(1000, 1004))
    assert refusal.startswith("All users together have 190 of at most 192 descriptors that are not reserved; ")
    assert "start the daemon with more open files than 1024 (ulimit -n, or LimitNOFILE=)" in refusal
    for uid in range(2000, 2013):
        assert connect(daemon, uid) == ""
    assert connect(daemon, 2013).startswith("805: all users together have 320 of at most 320 descriptors ")
    for number in range(19):
        assert command(0, f"server create r{number}") == ""
    assert command(0, "namespace create n --server=r0") == ""
    assert "Everybody together has 512 of at most 512 descriptors; " in command(0, "namespace create m --server=r0")
    assert shares.count_used_together(daemon, DESCRIPTORS, exempt=True) == 512


def test_a_user_does_not_wait_for_the_start_of_another_users_servers(daemon: Daemon, command: Command) -> None:
    for number in range(16):
        assert command(USER, f"server create s{number} --allowed-devices=0") == ""
    spawning = [server.uid for server in daemon.servers.values()]
    assert spawning == [USER] * 4
    assert command(0, "server create r") == command(OTHER, "server create o") == ""
    assert [server.uid for server in daemon.servers.values()][4:] == [0, OTHER]


def test_a_caller_at_a_namespaces_socket_sees_only_its_own_shares(daemon: Daemon, command: Command) -> None:
    daemon.usage.refusals[OTHER, "servers"] = 7
    daemon.usage.taken["connections"][OTHER] = 3
    assert command(USER, "server create s") == ""
    answers: list[str] = []
    for place in ("", "s"):
        line = events.OperatorLine(99, OTHER + 1, parse(b"share list --format=csv,noheader", 3), server=place)
        for client in handle(daemon, line, answer_line):
            if isinstance(client, do.Reply):
                answers.append(client.answer.printed)
    assert f"{OTHER},servers,16,0,7" in answers[0]
    assert f"{OTHER},connections,4096,3,0" in answers[0]
    assert str(OTHER) not in answers[1]
    assert f"{USER},servers,16,1,0" in answers[1]


def test_connections_count_until_they_are_given_back(daemon: Daemon) -> None:
    daemon.usage.shares = Shares({"connections": 20})
    assert shares.take(daemon, CONNECTIONS, USER, 18) == ""
    assert shares.take(daemon, CONNECTIONS, USER, 3).startswith("user 1000 has 18 of at most 20 connections, and 3 ")
    assert shares.take(daemon, CONNECTIONS, OTHER, 20) == ""
    shares.give_back(daemon, CONNECTIONS, USER, 18)
    assert shares.list_users(daemon) == [USER, OTHER]
    assert daemon.usage.taken["connections"] == {OTHER: 20}


def test_shares_of_the_file_outlive_the_daemon_and_todays_state_has_none(daemon: Daemon, command: Command) -> None:
    initial = InitialDefaults.of(daemon)
    assert command(0, "config apply F", 'schema_version = "1.0"\n[shares]\nservers = 3\n') == ""
    persistent_state = snapshot(daemon, initial)
    check(persistent_state, 2)
    following = evolve(new_daemon(), usage=Usage(Shares({"servers": 5})))
    handle(following, events.PredecessorDied(persistent_state), answer_line)
    assert following.usage.shares.share(SERVERS) == 3
    following = evolve(new_daemon(), usage=Usage(Shares({"servers": 5})))
    handle(following, events.PredecessorDied(PersistentState(protocol=3)), answer_line)
    assert following.usage.shares.share(SERVERS) == 5
    with pytest.raises(BadResourceShare):
        check(evolve(persistent_state, shares={"servers": -1}), 2)
