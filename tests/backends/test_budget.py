"""The budget of a device whose memory other processes use too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.backends.budget import NOTEWORTHY_BYTES, ClientBudget, DeviceBudget, Shortage
from pympsd_server.backends.interface import BackendError

GIB = 1 << 30


def test_memory_of_other_processes_counts_until_they_free_it() -> None:
    others = 6 * GIB
    device = DeviceBudget(8 * GIB, lambda: others)
    assert device.used == 6 * GIB
    assert device.take(GIB)
    others += GIB  # what was taken here is taken on the device
    assert not device.take(2 * GIB)
    others -= 5 * GIB
    assert device.take(2 * GIB)
    assert device.used == 4 * GIB
    device.give(3 * GIB)
    assert device.used == GIB


def test_other_processes_cannot_free_more_than_they_had() -> None:
    in_all = GIB
    device = DeviceBudget(8 * GIB, lambda: in_all)
    assert device.take(7 * GIB)
    in_all = 0  # what is accounted here takes nothing on the device yet
    assert device.take(GIB)
    assert not device.take(1)
    assert device.used == 8 * GIB


def test_small_differences_are_ignored_and_a_lone_budget_asks_nothing() -> None:
    device = DeviceBudget(8 * GIB, lambda: GIB)
    assert device.take(NOTEWORTHY_BYTES - 1)
    assert not device.take(7 * GIB)
    assert device.used == GIB + NOTEWORTHY_BYTES - 1
    alone = DeviceBudget(GIB)
    assert alone.take(GIB)
    assert not alone.take(1)


def test_what_others_hold_is_accounted_in_all_and_by_group() -> None:
    device = DeviceBudget(100)
    client = ClientBudget(device, 0, device.groups([MemoryGroup("cgroup /x", 60, soft=30)], 1))
    client.take(20)
    device.account_others(50, {"cgroup /x": 10, "cgroup /y": 40})
    assert (device.used, client.free) == (70, 30)
    with pytest.raises(BackendError, match="the clients of cgroup /x have 30 of 60 left"):
        client.take(31)
    device.account_others(75, {"cgroup /x": 10})
    with pytest.raises(BackendError) as caught:
        client.take(10)
    assert not isinstance(caught.value, Shortage), "with what is elsewhere it would be above its soft limit"
    device.account_others(75, {})
    with pytest.raises(Shortage):
        client.take(10)
    device.account_others(0, {})
    assert (device.used, client.free) == (20, 40)
    later = DeviceBudget(100)
    later.account_others(10, {"cgroup /x": 50})
    assert ClientBudget(later, 0, later.groups([MemoryGroup("cgroup /x", 60)], 1)).free == 10


GROUPS = {"namespace a/hi": 60, "cgroup /x": 90, "cgroup /x/y": 40}
MEMBERS = ((), ("namespace a/hi",), ("cgroup /x",), ("cgroup /x", "cgroup /x/y"), ("namespace a/hi", "cgroup /x"))
"""The groups of each client."""


@given(st.lists(st.tuples(st.integers(0, len(MEMBERS) - 1), st.integers(0, 70), st.booleans()), max_size=30))
def test_no_client_or_group_or_device_holds_more_than_it_may(steps: list[tuple[int, int, bool]]) -> None:
    """A step takes bytes for a client, or gives back what its last one took."""
    device = DeviceBudget(100)
    clients = [
        ClientBudget(device, 70, device.groups([MemoryGroup(name, GROUPS[name]) for name in names], 1))
        for names in MEMBERS
    ]
    held: list[list[int]] = [[] for _ in clients]
    for number, count, takes in steps:
        client = clients[number]
        if not takes:
            client.give(held[number].pop() if held[number] else 0)
            continue
        fits = count <= client.free
        try:
            client.take(count)
            held[number].append(count)
        except BackendError:
            assert not fits
        else:
            assert fits
    used = [sum(sizes) for sizes in held]
    assert [client.used for client in clients] == used
    assert device.used == sum(used) <= device.total
    for name, limit in GROUPS.items():
        (group,) = device.groups([MemoryGroup(name, limit)], 1)
        assert group.used == sum(count for names, count in zip(MEMBERS, used, strict=True) if name in names) <= limit


def test_a_group_has_the_limit_of_its_latest_client_and_is_forgotten_with_its_clients() -> None:
    device = DeviceBudget(100)
    client_budget = ClientBudget(device, 0, device.groups([MemoryGroup("cgroup /x", 30)], 8))
    # It came before, with the limit that held then, and makes its context later.
    latest = ClientBudget(device, 0, device.groups([MemoryGroup("cgroup /x", 50)], 7))
    latest.take(20)
    assert (latest.total, latest.free, client_budget.free) == (30, 10, 10)
    with pytest.raises(BackendError, match="the clients of cgroup /x have 10 of 30 left"):
        client_budget.take(11)
    latest.give(20)
    del latest, client_budget
    (again,) = device.groups([MemoryGroup("cgroup /x", 70)], 9)
    assert (again.limit, again.used) == (70, 0)


def test_an_own_limit_is_distinguished_from_those_of_groups() -> None:
    device = DeviceBudget(100)
    client = ClientBudget(device, 40, device.groups([MemoryGroup("namespace a/b", 30)], 1))
    with pytest.raises(BackendError, match="this client's limit is 40 bytes and it holds 0"):
        client.take(41)
    with pytest.raises(BackendError, match="the clients of namespace a/b have 30 of 30 left"):
        client.take(31)
