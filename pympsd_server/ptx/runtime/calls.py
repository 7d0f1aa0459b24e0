"""Implement calls through addresses, alignment of the stack, malloc, free, graph conditions, mapa and getctarank."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from pympsd_server.ptx.isa.datatypes import Value
from pympsd_server.ptx.isa.faults import IllegalAddress, InvalidProgramCounter, LaunchFailed
from pympsd_server.ptx.isa.machine import RANK_SHIFT
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads, spread

_HALF_RANGE: Final = 1 << (RANK_SHIFT - 1)
"""Half the number of shared addresses that belong to one block of a cluster."""


def function_index(address: Value, functions: tuple[int, ...]) -> Value:
    """Return the index of each address in `functions`. Raises InvalidProgramCounter for an address not among them."""
    table = np.array(functions, np.uint64)
    addresses = np.atleast_1d(address)
    is_function = addresses[:, None] == table[None, :]
    missing = ~is_function.any(axis=1)
    if missing.any():
        at = int(np.argmax(missing))
        raise InvalidProgramCounter(
            f"call of {int(addresses[at]):#x}, which is not a function of this shape", position=at
        )
    index = is_function.argmax(axis=1).astype(np.uint32)
    return index if address.ndim else index[0]


def align_up(value: Value, alignment: int) -> Value:
    """Round addresses up to a multiple of `alignment`, a power of two."""
    mask = value.dtype.type(alignment - 1)
    return (value + mask) & ~mask


def _in_order(state: BatchState, threads: Threads) -> Iterator[int]:
    """Return the positions of threads in the order of the threads; raise Cancelled if the batch was cancelled."""
    for position in np.argsort(threads.indices(), kind="stable").tolist():
        state.poll()
        yield position


def device_malloc(state: BatchState, threads: Threads, count: Value) -> Value:
    """Call malloc for each thread, in thread order; return the addresses, 0 if the heap is full."""
    counts = spread(count, threads.count)
    addresses = np.zeros(threads.count, np.uint64)
    heap = state.facilities.heap
    for position in _in_order(state, threads):
        addresses[position] = heap.allocate(int(counts[position]))
    return addresses


def device_free(state: BatchState, threads: Threads, address: Value) -> None:
    """Call free for each thread, in thread order. Raises IllegalAddress for an address that malloc did not return."""
    addresses = spread(address, threads.count)
    heap = state.facilities.heap
    for position in _in_order(state, threads):
        if not heap.free(int(addresses[position])):
            why = f"free of {int(addresses[position]):#x}, which no malloc of a kernel returned"
            raise IllegalAddress(why, position=position)


def set_conditional(state: BatchState, threads: Threads, handle: Value, value: Value) -> None:
    """Call cudaGraphSetConditional for each thread, in thread order, so that the last thread's value remains.

    Raises LaunchFailed for an unknown handle.
    """
    handles, values = spread(handle, threads.count), spread(value, threads.count)
    conditions = state.facilities.conditions
    for position in _in_order(state, threads):
        condition = conditions.find(int(handles[position]))
        if condition is None:
            why = f"cudaGraphSetConditional of {int(handles[position]):#x}, which no executable graph here has"
            raise LaunchFailed(why, position=position)
        condition.value = int(values[position])


def address_in_block(address: Value, rank: Value) -> Value:
    """mapa: convert a shared address of the thread's own block to the same address in another block of the cluster.

    Compilers also compute addresses before a variable's start, so half of a block's addresses are below its memory.
    """
    kind = address.dtype.type
    above = address + kind(_HALF_RANGE)
    window = above & kind(0xFFFFFFFF << 32 & ((1 << 8 * address.dtype.itemsize) - 1))
    offset = (above & kind((1 << RANK_SHIFT) - 1)) - kind(_HALF_RANGE)
    return window + ((rank + np.uint32(1)).astype(kind) << kind(RANK_SHIFT)) + offset


def rank_of_address(address: Value, own_rank: Value) -> Value:
    """getctarank: return the rank of the block to which a shared address belongs; `own_rank` is the thread's own."""
    kind = address.dtype.type
    rank = ((address + kind(_HALF_RANGE)) >> kind(RANK_SHIFT) & kind(255)).astype(np.uint32)
    return np.where(rank > 0, rank - np.uint32(1), own_rank).astype(np.uint32)
