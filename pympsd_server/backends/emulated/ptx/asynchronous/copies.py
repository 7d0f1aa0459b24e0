"""cp.async and cp.async.bulk. The copies are done at once: nobody may look before they are waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value
from pympsd_server.backends.emulated.ptx.faults import IllegalAddress, MisalignedAddress
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes, spread
from pympsd_server.backends.emulated.ptx.runtime.spaces import displaced, elements, load, store

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WORD: Final = np.dtype("u4")
_BYTE: Final = np.dtype("u1")
_BULK: Final = 16
"""Addresses and sizes of bulk copies are multiples of this."""


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
    guard: Value | None,
) -> None:
    """cp.async.bulk: copy `count` bytes of each thread; `spaces` are the target's and the source's."""
    chosen = range(lanes.count) if guard is None else np.flatnonzero(np.broadcast_to(guard, lanes.count)).tolist()
    targets, sources, counts = (spread(value, lanes.count) for value in (target, source, count))
    for position in chosen:
        size = int(counts[position])
        for name, value in (("target", targets), ("source", sources), ("size", counts)):
            if int(value[position]) % _BULK:
                why = f"bulk copy with {name} {int(value[position]):#x}: no multiple of {_BULK}"
                raise MisalignedAddress(why, position=position)
        if size:
            one = Lanes(lanes.indices()[position : position + 1], 1)
            _bytes(state, one, spaces[0], targets[position], size, position)[:] = _bytes(
                state, one, spaces[1], sources[position], size, position
            )


def _bytes(state: BatchState, lane: Lanes, space: str, address: Value, size: int, position: int) -> Array:
    """Return the bytes of one thread's range. Raises IllegalAddress unless all of them are there."""
    try:
        first, last = (
            int(np.atleast_1d(elements(state, lane, space, np.atleast_1d(each), 1, 1)[0][1])[0])
            for each in (address, displaced(address, size - 1))
        )
        if space == "global" and not state.space.contains_places(first, last + 1):
            raise IllegalAddress(f"address {int(address):#x}, {size} bytes: outside of the allocations")
    except IllegalAddress as fault:
        fault.position = position
        raise
    return state.view(space, _BYTE)[first : last + 1]
