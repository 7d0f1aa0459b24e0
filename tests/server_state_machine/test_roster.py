"""The roster: clients, contexts and their numbers."""

import pytest

from pympsd.devices.machine import describe
from pympsd_server.state_machine.client_table import NoSuchContext, Roster
from pympsd_server.state_machine.connections import PoolExhausted


def test_serials_count_the_servers_contexts_and_numbers_the_processs_own() -> None:
    roster = Roster()
    first, second = roster.add_client(7, 100, 0, {}), roster.add_client(8, 200, 0, {})
    opened = [roster.open_context(client, 0, 1) for client in (first, second, first)]
    assert [(c.serial, c.number, c.client) for c in opened] == [(1, 1, 7), (2, 1, 8), (3, 2, 7)]


def test_the_number_of_a_closed_context_is_not_reused() -> None:
    roster = Roster()
    client = roster.add_client(1, 100, 0, {})
    gone = roster.open_context(client, 0, 1)
    assert roster.close_context(client, gone.serial) == gone
    assert (roster.open_context(client, 0, 1).number, client.contexts_made) == (2, 2)


def test_a_client_cannot_close_anothers_context() -> None:
    roster = Roster()
    one, other = roster.add_client(1, 100, 0, {}), roster.add_client(2, 200, 0, {})
    context = roster.open_context(one, 0, 1)
    with pytest.raises(NoSuchContext):
        roster.close_context(other, context.serial)
    assert list(one.contexts.values()) == [context]


def test_a_removed_client_is_returned_with_its_contexts() -> None:
    roster = Roster()
    client = roster.add_client(1, 100, 0, {})
    context = roster.open_context(client, 0, 1)
    assert list(roster.remove_client(1).contexts.values()) == [context]
    assert roster.clients == {}
    assert roster.workers == 0


def test_another_connection_of_the_same_pid_is_another_client() -> None:
    roster = Roster()
    roster.add_client(1, 100, 0, {})
    roster.remove_client(1)
    again = roster.add_client(2, 100, 0, {})
    assert (again.serial, again.contexts_made) == (2, 0)


def test_a_terminated_context_takes_no_connection() -> None:
    roster = Roster.of(describe("H200"))
    client = roster.add_client(1, 100, 0, {})
    contexts = [roster.open_context(client, 0, 1) for _ in range(48)]
    roster.mark_terminated(client, contexts[0])
    roster.open_context(client, 0, 1)
    with pytest.raises(PoolExhausted):
        roster.open_context(client, 0, 1)
    roster.close_context(client, contexts[0].serial)
    with pytest.raises(PoolExhausted):
        roster.open_context(client, 0, 1)
