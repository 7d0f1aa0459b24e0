"""The pool of connections: never oversubscribed; a refused context takes no number; slots are freed immediately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pympsd.devices.machine import describe
from pympsd_server.state_machine.client_table import ClientRecord, ClientTable, NoSuchContext
from pympsd_server.state_machine.connections import ConnectionPool, PoolExhausted, connection_slots

DEVICES = describe("2xH200")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("1", 1), ("2", 1), ("3", 2), ("8", 4), ("31", 16), ("32", 16), (" 4 ", 2),
        ("0", 1), ("33", 16), ("64", 16), ("999999", 16), ("08", 4), ("+8", 4),
        ("-2", 1), ("", 1), ("eight", 1), ("4.5", 1), ("٣", 1), ("9" * 10_000, 16),
    ],
)  # fmt: skip
def test_a_context_takes_one_slot_for_two_connections(text: str, slots: int) -> None:
    assert connection_slots({"CUDA_DEVICE_MAX_CONNECTIONS": text}) == slots


def test_the_default_is_one_slot() -> None:
    assert connection_slots({}) == 1


@pytest.mark.parametrize(("machine", "size"), [("H200", 60), ("V100", 60), ("P100", 16)])
def test_a_pool_has_60_slots_and_16_before_volta(machine: str, size: int) -> None:
    (device,) = describe(machine)
    assert ConnectionPool.of(device).size == size


def test_the_61st_context_is_refused_and_takes_no_number() -> None:
    """Recorded, of 48 with driver 580: the 49th is refused, and the next context that fits has the id 49."""
    client_table = ClientTable.of(DEVICES)
    first, second = client_table.add_client(1, 100, 0, {}), client_table.add_client(2, 200, 0, {})
    contexts = [client_table.open_context(first, 0, 1) for _ in range(60)]
    with pytest.raises(PoolExhausted, match="1 of the device's 60 connections, and 0 are free"):
        client_table.open_context(second, 0, 1)
    assert (second.contexts_made, second.contexts) == (0, {})
    assert client_table.open_context(second, 1, 1).id == 61, "the other device has its own pool"
    client_table.close_context(first, contexts[7].id)
    freed = client_table.open_context(second, 0, 1)
    assert (freed.id, freed.number) == (62, 2)


def test_removing_a_client_frees_its_slots() -> None:
    client_table = ClientTable.of(DEVICES)
    client = client_table.add_client(1, 100, 0, {})
    for _ in range(3):
        client_table.open_context(client, 0, 1, 16)
    client_table.remove_client(1)
    assert client_table.pools[0].free == 60


def test_slots_are_not_freed_twice() -> None:
    pool = ConnectionPool()
    pool.take(7, 16)
    for _ in range(2):  # an operator terminates a context, then its process closes it
        pool.release(7)
    assert pool.free == 60


@given(st.lists(st.integers(1, 16)))
def test_a_context_is_refused_only_without_room(requests: list[int]) -> None:
    pool = ConnectionPool()
    taken = 0
    for id_, slots in enumerate(requests):
        if taken + slots <= 60:
            pool.take(id_, slots)
            taken += slots
        else:
            with pytest.raises(PoolExhausted):
                pool.take(id_, slots)
        assert pool.free == 60 - taken


class Clients(RuleBasedStateMachine):
    """Clients arrive, open and close contexts of any size on two devices, and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.client_table = ClientTable.of(DEVICES)
        self.slots: dict[int, tuple[int, int]] = {}
        """The device and the slots of each open context, by id."""
        self.ids: list[int] = []
        self.arrivals = 0

    def _taken(self, device: int) -> int:
        return sum(slots for on, slots in self.slots.values() if on == device)

    def _some(self, data: st.DataObject) -> ClientRecord:
        return self.client_table.clients[data.draw(st.sampled_from(sorted(self.client_table.clients)))]

    @rule()
    def arrive(self) -> None:
        self.arrivals += 1
        self.client_table.add_client(self.arrivals, 100 + self.arrivals, 0, {})

    @precondition(lambda self: self.client_table.clients)
    @rule(data=st.data(), device=st.integers(0, 1), slots=st.integers(1, 16))
    def open(self, data: st.DataObject, device: int, slots: int) -> None:
        client = self._some(data)
        room = 60 - self._taken(device)
        created = client.contexts_made
        try:
            context = self.client_table.open_context(client, device, 1, slots)
        except PoolExhausted:
            assert slots > room, "refused although there was room"
            assert client.contexts_made == created
            return
        assert slots <= room
        self.slots[context.id] = (device, slots)
        self.ids.append(context.id)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.slots)))
        for client in self.client_table.clients.values():
            if id_ in client.contexts:
                self.client_table.close_context(client, id_)
                with_no_such_context = client
        del self.slots[id_]
        with pytest.raises(NoSuchContext):
            self.client_table.close_context(with_no_such_context, id_)

    @precondition(lambda self: self.client_table.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.client_table.remove_client(self._some(data).id)
        for id_ in client.contexts:
            del self.slots[id_]

    @invariant()
    def the_pool_is_what_the_contexts_hold(self) -> None:
        for device, pool in self.client_table.pools.items():
            assert pool.free == 60 - self._taken(device) >= 0

    @invariant()
    def ids_have_no_gap(self) -> None:
        assert self.ids == list(range(1, len(self.ids) + 1))


TestClients = Clients.TestCase
