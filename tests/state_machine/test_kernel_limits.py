"""Limits of memory that the kernel has for a client's cgroups, together with the daemon's own."""

from __future__ import annotations

import pytest

from pympsd.commands.operator_line import answer_line
from pympsd.devices.machine import describe
from pympsd.state_machine.decide import handle
from pympsd.state_machine.events import ClientConnected, StatusPushed
from pympsd.state_machine.instructions import AdmitClient, Instruction
from pympsd.state_machine.memory_elsewhere import memory_elsewhere
from pympsd.state_machine.state.client import ClientProcess
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.state_machine.state.options import DaemonOptions
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limits import (
    MAX_MEMORY,
    CgroupLimit,
    CgroupLimits,
    MemoryGroup,
    PinnedMemory,
    ThreadPercentage,
    cgroup_group,
)
from pympsd.vocabulary.rules import Origin

GIB = 1 << 30


def limit(hard: int | None = None, soft: int | None = None) -> CgroupLimit:
    """Return limits in GiB."""
    return CgroupLimit(*(None if count is None else PinnedMemory(count * GIB) for count in (hard, soft)))


@pytest.fixture
def daemon() -> Daemon:
    """A daemon with servers a and b, whose processes are there."""
    daemon = Daemon(DaemonOptions(0, protocol=3, max_servers=9), describe("2xH200"))
    for number, name in enumerate("ab", 1):
        daemon.named_servers.add(NamedServer(name, 7, {"default": Namespace("default")}))
        daemon.servers[number] = Server(number, 7, ThreadPercentage(), pid=number, phase=Phase.ACTIVE, name=name)
    return daemon


def comes(number: int, kernels: CgroupLimits, server: str = "a", cgroup: str | None = "/pod/box") -> ClientConnected:
    """Return the event of a client that connects."""
    origin = None if cgroup is None else Origin(7, cgroups=(cgroup,))
    peer = Peer(50 + number, 7, 7, (7,))
    return ClientConnected(number, ClientProcess(peer, "c", 7, origin=origin, kernel_limits=kernels), server=server)


def groups_of(
    daemon: Daemon, kernels: CgroupLimits, cgroup: str | None = "/pod/box"
) -> dict[int, tuple[MemoryGroup, ...]]:
    """Return the groups that a client is in when it is admitted."""
    return groups_in(handle(daemon, comes(1, kernels, cgroup=cgroup), answer_line))


def groups_in(instructions: list[Instruction]) -> dict[int, tuple[MemoryGroup, ...]]:
    """Return the groups of the client that is admitted."""
    (admitted,) = (instruction for instruction in instructions if isinstance(instruction, AdmitClient))
    assert admitted.limits is not None
    return admitted.limits.groups


@pytest.mark.parametrize(
    ("ours", "kernels", "holds"),
    [
        ({}, {0: limit(4)}, {0: (4 * GIB, 0)}),
        ({}, {1: limit(soft=2)}, {1: (MAX_MEMORY, 2 * GIB)}),
        ({0: limit(8, 3)}, {0: limit(4, 1)}, {0: (4 * GIB, GIB)}),
        ({0: limit(4, 1)}, {0: limit(8, 3)}, {0: (4 * GIB, GIB)}),
        ({0: limit(8, 1)}, {0: limit(4, 3)}, {0: (4 * GIB, GIB)}),
        ({0: limit(8)}, {0: limit(soft=3)}, {0: (8 * GIB, 3 * GIB)}),
        ({0: limit(8)}, {1: limit(4)}, {0: (8 * GIB, 0), 1: (4 * GIB, 0)}),
        ({}, {0: limit(0)}, {0: (0, 0)}),
    ],
)
def test_the_lower_of_the_kernels_and_our_own_holds(
    daemon: Daemon,
    ours: dict[int, CgroupLimit],
    kernels: dict[int, CgroupLimit],
    holds: dict[int, tuple[int, int]],
) -> None:
    daemon.process_limits.cgroups = {"/pod": ours} if ours else {}
    groups = groups_of(daemon, {"/pod": kernels})
    assert groups == {ordinal: (MemoryGroup("cgroup /pod", *limits),) for ordinal, limits in holds.items()}


def test_the_limits_of_all_cgroups_above_hold_outer_ones_first(daemon: Daemon) -> None:
    daemon.process_limits.cgroups = {"/": {0: limit(100)}}
    groups = groups_of(daemon, {"/pod/box": {0: limit(2)}, "/pod": {0: limit(4)}, "/elsewhere": {0: limit(1)}})
    expected = (("/", 100), ("/pod", 4), ("/pod/box", 2))
    assert groups == {0: tuple(MemoryGroup(f"cgroup {path}", hard * GIB) for path, hard in expected)}


def test_kernel_limits_do_not_hold_while_memacct_is_disabled_but_use_is_counted(daemon: Daemon) -> None:
    daemon.process_limits.accounts_cgroups = False
    assert groups_of(daemon, {"/pod": {0: limit(4, 1)}}) == {0: (MemoryGroup("cgroup /pod", MAX_MEMORY),)}


def test_a_client_whose_cgroup_cannot_be_seen_is_let_in(daemon: Daemon) -> None:
    """Unlike with limits that were set here: that a kernel has the controller refuses nobody."""
    assert groups_of(daemon, {}, cgroup=None) == {}


def test_a_client_keeps_its_kernel_limits_while_it_waits_for_its_server(daemon: Daemon) -> None:
    daemon.servers[1].phase = Phase.INITIALIZING
    waits = handle(daemon, comes(1, {"/pod": {0: limit(4)}}), answer_line)
    assert not any(isinstance(instruction, AdmitClient) for instruction in waits)
    ready = handle(daemon, StatusPushed(1, "ACTIVE"), answer_line)
    assert groups_in(ready) == {0: (MemoryGroup("cgroup /pod", 4 * GIB),)}


def test_memory_in_other_servers_counts_for_a_kernel_limit(daemon: Daemon) -> None:
    handle(daemon, comes(1, {}, "a"), answer_line)
    handle(daemon, comes(2, {"/pod": {0: limit(4)}}, "b"), answer_line)
    daemon.servers[1].clients[1].memory = {0: GIB}
    assert memory_elsewhere(daemon)[2][0].groups == {"cgroup /pod": GIB}


def test_a_name_that_is_not_utf_8_can_be_sent() -> None:
    assert cgroup_group("/a/\udcff") == r"cgroup /a/\xff"
    assert cgroup_group("/ä") == "cgroup /ä"
