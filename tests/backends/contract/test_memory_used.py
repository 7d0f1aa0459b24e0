"""The memory used by each client, and the notification of every change."""

from __future__ import annotations

from threading import Event as Flag

from pympsd_server.backends.device_interface import Device
from tests.backends.contract.port_user import SECONDS, PortUser


def test_memory_used_is_a_clients_allocations_and_contexts(any_device: Device) -> None:
    assert dict(any_device.memory_used) == {}
    first = PortUser.on(any_device, client=1)
    alone = any_device.memory_used[1]
    assert alone > 0, "a context itself takes memory"
    address = first.context.allocate(1 << 20)
    assert any_device.memory_used[1] == alone + (1 << 20)
    port_user = PortUser.on(any_device, client=2)
    assert dict(any_device.memory_used) == {1: alone + (1 << 20), 2: alone}
    first.free(address)
    assert dict(any_device.memory_used) == {1: alone, 2: alone}
    port_user.context.destroy()
    assert dict(any_device.memory_used) == {1: alone}
    first.context.destroy()
    assert dict(any_device.memory_used) == {}


def test_every_change_is_notified(any_device: Device) -> None:
    changed = Flag()
    any_device.watch_memory(changed.set)

    def was_notified() -> bool:
        was = changed.wait(SECONDS)
        changed.clear()
        return was

    user = PortUser.on(any_device, client=1)
    assert was_notified()
    address = user.context.allocate(64)
    assert was_notified()
    user.free(address)
    assert was_notified()
    user.context.destroy()
    assert was_notified()
    assert dict(any_device.memory_used) == {}


def test_what_an_audited_client_takes_and_returns_is_reported(any_device: Device) -> None:
    reports: list[tuple[int, int, int, int]] = []
    any_device.audit_memory(lambda *change: reports.append(change))
    silent = PortUser.on(any_device, client=1)
    user = PortUser.on(any_device, client=2, audited=True)
    held, limit = any_device.memory_used[2], user.context.memory_info()[1]
    assert sum(change for _, change, _, _ in reports) == held, "its context"
    assert {(client, most) for client, _, _, most in reports} == {(2, limit)}
    reports.clear()
    silent.context.allocate(4 << 20)
    small, large = (user.context.allocate(count) for count in (1 << 20, 2 << 20))
    assert reports == [(2, 2 << 20, held + (3 << 20), limit)]
    user.free(small)
    user.free(large)
    assert reports[1:] == [(2, -(2 << 20), held, limit)]
    user.context.destroy()
    assert sum(change for _, change, _, _ in reports) == -held
