"""Which clients are ended for the memory of one that is within its soft limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.limits import MAX_MEMORY, MemoryGroup
from pympsd_server.state_machine.client_table import ClientRecord, ClientTable
from pympsd_server.state_machine.eviction import MAX_VICTIMS, choose

SOFT = {"cgroup /a": 30, "cgroup /a/x": 10, "cgroup /b": 50, "cgroup /c": 0}
CALLER = 1
MEMBERS = ((), ("cgroup /a",), ("cgroup /a", "cgroup /a/x"), ("cgroup /b",), ("cgroup /c",))


def client(client_table: ClientTable, client_id: int, groups: tuple[str, ...], priority: int = 0) -> ClientRecord:
    """Add a client of groups."""
    client_record = client_table.add_client(client_id, 100 + client_id, priority, {})
    client_record.groups = {0: tuple(MemoryGroup(name, MAX_MEMORY, SOFT[name]) for name in groups)}
    return client_record


def chosen(client_table: ClientTable, used: dict[int, int], short: int) -> list[tuple[int, str, int]] | None:
    """Return the victims' ids, groups and excesses."""
    endable = [client_id for client_id in client_table.clients if client_id != CALLER]
    victims = choose(client_table.clients.values(), 0, used, endable, short)
    return None if victims is None else [(victim.client.id, victim.group, victim.excess) for victim in victims]


def test_the_client_furthest_above_its_soft_limit_is_evicted_first() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    client(client_table, 2, ("cgroup /a",))
    client(client_table, 3, ())
    used = {CALLER: 1, 2: 80, 3: 49}
    assert chosen(client_table, used, 10) == [(2, "cgroup /a", 50)]
    assert chosen(client_table, {**used, 3: 51}, 10) == [(3, "", 51)]
    assert chosen(client_table, used, 90) == [(2, "cgroup /a", 50), (3, "", 49)]
    assert chosen(client_table, used, 130) is None


def test_of_equals_the_lower_priority_goes_first_then_the_youngest() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    for client_id, priority in ((2, 0), (3, 1), (4, 1), (5, 0)):
        client(client_table, client_id, ("cgroup /a",), priority)
    used = dict.fromkeys((2, 3, 4, 5), 20)
    assert chosen(client_table, used, 1) == [(4, "cgroup /a", 50)]
    assert chosen(client_table, used, 41) == [(4, "cgroup /a", 50), (3, "cgroup /a", 30), (5, "cgroup /a", 10)]


def test_a_client_back_within_its_soft_limit_after_an_eviction_is_not_evicted() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    client(client_table, 2, ("cgroup /a",))
    client(client_table, 3, ("cgroup /a",))
    assert chosen(client_table, {2: 20, 3: 30}, 30) == [(3, "cgroup /a", 20)]
    assert chosen(client_table, {2: 20, 3: 30}, 31) is None


def test_a_client_within_its_soft_limits_is_not_evicted() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    client(client_table, 2, ("cgroup /a", "cgroup /a/x"))
    assert chosen(client_table, {2: 10, CALLER: 100}, 1) == []
    assert chosen(client_table, {2: 11, CALLER: 100}, 1) == [(2, "cgroup /a/x", 1)]
    assert chosen(client_table, {2: 11}, 12) is None


def test_small_clients_of_a_group_do_not_shield_a_large_one() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    for client_id in (2, 3, 4, 5):
        client(client_table, client_id, ("cgroup /c",))
    used = {2: 40, 3: 1, 4: 1, 5: 6}
    soft = MemoryGroup("cgroup /c", MAX_MEMORY, 1)
    for client_id in used:
        client_table.clients[client_id].groups = {0: (soft,)}
    assert chosen(client_table, used, 20) == [(2, "cgroup /c", 47)]
    assert chosen(client_table, used, 5) == [(5, "cgroup /c", 47)]
    assert chosen(client_table, used, 45) == [(2, "cgroup /c", 47), (5, "cgroup /c", 7)]


def test_a_client_whose_eviction_turns_out_unnecessary_is_not_evicted() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    client(client_table, 2, ("cgroup /a",), priority=1)
    client(client_table, 3, ("cgroup /a",))
    assert chosen(client_table, {2: 5, 3: 60}, 40) == [(3, "cgroup /a", 30)]


def test_a_client_without_contexts_counts_for_its_group_and_is_not_evicted() -> None:
    client_table = ClientTable()
    client(client_table, 2, ("cgroup /a",))
    client(client_table, 3, ("cgroup /a",))
    used = {2: 25, 3: 10}
    (victim,) = choose(client_table.clients.values(), 0, used, [3], 10) or []
    assert (victim.client.id, victim.excess) == (3, 5)
    assert choose(client_table.clients.values(), 0, used, [3], 11) is None


def test_of_nested_groups_the_one_furthest_above_its_limit_counts() -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    client(client_table, 2, ("cgroup /a", "cgroup /a/x"))
    client(client_table, 3, ())
    assert chosen(client_table, {2: 60, 3: 40}, 10) == [(2, "cgroup /a/x", 50)]
    client(client_table, 4, ("cgroup /a",))
    assert chosen(client_table, {2: 12, 3: 40, 4: 70}, 10) == [(4, "cgroup /a", 52)]
    assert chosen(client_table, {2: 12, 3: 5, 4: 24}, 10) == [(4, "cgroup /a", 6)]


def test_the_limits_of_the_latest_client_apply() -> None:
    client_table = ClientTable()
    client(client_table, 3, ("cgroup /a",)).groups = {0: (MemoryGroup("cgroup /a", MAX_MEMORY, 100),)}
    client(client_table, 2, ("cgroup /a",))
    assert chosen(client_table, {2: 40, 3: 1}, 10) == []


@given(
    st.lists(st.tuples(st.integers(0, len(MEMBERS) - 1), st.integers(0, 60), st.integers(0, 1)), max_size=8),
    st.integers(1, 150),
)
def test_evicted_clients_hold_enough_memory_and_were_above_their_limits(
    others: list[tuple[int, int, int]], short: int
) -> None:
    client_table = ClientTable()
    client(client_table, CALLER, ("cgroup /b",))
    used = {CALLER: 40}
    for client_id, (member, count, priority) in enumerate(others, CALLER + 1):
        client(client_table, client_id, MEMBERS[member], priority)
        used[client_id] = count
    endable = [client_id for client_id in client_table.clients if client_id != CALLER]
    victims = choose(client_table.clients.values(), 0, used, endable, short)
    if not victims:
        return
    gone = [victim.client.id for victim in victims]
    assert CALLER not in gone
    assert len(set(gone)) == len(gone) <= MAX_VICTIMS
    freed = sum(used[client_id] for client_id in gone)
    assert freed >= short > freed - min(used[client_id] for client_id in gone)
    for number, victim in enumerate(victims):
        present = [client for client in client_table.clients.values() if client.id not in gone[:number]]
        soft = [group for group in victim.client.groups[0] if group.soft]
        held = {group.name: sum(used[entry.id] for entry in present if group in entry.groups[0]) for group in soft}
        assert not soft or any(held[group.name] > group.soft for group in soft)
