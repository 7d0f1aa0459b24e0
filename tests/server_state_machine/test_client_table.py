"""The client table: clients, contexts and their numbers."""

import pytest

from pympsd.devices.machine import describe
from pympsd_server.state_machine.client_table import ClientTable, NoSuchContext
from pympsd_server.state_machine.connections import PoolExhausted


def test_ids_count_the_servers_contexts_and_numbers_the_processs_own() -> None:
    client_table = ClientTable()
    first, second = client_table.add_client(7, 100, 0, {}), client_table.add_client(8, 200, 0, {})
    opened = [client_table.open_context(client, 0, 1) for client in (first, second, first)]
    assert [(c.id, c.number, c.client) for c in opened] == [(1, 1, 7), (2, 1, 8), (3, 2, 7)]


def test_the_number_of_a_closed_context_is_not_reused() -> None:
    client_table = ClientTable()
    client = client_table.add_client(1, 100, 0, {})
    gone = client_table.open_context(client, 0, 1)
    assert client_table.close_context(client, gone.id) == gone
    assert (client_table.open_context(client, 0, 1).number, client.contexts_made) == (2, 2)


def test_a_client_cannot_close_anothers_context() -> None:
    client_table = ClientTable()
    first, second = client_table.add_client(1, 100, 0, {}), client_table.add_client(2, 200, 0, {})
    context = client_table.open_context(first, 0, 1)
    with pytest.raises(NoSuchContext):
        client_table.close_context(second, context.id)
    assert list(first.contexts.values()) == [context]


def test_a_removed_client_is_returned_with_its_contexts() -> None:
    client_table = ClientTable()
    client = client_table.add_client(1, 100, 0, {})
    context = client_table.open_context(client, 0, 1)
    assert list(client_table.remove_client(1).contexts.values()) == [context]
    assert client_table.clients == {}
    assert client_table.workers == 0


def test_another_connection_of_the_same_pid_is_another_client() -> None:
    client_table = ClientTable()
    client_table.add_client(1, 100, 0, {})
    client_table.remove_client(1)
    again = client_table.add_client(2, 100, 0, {})
    assert (again.id, again.contexts_made) == (2, 0)


def test_a_terminated_context_takes_no_connection() -> None:
    client_table = ClientTable.of(describe("H200"))
    client = client_table.add_client(1, 100, 0, {})
    contexts = [client_table.open_context(client, 0, 1) for _ in range(60)]
    client_table.mark_terminated(client, contexts[0])
    client_table.open_context(client, 0, 1)
    with pytest.raises(PoolExhausted):
        client_table.open_context(client, 0, 1)
    client_table.close_context(client, contexts[0].id)
    with pytest.raises(PoolExhausted):
        client_table.open_context(client, 0, 1)
