"""cp.async and cp.async.bulk. The copies are done at once: no thread may read them before it has waited for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.asynchronous.ranges import (
    by_thread,
    check_multiple,
    complete_bytes,
    consecutive,
    destinations,
    repeated,
)
from pympsd_server.backends.emulated.ptx.datatypes import Array, DType, Value
from pympsd_server.backends.emulated.ptx.faults import IllegalAddress
from pympsd_server.backends.emulated.ptx.runtime.atomics import atomic
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes
from pympsd_server.backends.emulated.ptx.runtime.spaces import displaced, elements, load, store

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WORD: Final = np.dtype("u4")
_BYTE: Final = np.dtype("u1")
_BULK: Final = 16
"""Addresses and sizes of bulk copies are multiples of this."""
_ALL_BITS: Final = (1 << 64) - 1


def copy_small(
    state: BatchState,
    lanes: Lanes,
    target: Value,
    source: Value,
    count: int,
    given: Value | None,
    guard: Value | None,
) -> None:
    """cp.async: copy `count` (4, 8 or 16) bytes from global to shared memory; those past `given` are zero."""
    words = []
    for at in range(0, count, 4):
        align, wanted = (4 if at else count), guard
        if given is None:
            words.append(load(state, lanes, "global", displaced(source, at), _WORD, align, guard))
            continue
        there = np.clip(given.astype(np.int64) - at, 0, 4)
        wanted = (there > 0) if guard is None else (there > 0) & guard
        word = load(state, lanes, "global", displaced(source, at), _WORD, align, wanted)
        words.append((word & ((np.int64(1) << (8 * there)) - 1).astype(np.uint32)).astype(np.uint32))
    store(state, lanes, "shared", target, _WORD, count, tuple(words), guard)


def copy_bulk(
    state: BatchState,
    lanes: Lanes,
    spaces: tuple[str, str],
    target: Value,
    source: Value,
    count: Value,
    barrier: Value | None,
    mask: Value | None,
    guard: Value | None,
) -> None:
    """cp.async.bulk: copy `count` bytes of each thread; `spaces` are the target's and the source's.

    The mbarrier is signalled; `mask` chooses the blocks of the cluster that get them.
    """

    def work(lane: Lanes, given: tuple[int, ...]) -> None:
        place, origin, size, waiting, blocks = given
        _check_bulk(place, origin, size)
        chosen = None if mask is None else blocks
        for to in destinations(place, chosen) if size else ():
            _bytes(state, lane, spaces[0], to, size)[:] = _bytes(state, lane, spaces[1], origin, size)
        for each in () if barrier is None else destinations(waiting, chosen):
            complete_bytes(state, lane, each, size)

    nothing = np.uint32(0)
    values = (target, source, count, nothing if barrier is None else barrier, nothing if mask is None else mask)
    by_thread(state, lanes, values, guard, work)


def reduce_bulk(
    state: BatchState,
    lanes: Lanes,
    space: str,
    function: str,
    dtype: DType,
    target: Value,
    source: Value,
    count: Value,
    barrier: Value | None,
    guard: Value | None,
) -> None:
    """cp.reduce.async.bulk: do an atomic operation with each element of `count` bytes of shared memory."""

    def work(lane: Lanes, given: tuple[int, ...]) -> None:
        place, origin, size, waiting = given
        _check_bulk(place, origin, size)
        if size:
            values = _bytes(state, lane, "shared", origin, size).view(dtype).copy()
            elements, step = len(values), dtype.itemsize
            places = consecutive(place, elements, step)
            atomic(state, repeated(lane, elements), space, function, places, dtype, step, (values,), False, None)
        if barrier is not None:
            complete_bytes(state, lane, waiting, size)

    by_thread(state, lanes, (target, source, count, np.uint32(0) if barrier is None else barrier), guard, work)


def _check_bulk(target: int, source: int, size: int) -> None:
    for name, value in (("target", target), ("source", source), ("size", size)):
        check_multiple(f"bulk copy with {name}", value, _BULK)


def _bytes(state: BatchState, lane: Lanes, space: str, address: int, size: int) -> Array:
    """Return the bytes of one thread's range. Raises IllegalAddress unless all of them are there."""
    first, last = (
        int(np.atleast_1d(elements(state, lane, space, np.full(1, each, np.uint64), 1, 1)[0][1])[0])
        for each in (address, (address + size - 1) & _ALL_BITS)
    )
    # Both ends may be there and not what is between them: two allocations, or the memory of two blocks.
    is_whole = last - first == size - 1 and (space != "global" or state.space.contains_places(first, last + 1))
    if not is_whole:
        raise IllegalAddress(f"{space} address {address:#x}, {size} bytes: outside of the memory there is")
    return state.view(space, _BYTE)[first : last + 1]
