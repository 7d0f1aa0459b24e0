"""The roster: who is here, and the numbers they are known by."""

import pytest

from pympsd.devices.machine import describe
from pympsd_server.state_machine.connections import PoolExhausted
from pympsd_server.state_machine.roster import NotHere, Roster


def test_serials_count_the_servers_contexts_and_numbers_the_processs_own() -> None:
    roster = Roster()
    first, second = roster.arrive(7, 100, 0, {}), roster.arrive(8, 200, 0, {})
    opened = [roster.open_context(client, 0, 1) for client in (first, second, first)]
    assert [(c.serial, c.number, c.client) for c in opened] == [(1, 1, 7), (2, 1, 8), (3, 2, 7)]


def test_a_number_is_not_given_again_after_a_context_is_closed() -> None:
    roster = Roster()
    client = roster.arrive(1, 100, 0, {})
    gone = roster.open_context(client, 0, 1)
    assert roster.close_context(client, gone.serial) == gone
    assert (roster.open_context(client, 0, 1).number, client.made) == (2, 2)


def test_a_client_cannot_close_anothers_context() -> None:
    roster = Roster()
    one, other = roster.arrive(1, 100, 0, {}), roster.arrive(2, 200, 0, {})
    context = roster.open_context(one, 0, 1)
    with pytest.raises(NotHere):
        roster.close_context(other, context.serial)
    assert list(one.contexts.values()) == [context]


def test_a_client_that_leaves_takes_its_contexts_and_names_them() -> None:
    roster = Roster()
    client = roster.arrive(1, 100, 0, {})
    context = roster.open_context(client, 0, 1)
    assert list(roster.leave(1).contexts.values()) == [context]
    assert roster.clients == {}
    assert roster.workers == 0


def test_a_process_that_comes_again_with_the_same_pid_is_another_client() -> None:
    roster = Roster()
    roster.arrive(1, 100, 0, {})
    roster.leave(1)
    again = roster.arrive(2, 100, 0, {})
    assert (again.serial, again.made) == (2, 0)


def test_a_context_whose_work_an_operator_has_stopped_takes_no_connection() -> None:
    roster = Roster.of(describe("H200"))
    client = roster.arrive(1, 100, 0, {})
    contexts = [roster.open_context(client, 0, 1) for _ in range(48)]
    roster.stopped(client, contexts[0])
    roster.open_context(client, 0, 1)
    with pytest.raises(PoolExhausted):
        roster.open_context(client, 0, 1)
    roster.close_context(client, contexts[0].serial)
    with pytest.raises(PoolExhausted):
        roster.open_context(client, 0, 1)
