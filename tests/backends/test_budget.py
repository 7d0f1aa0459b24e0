"""The budget of a device whose memory other processes use too."""

from __future__ import annotations

from pympsd_server.backends.budget import NOTEWORTHY_BYTES, DeviceBudget

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
