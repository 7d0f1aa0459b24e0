"""Executor slots: which users share an executor, and so an address space."""

from __future__ import annotations

import pytest

from pympsd.devices.machine import describe, parse_toml
from pympsd_server.state_machine.client_table import ClientTable
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot, slot_of

SHARING = "isolates_address_spaces = false\n[[device]]\n"


@pytest.mark.parametrize(("device", "user"), [(describe("H200")[0], ALL_USERS), (parse_toml(SHARING)[0], 500)])
def test_users_share_an_executor_only_if_the_executor_separates_their_memory(device: object, user: int) -> None:
    assert slot_of(500, 3, device) == ExecutorSlot(3, user)  # type: ignore[arg-type]


def test_a_partition_has_its_own_executor_only_on_devices_where_faults_spread_beyond_it() -> None:
    assert slot_of(500, 3, describe("H200")[0], "p") == ExecutorSlot(3)
    assert slot_of(500, 3, parse_toml(SHARING)[0], "p") == ExecutorSlot(3, 500, "p")


def test_the_client_table_lists_the_contexts_in_a_slot() -> None:
    client_table = ClientTable()
    for client_id, user in ((1, 500), (2, 600)):
        client_table.open_context(client_table.add_client(client_id, 100, 0, {}, user), 0, 1, user=user)
    (context,) = client_table.contexts_in(ExecutorSlot(0, 600))
    assert (context.client, context.slot) == (2, ExecutorSlot(0, 600))
    assert client_table.contexts_in(ExecutorSlot(0)) == client_table.contexts_in(ExecutorSlot(1, 600)) == []
    client_table.remove_client(2)
    assert client_table.contexts_in(ExecutorSlot(0, 600)) == []
