"""Copy ranges of memory for one thread after another, and complete the copied bytes at mbarriers."""

from collections.abc import Callable
from typing import Final

import numpy as np

from pympsd_server.ptx.isa.datatypes import S64, U32, U64, Array, DType, Value
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, MisalignedAddress
from pympsd_server.ptx.isa.machine import RANK_SHIFT
from pympsd_server.ptx.runtime.atomics import atomic
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.mbarrier import arrival
from pympsd_server.ptx.runtime.spaces import displace, elements, load, store
from pympsd_server.ptx.runtime.threads import Threads

Work = Callable[[Threads, tuple[int, ...]], None]
"""A function that does the work of one thread, and is called with the thread and its element of every value."""


def run_by_thread(
    state: BatchState, threads: Threads, values: tuple[Value, ...], guard: Value | None, work: Work
) -> None:
    """Call `work` for one thread after another, except those whose `guard` is false. A fault names the thread.

    Raises Cancelled between two threads if the flag is set, because each copy may be as large as shared memory.
    """
    columns = [np.broadcast_to(value, threads.count) for value in values]
    positions = (
        range(threads.count) if guard is None else np.flatnonzero(np.broadcast_to(guard, threads.count)).tolist()
    )
    for position in positions:
        state.poll()
        thread = Threads(threads.indices()[position : position + 1], 1)
        try:
            work(thread, tuple(int(column[position]) for column in columns))
        except DeviceFault as fault:
            fault.position = position
            raise


def repeat(thread: Threads, count: int) -> Threads:
    """Return ``count`` copies of a thread, so that it can access as many elements together."""
    return Threads(np.repeat(thread.indices(), count), count)


def consecutive(start: int, count: int, step: int) -> Array:
    """Return the addresses of ``count`` elements of ``step`` bytes that begin at `start`."""
    return np.arange(count, dtype=U64) * U64.type(step) + U64.type(start)


def check_multiple(name: str, value: int, unit: int) -> None:
    """Raise MisalignedAddress unless an address or a size is a multiple of ``unit``."""
    if value % unit:
        raise MisalignedAddress(f"{name} {value:#x}: not a multiple of {unit}")


def destinations(address: int, mask: int | None) -> list[int]:
    """Return a shared address, or with the mask of .multicast::cluster the same address in each selected block."""
    if mask is None:
        return [address]
    offset = address & ((1 << RANK_SHIFT) - 1)
    return [offset | (rank + 1) << RANK_SHIFT for rank in range(16) if mask >> rank & 1]


def complete_bytes(state: BatchState, thread: Threads, barrier: int, count: int) -> None:
    """Subtract ``count`` copied bytes from those for which an mbarrier waits (.mbarrier::complete_tx::bytes)."""
    change = arrival(np.zeros(1, U32), np.full(1, -count, S64))
    atomic(state, thread, "shared", "mbarrier", np.full(1, barrier, U64), U64, 8, (change,), False, None)


_WORD: Final = np.dtype("u4")
_BYTE: Final = np.dtype("u1")
_BULK: Final = 16
"""The unit of bulk copies, in bytes: addresses and sizes are multiples of it."""
_ALL_BITS: Final = (1 << 64) - 1


def copy_small(
    state: BatchState,
    threads: Threads,
    target: Value,
    source: Value,
    count: int,
    available: Value | None,
    guard: Value | None,
) -> None:
    """cp.async: copy `count` (4, 8 or 16) bytes from global to shared memory.

    The bytes past `available` become zero. Words that have only such bytes are not read, but alignment is checked.
    """
    words, first_align = [], count
    if available is not None:
        is_misaligned = (source & source.dtype.type(count - 1)) != 0
        if not np.any(is_misaligned if guard is None else is_misaligned & guard):
            first_align = 4  # the words are checked one by one, because not all may be read
    for at in range(0, count, 4):
        align = 4 if at else first_align
        if available is None:
            words.append(load(state, threads, "global", displace(source, at), _WORD, align, guard))
            continue
        there = np.clip(available.astype(np.int64) - at, 0, 4)
        is_loaded = (there > 0) if guard is None else (there > 0) & guard
        word = load(state, threads, "global", displace(source, at), _WORD, align, is_loaded)
        words.append((word & ((np.int64(1) << (8 * there)) - 1).astype(np.uint32)).astype(np.uint32))
    store(state, threads, "shared", target, _WORD, count, tuple(words), guard)


def copy_bulk(
    state: BatchState,
    threads: Threads,
    spaces: tuple[str, str],
    target: Value,
    source: Value,
    count: Value,
    barrier: Value | None,
    mask: Value | None,
    guard: Value | None,
) -> None:
    """cp.async.bulk: copy `count` bytes for each thread, and complete them on its `barrier`.

    `spaces` are the state spaces of the target and the source. `mask` selects the blocks of the cluster that receive
    the bytes (.multicast::cluster). Raises DeviceFault for an invalid address or size.
    """

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        place, origin, size, waiting, blocks = arguments
        _check_bulk(place, origin, size)
        selected = None if mask is None else blocks
        for to in destinations(place, selected) if size else ():
            _bytes(state, thread, spaces[0], to, size)[:] = _bytes(state, thread, spaces[1], origin, size)
        for waiting_address in () if barrier is None else destinations(waiting, selected):
            complete_bytes(state, thread, waiting_address, size)

    nothing = np.uint32(0)
    values = (target, source, count, nothing if barrier is None else barrier, nothing if mask is None else mask)
    run_by_thread(state, threads, values, guard, work)


def reduce_bulk(
    state: BatchState,
    threads: Threads,
    space: str,
    function: str,
    dtype: DType,
    target: Value,
    source: Value,
    count: Value,
    barrier: Value | None,
    guard: Value | None,
) -> None:
    """cp.reduce.async.bulk: do an atomic operation on the target for each element in `count` bytes of shared memory.

    Raises DeviceFault for an invalid address or size.
    """

    def work(thread: Threads, arguments: tuple[int, ...]) -> None:
        place, origin, size, waiting = arguments
        _check_bulk(place, origin, size)
        if size:
            values = _bytes(state, thread, "shared", origin, size).view(dtype).copy()
            elements, step = len(values), dtype.itemsize
            places = consecutive(place, elements, step)
            atomic(state, repeat(thread, elements), space, function, places, dtype, step, (values,), False, None)
        if barrier is not None:
            complete_bytes(state, thread, waiting, size)

    run_by_thread(state, threads, (target, source, count, np.uint32(0) if barrier is None else barrier), guard, work)


def _check_bulk(target: int, source: int, size: int) -> None:
    for name, value in (("target", target), ("source", source), ("size", size)):
        check_multiple(f"bulk copy with {name}", value, _BULK)


def _bytes(state: BatchState, thread: Threads, space: str, address: int, size: int) -> Array:
    """Return a view of the bytes of one thread's range. Raises IllegalAddress unless the memory has all of them."""
    first, last = (
        int(np.atleast_1d(elements(state, thread, space, np.full(1, end, np.uint64), 1, 1)[0][1])[0])
        for end in (address, (address + size - 1) & _ALL_BITS)
    )
    # Both ends may be mapped without the bytes between them: two allocations, or the memory of two blocks.
    is_whole = last - first == size - 1 and (space != "global" or state.space.contains_places(first, last + 1))
    if not is_whole:
        reason = "not all of them are in one allocation or block"
        raise IllegalAddress(f"{space} address {address:#x}, {size} bytes: {reason}")
    return state.view(space, _BYTE)[first : last + 1]
