"""Compute operations between the lanes of a warp: shuffles, votes, matches, reductions."""

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.machine import GROUP_WARPS, WARP
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads, spread


def ballot(state: BatchState, threads: Threads, predicate: Value) -> Array:
    """Return, for each warp of the batch, the mask (uint32) of these threads whose predicate is true."""
    if threads.ids is None and state.whole_warps and predicate.ndim:
        flags = predicate
    else:
        flags = np.zeros(state.warps * WARP, np.bool_)
        flags[threads.pick(state.slot)] = predicate
    return np.packbits(flags, bitorder="little").view(np.uint32)


def active(state: BatchState, threads: Threads) -> Array:
    """Return, for each warp of the batch, the mask (uint32) of its lanes in this group."""
    return threads.remember("active", lambda: ballot(state, threads, np.bool_(True)))  # type: ignore[no-any-return]


def _spread_to_threads(state: BatchState, threads: Threads, per_warp: Array) -> Array:
    return per_warp.take(threads.pick(state.warp))  # type: ignore[no-any-return]


def active_mask(state: BatchState, threads: Threads) -> Array:
    """activemask: return, for each thread, the mask (uint32) of its warp's lanes that are in this group."""
    return _spread_to_threads(state, threads, active(state, threads))


def vote(state: BatchState, threads: Threads, mode: str, predicate: Value, mask: Value) -> Value:
    """vote.sync: return the result over the lanes of `mask`, a uint32 for ballot and a bool for any, all and uni."""
    # Each thread counts the votes of the lanes in its own mask.
    votes = _spread_to_threads(state, threads, ballot(state, threads, predicate)) & mask
    if mode == "ballot":
        return votes
    if mode == "any":
        return votes != 0
    voters = _spread_to_threads(state, threads, active(state, threads)) & mask
    return votes == voters if mode == "all" else (votes == voters) | (votes == 0)


def elect(state: BatchState, threads: Threads, mask: Value) -> tuple[Value, Value]:
    """elect.sync: return (the leader's lane, whether this thread is the leader). The leader is the lowest lane."""
    voters = active_mask(state, threads) & mask
    lowest = voters & (~voters + np.uint32(1))
    leader = np.bitwise_count(lowest - np.uint32(1)).astype(np.uint32)
    return leader, leader == threads.pick(state.lane)


def shuffle(
    state: BatchState, threads: Threads, mode: str, value: Value, where: Value, clamp: Value
) -> tuple[Value, Value]:
    """shfl: return (the source lane's value, whether the source lane is in range)."""
    source, valid = _sources(state, threads, mode, where, clamp)
    if value.ndim == 0:
        return value, valid
    if threads.ids is None:
        return value.take(source), valid
    everyone = np.zeros(state.count, value.dtype)
    everyone[threads.ids] = value
    return everyone.take(source), valid


def _sources(state: BatchState, threads: Threads, mode: str, where: Value, clamp: Value) -> tuple[Array, Array]:
    """Return the number of the thread that each thread reads, and whether the source lane is in range."""
    lane = threads.pick(state.lane)
    distance = where.astype(np.int64) & 31
    clamp = clamp.astype(np.int64)
    segment, limit = (clamp >> 8) & 31, clamp & 31
    highest = (lane & segment) | (limit & ~segment)
    if mode == "up":
        source = lane - distance
    elif mode == "down":
        source = lane + distance
    elif mode == "bfly":
        source = lane ^ distance
    else:
        source = (lane & segment) | (distance & ~segment)
    valid = source >= highest if mode == "up" else source <= highest
    source = np.where(valid, source, lane)
    ids = threads.indices()
    if not state.whole_warps:
        # A lane past the end of the CTA does not exist, and its value is undefined: take the thread's own value.
        thread = threads.pick(state.thread)
        source = np.where(thread - lane + source < state.threads_per_block, source, lane)
    return ids - lane + source, valid


def match(state: BatchState, threads: Threads, mode: str, value: Value, mask: Value) -> tuple[Value, Value]:
    """match.sync: return (the lanes of `mask` with the thread's value, whether all have it); `mode` is any or all."""
    table: Array = np.zeros(state.warps * WARP, value.dtype)  # 0 for lanes that are not in the group
    table[threads.pick(state.slot)] = value
    table = table.reshape(-1, WARP)
    equal = table[:, :, None] == table[:, None, :]
    bits = np.packbits(equal, axis=2, bitorder="little").view(np.uint32).reshape(-1)
    voters = active_mask(state, threads) & mask
    same = bits.take(threads.pick(state.slot)) & voters
    if mode == "any":
        return same, np.bool_(True)
    agreed = same == voters
    return np.where(agreed, same, np.uint32(0)), agreed


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(state: BatchState, threads: Threads, mode: str, value: Value, mask: Value) -> Value:
    """redux.sync: return the reduction over the lanes that have the same membermask."""
    function = _REDUCTIONS[mode]
    value, mask = spread(value, threads.count), spread(mask, threads.count)
    # Lanes of a warp may have different masks, so each (warp, mask) has a key of its own.
    key = threads.pick(state.warp).astype(np.uint64) << np.uint64(32) | mask
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    totals = function.reduceat(value[order], starts, dtype=value.dtype)
    result = np.empty(threads.count, value.dtype)
    result[order] = np.repeat(totals, np.diff(np.r_[starts, threads.count]))
    return result


def have_all_arrived(state: BatchState, threads: Threads, mask: Value, warps: int = 1) -> Value:
    """Return, for each thread, whether every living lane in its membermask is in this group.

    `warps` is 1, or GROUP_WARPS if all lanes of the thread's warp group must be in this group.
    """
    living = state.find_living_lanes()
    if warps == 1:
        required = _spread_to_threads(state, threads, living) & mask
        return (required & ~active_mask(state, threads)) == 0
    late = (living & ~active(state, threads)) != 0
    warp = np.arange(state.warps)
    group = warp - warp % state.warps_per_block % GROUP_WARPS
    return _spread_to_threads(state, threads, np.bincount(group, late, state.warps)[group] == 0)
