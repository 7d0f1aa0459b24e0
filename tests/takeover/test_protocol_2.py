"""What a daemon of protocol 2 continues with after one of protocol 3, and what it could not continue with."""

from __future__ import annotations

import pytest
from attrs import evolve

from pympsd.state_machine import events
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.takeover.state.protocol_2 import list_lost
from pympsd.takeover.state.records import (
    PersistentNamedServer,
    PersistentNamespace,
    PersistentServer,
    PersistentState,
)
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Condition, Rule
from tests.state_machine.conftest import DEVICES, Story

GIB = 1 << 30
USER = 500
DEFAULT = PersistentNamespace("default", Limits(percentages(100.0), {}, ClientPriority(0)))
PROCESS = PersistentServer(1, 847, USER, 100.0, {}, name="uid_500")


def of_server(name: str = "uid_500", **more: object) -> PersistentState:
    """Return the state of a daemon with one server, without a process."""
    fields = {"namespaces": (DEFAULT,), **more}
    return PersistentState(protocol=3, named_servers=(PersistentNamedServer(name, USER, **fields),))  # type: ignore[arg-type]


def of_default(**more: object) -> PersistentState:
    """Return the state of a daemon whose one server has a limited namespace ``default``."""
    return of_server(namespaces=(evolve(DEFAULT, limits=evolve(DEFAULT.limits, **more)),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "names"),
    [
        (PersistentState(), []),
        (of_server(), []),
        (of_server("a"), ["server 'a'"]),
        (of_server(namespaces=(DEFAULT, PersistentNamespace("hi"))), ["namespace 'hi' of server 'uid_500'"]),
        (of_server(allowed_devices=(0,)), ["allowed-devices of server 'uid_500'"]),
        (of_server(maximum=Limits(percentages(60.0))), ["max-active-thread-percentage of server 'uid_500'"]),
        (
            of_server(maximum=Limits(pinned_memory={0: PinnedMemory(GIB)})),
            ["max-pinned-memory-limit of server 'uid_500'"],
        ),
        (of_server(contains_partitions=True), ["contain=partition of server 'uid_500'"]),
        (of_server(partitions=(SmPartition("p", 0, (3,)),)), ["SM partition 'p' of server 'uid_500'"]),
        (of_default(total_memory={0: PinnedMemory(GIB)}), ["total-memory-limit of server 'uid_500'"]),
        (of_default(sm_partition="p"), ["sm-partition of server 'uid_500'"]),
        (of_default(client_priority=ClientPriority(1)), ["client-priority of server 'uid_500'"]),
        (of_default(thread_percentage=percentages(25.0)), ["active-thread-percentage of server 'uid_500'"]),
        (of_default(pinned_memory={0: PinnedMemory(GIB)}), ["pinned-memory-limit of server 'uid_500'"]),
        (PersistentState(default_socket=False), ["default_socket=off of context-share"]),
        (PersistentState(accounts_cgroups=False), ["disabled feature memacct"]),
        (PersistentState(audits_memory=True), ["audit-log of memacct"]),
        (
            PersistentState(cgroup_limits={"/a": {0: GIB}, "/b": {}}, cgroup_soft_limits={"/a": {}, "/b": {0: GIB}}),
            ["memacct limit of cgroup /a", "memacct limit of cgroup /b"],
        ),
        (PersistentState(rules=(Rule(1, conditions=(Condition("user", ("0",)),)),)), []),
        (
            PersistentState(rules=(Rule(1, "r", (Condition("namespace", ("a/*",)),)),)),
            ["condition namespace of rule 1 ('r')"],
        ),
    ],
)
def test_state_that_protocol_2_cannot_hold_is_named(left: PersistentState, names: list[str]) -> None:
    assert list(list_lost(left, Limits())) == names


def test_defaults_that_are_the_same_are_kept() -> None:
    of_its_start = Limits(percentages(50.0), {0: PinnedMemory(GIB)}, ClientPriority(1))
    persistent_state = of_server(namespaces=(PersistentNamespace("default", of_its_start),))
    assert list(list_lost(persistent_state, of_its_start)) == []
    by_commands = evolve(persistent_state, thread_percentage=50.0, memory_limits={0: GIB}, client_priority=1)
    assert list(list_lost(by_commands, Limits())) == []
    assert len(list(list_lost(persistent_state, Limits()))) == 3


def test_a_server_that_runs_keeps_the_limits_of_its_namespace_default() -> None:
    limits = Limits(percentages(25.0), {1: PinnedMemory(GIB)})
    earlier = evolve(of_server(namespaces=(PersistentNamespace("default", limits),)), servers=(PROCESS,))
    assert list(list_lost(earlier, Limits())) == []
    story = Story(Daemon(DaemonOptions(0), DEVICES))
    story.feed(events.PredecessorDied(earlier))
    (server,) = story.daemon.servers.values()
    assert (server.thread_percentage, server.memory_limits) == (ThreadPercentage(25.0), {1: PinnedMemory(GIB)})


def test_of_a_server_that_runs_percentages_by_device_are_lost_and_the_least_holds() -> None:
    limits = Limits({0: ThreadPercentage(50.0), 1: ThreadPercentage(25.0)})
    earlier = evolve(of_server(namespaces=(PersistentNamespace("default", limits),)), servers=(PROCESS,))
    assert list(list_lost(earlier, Limits())) == ["active-thread-percentage of server 'uid_500'"]
    story = Story(Daemon(DaemonOptions(0), DEVICES))
    story.feed(events.PredecessorDied(earlier))
    (server,) = story.daemon.servers.values()
    assert server.thread_percentage == ThreadPercentage(25.0)
