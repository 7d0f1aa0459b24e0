"""Ranges of memory that single threads copy: their addresses, and the barriers that wait for their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pympsd_server.backends.emulated.ptx.asynchronous.mbarrier import arrival
from pympsd_server.backends.emulated.ptx.datatypes import S64, U32, U64, Array, Value
from pympsd_server.backends.emulated.ptx.faults import Cancelled, DeviceFault, MisalignedAddress
from pympsd_server.backends.emulated.ptx.runtime.atomics import atomic
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes
from pympsd_server.backends.emulated.ptx.windows import RANK_SHIFT

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

Work = Callable[[Lanes, tuple[int, ...]], None]
"""What one thread does, with its element of every value."""


def by_thread(state: BatchState, lanes: Lanes, values: tuple[Value, ...], guard: Value | None, work: Work) -> None:
    """Do a work for each thread in turn, but for those whose `guard` is false. A fault says whose it was.

    Raises Cancelled between two threads: each may copy as much as shared memory holds.
    """
    columns = [np.broadcast_to(value, lanes.count) for value in values]
    chosen = range(lanes.count) if guard is None else np.flatnonzero(np.broadcast_to(guard, lanes.count)).tolist()
    for position in chosen:
        if state.cancel.is_set():
            raise Cancelled
        lane = Lanes(lanes.indices()[position : position + 1], 1)
        try:
            work(lane, tuple(int(column[position]) for column in columns))
        except DeviceFault as fault:
            fault.position = position
            raise


def repeated(lane: Lanes, count: int) -> Lanes:
    """Return a thread ``count`` times, to access as many elements at once."""
    return Lanes(np.repeat(lane.indices(), count), count)


def consecutive(start: int, count: int, step: int) -> Array:
    """Return the addresses of ``count`` elements of ``step`` bytes."""
    return np.arange(count, dtype=U64) * U64.type(step) + U64.type(start)


def check_multiple(name: str, value: int, unit: int) -> None:
    """Raise MisalignedAddress unless an address or a size is a multiple of ``unit``."""
    if value % unit:
        raise MisalignedAddress(f"{name} {value:#x}: no multiple of {unit}")


def destinations(address: int, mask: int | None) -> list[int]:
    """Return a shared address, or with the mask of .multicast::cluster the same one of each chosen block."""
    if mask is None:
        return [address]
    own = address & ((1 << RANK_SHIFT) - 1)
    return [own | (rank + 1) << RANK_SHIFT for rank in range(16) if mask >> rank & 1]


def complete_bytes(state: BatchState, lane: Lanes, barrier: int, count: int) -> None:
    """Do what a copy of ``count`` bytes does at its end: .mbarrier::complete_tx::bytes."""
    change = arrival(np.zeros(1, U32), np.full(1, -count, S64))
    atomic(state, lane, "shared", "mbarrier", np.full(1, barrier, U64), U64, 8, (change,), False, None)
