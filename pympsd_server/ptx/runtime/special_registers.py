"""Compute the values of special registers for the threads of a batch."""

import time

import numpy as np

from pympsd_server.ptx.isa.datatypes import DType, Value
from pympsd_server.ptx.isa.machine import AXES, RESERVED_SHARED_BYTES, SHARED_UNIT_BYTES, TIMERS, WARP
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads


def special(state: BatchState, threads: Threads, text: str, dtype: DType) -> Value:
    """Return the register's value for these threads, as `dtype`."""
    name = text[1:]
    if name in TIMERS:
        now = time.perf_counter_ns()
        if name.endswith("_hi"):
            now >>= 32
        elif name in ("clock", "globaltimer_lo"):
            now &= 0xFFFFFFFF
        return np.uint64(now).astype(dtype)
    return threads.remember((text, dtype), lambda: _convert(threads.pick(_compute_for_batch(state, text)), dtype))


def _convert(value: Value, dtype: DType) -> Value:
    return value if value.dtype == dtype else value.astype(dtype)


def _compute_for_batch(state: BatchState, text: str) -> Value:
    name, _, axis = text[1:].partition(".")
    return state.all.remember(("special", text), lambda: _compute(state, name, AXES.index(axis) if axis else 0))


def _compute(state: BatchState, name: str, axis: int) -> Value:
    """Return the value of a special register for each thread, or one value if all threads share it."""
    if name == "ntid":
        return np.uint32(state.block[axis])
    if name == "nctaid":
        return np.uint32(state.grid[axis])
    if name == "tid":
        return _coordinate(state.thread, state.block, axis)
    if name == "cluster_nctaid":
        return np.uint32(state.cluster[axis])
    if name == "nclusterid":
        return np.uint32(state.clusters[axis])
    if name in ("ctaid", "clusterid", "cluster_ctaid", "cluster_ctarank"):
        return _place_of_block(state, name, axis)
    if name == "smid":
        return state.sm_of_block.astype(np.uint32).take(state.cta)
    if name.startswith("lanemask"):
        equal = np.uint32(1) << (state.thread % WARP).astype(np.uint32)
        below = equal - np.uint32(1)
        masks = {"eq": equal, "lt": below, "le": below | equal, "gt": ~(below | equal), "ge": ~below}
        return masks[name[-2:]]
    if name == "laneid":
        return (state.thread % WARP).astype(np.uint32)
    if name == "warpid":
        return (state.thread // WARP).astype(np.uint32)
    return np.uint32(_constant(state, name))


def _place_of_block(state: BatchState, name: str, axis: int) -> Value:
    number = state.block_numbers.take(state.cta)
    if state.cluster_blocks == 1 and name in ("ctaid", "clusterid"):
        return _coordinate(number, state.grid, axis)
    rank = number % state.cluster_blocks
    if name == "cluster_ctarank":
        return rank.astype(np.uint32)
    inside = _coordinate(rank, state.cluster, axis)
    if name == "cluster_ctaid":
        return inside
    x, y, z = state.clusters
    corner = _coordinate(number // state.cluster_blocks, (x, y, z), axis)
    return corner if name == "clusterid" else corner * np.uint32(state.cluster[axis]) + inside


def _coordinate(number: Value, extent: tuple[int, int, int], axis: int) -> Value:
    if extent[axis] == 1:
        return np.uint32(0)
    below = (1, extent[0], extent[0] * extent[1])[axis]
    rows = number if below == 1 else number // below
    if np.prod(extent[axis + 1 :], dtype=np.int64) > 1:  # a division may take longer than a short kernel
        rows = rows % extent[axis]
    return rows.astype(np.uint32)


def _constant(state: BatchState, name: str) -> int:
    """Return the value of a special register that is constant during a launch; 1 for any other register."""
    match name:
        case "nwarpid":
            return state.resident_warps
        case "nsmid":
            return int(state.multiprocessors)
        case "dynamic_smem_size":
            return state.dynamic_shared
        case "cluster_nctarank":
            return state.cluster_blocks
        case "is_explicit_cluster":
            return int(state.cluster_blocks > 1)
        case "total_smem_size" | "aggr_smem_size":
            return shared_sizes(state.shared_bytes - state.reserved_shared)[name]
        case "envreg1":  # with envreg2 the address of a cooperative launch's workspace, or 0
            return state.workspace >> 32
        case "envreg2":
            return state.workspace & 0xFFFFFFFF
    return 1


def shared_sizes(nbytes: int) -> dict[str, int]:
    """Return the special registers with sizes of shared memory, in bytes, for a block that uses `nbytes` bytes."""
    return {
        "total_smem_size": -(-nbytes // SHARED_UNIT_BYTES) * SHARED_UNIT_BYTES,
        "aggr_smem_size": nbytes + RESERVED_SHARED_BYTES,
    }
