"""What a daemon left for one with other devices: what is by ordinal follows its device."""

from __future__ import annotations

import pytest

from pympsd.takeover.state.other_devices import OtherDevices, move
from pympsd.takeover.state.records import PersistentNamedServer, PersistentNamespace, PersistentState, check
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory
from pympsd.vocabulary.partitions import SmPartition
from pympsd.vocabulary.rules import Rule

SWAPPED = OtherDevices(("GPU-a 132 SMs", "GPU-b 132 SMs"), ("GPU-b 132 SMs", "GPU-a 132 SMs", "GPU-c 132 SMs"))
ONE_GONE = OtherDevices(("GPU-a 132 SMs", "GPU-b 132 SMs"), ("GPU-b 132 SMs",))
OTHERS = OtherDevices(("GPU-a 132 SMs",), ("GPU-a 108 SMs", "GPU-c 132 SMs"))
GIB = 1 << 30


def _limits(memory: dict[int, int]) -> Limits:
    by_device = {index: PinnedMemory(count) for index, count in memory.items()}
    return Limits(percentages(25.0), by_device, ClientPriority(1))


def server(**more: object) -> PersistentNamedServer:
    """Return a server with a limited namespace."""
    namespaces = (PersistentNamespace("default"), PersistentNamespace("hi", _limits({0: GIB, 1: 2 * GIB})))
    return PersistentNamedServer("a", 500, namespaces, **more)  # type: ignore[arg-type]


def test_limits_by_ordinal_follow_their_devices() -> None:
    kept = server(
        allowed_devices=(1, 0),
        partitions=(SmPartition("p", 0, (3,)),),
        maximum=Limits(pinned_memory={1: PinnedMemory(GIB)}),
    )
    rule = Rule(1, limits=Limits(pinned_memory={0: PinnedMemory(GIB)}))
    persistent_state = PersistentState(
        memory_limits={1: GIB}, named_servers=(kept,), cgroup_limits={"/b": {0: GIB}}, rules=(rule,)
    )
    state, lost = move(persistent_state, SWAPPED)
    check(state, 3)
    (after,) = state.named_servers
    assert lost == []
    assert (after.allowed_devices, after.partitions) == ((0, 1), (SmPartition("p", 1, (3,)),))
    assert after.namespaces[1] == PersistentNamespace("hi", _limits({1: GIB, 0: 2 * GIB}))
    assert (after.maximum.pinned_memory, state.memory_limits) == ({0: PinnedMemory(GIB)}, {0: GIB})
    assert state.cgroup_limits == {"/b": {1: GIB}}
    assert state.rules is not None
    assert state.rules[0].limits.pinned_memory == {1: PinnedMemory(GIB)}


def test_state_of_a_removed_device_is_left_out_and_named() -> None:
    kept = server(allowed_devices=(0,), partitions=(SmPartition("p", 0, (3,)), SmPartition("p", 1, (4,))))
    state, lost = move(PersistentState(named_servers=(kept,)), ONE_GONE)
    check(state, 1)
    (after,) = state.named_servers
    assert (after.allowed_devices, after.partitions) == ((), (SmPartition("p", 0, (4,)),))
    assert after.namespaces[1].limits.pinned_memory == {0: PinnedMemory(2 * GIB)}
    assert lost == [
        ("Server 'a'", "GPU-a"),
        ("SM partition 'p' of server 'a'", "GPU-a"),
        ("Namespace 'a/hi'", "GPU-a"),
    ]


@pytest.mark.parametrize("devices", [SWAPPED, ONE_GONE, OTHERS])
def test_a_limit_of_all_devices_applies_to_all_new_devices(devices: OtherDevices) -> None:
    limits = dict.fromkeys(range(len(devices.before)), GIB)
    memory = dict.fromkeys(limits, PinnedMemory(GIB))
    namespace = PersistentNamespace("default", Limits(percentages(50.0), memory, total_memory=memory))
    persistent_state = PersistentState(
        named_servers=(PersistentNamedServer("a", 500, (namespace,)),), memory_limits=limits
    )
    state, lost = move(persistent_state, devices)
    every = dict.fromkeys(range(len(devices.now)), GIB)
    (after,) = state.named_servers[0].namespaces
    memory = dict.fromkeys(every, PinnedMemory(GIB))
    assert after.limits == Limits(percentages(50.0), memory, total_memory=memory)
    assert (state.memory_limits, lost) == (every, [])


def test_no_limit_stays_no_limit() -> None:
    persistent_named_server = PersistentNamedServer(
        "a", 500, (PersistentNamespace("default"),), maximum=Limits(pinned_memory={})
    )
    state, lost = move(PersistentState(named_servers=(persistent_named_server,), memory_limits={}), OTHERS)
    assert (state.memory_limits, state.named_servers, lost) == ({}, (persistent_named_server,), [])
