"""How far a fatal fault reaches: the documents' example, the recorded order and a model on graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pympsd.vocabulary.results import Result
from pympsd_server.state_machine.blast_radius import Blast, OnDevice, WholeProcess, blast_of, sticky_error
from pympsd_server.state_machine.client_table import ClientTable
from pympsd_server.state_machine.executor_slots import ExecutorSlot, FaultDomain

GRAPHS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8)
"""For each client the devices of its contexts."""


def _client_table(graph: list[list[int]]) -> ClientTable:
    client_table = ClientTable()
    for number, devices in enumerate(graph):
        client = client_table.add_client(number + 1, 100 + number, 0, {})
        for device in devices:
            client_table.open_context(client, device, 1)
    return client_table


def _lines(blast: Blast) -> list[str]:
    lines = []
    for step in blast.steps:
        if isinstance(step, OnDevice):
            lines.append(f"{step.client.pid}.{step.context.number} on device {step.context.device}")
        else:
            assert isinstance(step, WholeProcess)
            lines.append(f"all of {step.client.pid}")
            lines += [f"{step.client.pid}.{context.number} of {step.client.pid}" for context in step.contexts]
    return lines


def test_the_fault_of_a_context_in_a_partition_stays_there() -> None:
    # Two clients in p, one in q, one in q and with a whole device next to it.
    client_table = ClientTable()
    for number, places in enumerate([[(0, "p")], [(0, "p")], [(0, "q")], [(0, "q"), (1, "")]]):
        client = client_table.add_client(number + 1, 100 + number, 0, {})
        for device, partition in places:
            client_table.open_context(client, device, 1, partition=partition)
    blast = blast_of([FaultDomain(ExecutorSlot(0), "p")], client_table.clients.values())
    assert ([client.pid for client in blast.clients], blast.slots) == ([100, 101], ())
    blast = blast_of([FaultDomain(ExecutorSlot(0), "q")], client_table.clients.values())
    assert ([client.pid for client in blast.clients], blast.slots) == ([102, 103], (ExecutorSlot(1),))
    # Whoever loses the executor reaches every partition of its device.
    everywhere = [FaultDomain(ExecutorSlot(0)), FaultDomain(ExecutorSlot(0), "p"), FaultDomain(ExecutorSlot(0), "q")]
    blast = blast_of(everywhere, client_table.clients.values())
    assert ([client.pid for client in blast.clients], blast.devices) == ([100, 101, 102, 103], (0, 1))


def test_the_fault_in_an_executor_of_a_partition_stays_there() -> None:
    client_table = ClientTable()
    for number, partition in enumerate(["p", "p", "q"]):
        client = client_table.add_client(number + 1, 100 + number, 0, {})
        client_table.open_context(client, 0, 1, user=0, partition=partition, has_executor=True)
    slot = ExecutorSlot(0, 0, "p")
    assert [context.fault_domain for context in client_table.contexts_in(slot)] == [FaultDomain(slot)] * 2
    blast = blast_of([FaultDomain(slot)], client_table.clients.values())
    assert ([client.pid for client in blast.clients], blast.slots) == ([100, 101], (slot,))


def test_the_documents_example_in_the_recorded_order() -> None:
    # A on device 0 (twice, as recorded), B on 0 and 1, C on 1, D on 2; A faults.
    client_table = _client_table([[0], [0, 1], [1], [2]])
    first = client_table.clients[1]
    client_table.open_context(first, 0, 1)
    blast = blast_of([FaultDomain(ExecutorSlot(0))], client_table.clients.values())
    assert blast.devices == (0, 1)
    assert [client.pid for client in blast.clients] == [100, 101, 102]
    assert _lines(blast) == [
        "100.1 on device 0",
        "100.2 on device 0",
        "101.1 on device 0",
        "all of 100",
        "100.1 of 100",
        "100.2 of 100",
        "all of 101",
        "101.1 of 101",
        "101.2 of 101",
        "101.2 on device 1",
        "102.1 on device 1",
        "all of 102",
        "102.1 of 102",
    ]


def test_a_fault_on_a_device_without_clients_replaces_that_device_only() -> None:
    blast = blast_of([FaultDomain(ExecutorSlot(3))], _client_table([[0], [1, 2]]).clients.values())
    assert blast == Blast((), (ExecutorSlot(3),), (), frozenset())
    assert blast.devices == (3,)


def test_contexts_on_other_devices_get_launch_failed() -> None:
    client_table = _client_table([[0, 1]])
    first, second = client_table.clients[1].contexts.values()
    assert sticky_error(0, Result.ERROR_ILLEGAL_ADDRESS, first) == Result.ERROR_ILLEGAL_ADDRESS
    assert sticky_error(0, Result.ERROR_ILLEGAL_ADDRESS, second) == Result.ERROR_LAUNCH_FAILED


def test_another_users_contexts_on_the_same_devices_are_not_reached() -> None:
    """Two users have clients on devices 0 and 1 in executors of their own; the first user's client faults."""
    client_table = ClientTable()
    for client_id, user in ((1, 500), (2, 600), (3, 500)):
        client = client_table.add_client(client_id, 100 + client_id, 0, {}, user)
        for device in (0, 1) if client_id < 3 else (1,):
            client_table.open_context(client, device, client_id, user=user)
    blast = blast_of([FaultDomain(ExecutorSlot(0, 500))], client_table.clients.values())
    assert blast.slots == (ExecutorSlot(0, 500), ExecutorSlot(1, 500))
    assert [client.pid for client in blast.clients] == [101, 103]
    assert blast.contexts == {1, 2, 5}


def _reachable(graph: list[list[int]], start: int) -> set[int]:
    """Return the model's devices: spread until nothing changes."""
    reached, before = {start}, set[int]()
    while reached != before:
        before = set(reached)
        for devices in graph:
            if reached & set(devices):
                reached |= set(devices)
    return reached


@given(GRAPHS, st.integers(0, 5))
def test_a_fault_reaches_exactly_the_devices_connected_through_shared_clients(
    graph: list[list[int]], fault_on: int
) -> None:
    client_table = _client_table(graph)
    blast = blast_of([FaultDomain(ExecutorSlot(fault_on))], client_table.clients.values())
    devices = _reachable(graph, fault_on)
    assert blast.devices == tuple(sorted(devices))
    assert {client.pid - 100 for client in blast.clients} == {
        number for number, its in enumerate(graph) if set(its) & devices
    }
    assert blast.contexts == {
        context.id
        for client in client_table.clients.values()
        for context in client.contexts.values()
        if context.device in devices
    }


@given(GRAPHS, st.integers(0, 5))
def test_every_context_is_named_once_by_device_and_once_by_process(graph: list[list[int]], fault_on: int) -> None:
    blast = blast_of([FaultDomain(ExecutorSlot(fault_on))], _client_table(graph).clients.values())
    by_device = [step.context.id for step in blast.steps if isinstance(step, OnDevice)]
    by_process = [context.id for step in blast.steps if isinstance(step, WholeProcess) for context in step.contexts]
    assert sorted(by_device) == sorted(by_process) == sorted(blast.contexts)
