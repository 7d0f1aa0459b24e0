"""The C runtime of compiled kernels (native/src/kernels.h): its structures, its functions, and its states.

The structures are declared here a second time. When the library is loaded, their sizes are compared with C's.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np

from pympsd_server.native.library import NoLibrary, load
from pympsd_server.ptx.isa.machine import BARRIERS


class StopReason(IntEnum):
    """The result of a kernel's function: why a warp stopped."""

    DONE = 0
    BARRIER = 1
    SLICE = 2
    SPIN = 3
    ESCAPE = 4
    BAIL = 5
    FAULT = 6
    TRAP = 7
    POLL = 8
    TURN = 9
    SLEEP = 10
    POLLING_ESCAPE = 11


class WarpState(IntEnum):
    """The state of a warp between two calls of its kernel."""

    READY = 0
    WAITING = 1
    ENDED = 2
    ESCAPING = 3
    BAILING = 4
    SLEEPING = 5


class Outcome(IntEnum):
    """The result of `kernels_run`."""

    FINISHED = 0
    TIME = 1
    SERVICE = 2
    FAULTED = 3
    TRAPPED = 4
    DEADLOCKED = 5


SPACE_NUMBERS: Final = {"global": 0, "const": 0, "shared": 1, "local": 2, "param": 3, "generic": 4}
OUTSIDE, MISALIGNED, NO_BARRIER, NO_BLOCK, NO_ENTRY, NO_AGREEMENT, NO_COUNT, NO_SEGMENT = range(1, 9)
"""The kinds of faults."""
CONSTANTS: Final = (
    "nsmid",
    "dynamic_smem_size",
    "total_smem_size",
    "aggr_smem_size",
    "envreg1",
    "envreg2",
    "nwarpid",
    "gridid",
)
"""The special registers that are the same for a whole launch, in the order of `Worker.constants`."""
FRAME_HEADER: Final = 32
FRAME_STOP, FRAME_ALIVE, FRAME_MASK, FRAME_TRUES, FRAME_TOTAL, FRAME_TURNS = 0, 4, 8, 16, 20, 24
"""Offsets in a warp's frame: where it stopped, its live lanes, the lanes that stopped there, votes of bar.red, and
the kinds of turns that it has taken since the last barrier."""
CACHE_LINE: Final = 128
"""The bytes between the data that two threads write, because processors fetch cache lines in pairs."""
_REFRESH = ctypes.CFUNCTYPE(None, c_void_p)


class Worker(ctypes.Structure):
    """The state with which one thread runs blocks, shared with C and generated code (native/src/kernels.h)."""

    _fields_ = (
        ("shared", c_uint64),
        ("local", c_uint64),
        ("parameters", c_uint64),
        ("delta", c_int64),
        ("sites", c_uint64),
        ("tid", c_uint64 * 3),
        ("addresses", c_uint64),
        ("dynamic_offset", c_uint64),
        ("local_frame", c_uint64),
        ("local_bytes", c_uint64),
        ("parameter_bytes", c_uint64),
        ("fuel", c_int64),
        ("sleep", c_uint64),
        ("ctaid", c_uint32 * 3),
        ("nctaid", c_uint32 * 3),
        ("ntid", c_uint32 * 3),
        ("clusterid", c_uint32 * 3),
        ("nclusterid", c_uint32 * 3),
        ("cluster_ctaid", c_uint32 * 3),
        ("cluster_nctaid", c_uint32 * 3),
        ("cluster_ctarank", c_uint32),
        ("cluster_nctarank", c_uint32),
        ("is_explicit_cluster", c_uint32),
        ("shared_bytes", c_uint32),
        ("warps", c_uint32),
        ("warp", c_uint32),
        ("smid", c_uint32),
        ("constants", c_uint32 * 8),
        ("barrier_number", c_uint32),
        ("barrier_threads", c_uint32),
        ("barrier_trues", c_uint32),
        ("barrier_total", c_uint32),
        ("fault_address", c_uint64),
        ("fault_lane", c_uint32),
        ("fault_kind", c_uint32),
        ("fault_bytes", c_uint32),
        ("fault_space", c_uint32),
        ("block", c_int64),
        ("batch", c_uint64),
        ("current", c_uint64),
        ("states", c_uint64),
        ("frames", c_uint64),
        ("locals", c_uint64),
        ("cluster_shared", c_uint64),
        ("before", c_uint64),
        ("free", c_uint64),
        ("active", c_int64),
        ("preferred", c_int64),
        ("idle", c_int64),
        ("generation", c_uint64),
        ("progress", c_uint32),
        ("outcome", c_uint32),
        ("calls", c_uint32),
        ("stops", c_uint32),
    )


class ReachableMemory(ctypes.Structure):
    """The memory that kernels can access: offsets from the lowest address, and where peers' windows are."""

    _fields_ = (
        *(("starts", c_uint64), ("ends", c_uint64), ("count", c_int64), ("generation", c_uint64)),
        *(("peers", c_uint64), ("peer_count", c_int64), ("own_size", c_int64)),
    )


class SharedState(ctypes.Structure):
    """The state that the workers of a batch share (`Batch` in native/src/kernels.h)."""

    _fields_ = (
        ("kernel", c_uint64),
        ("refresh", _REFRESH),
        ("allocations", c_uint64),
        ("base", c_int64),
        ("threads", c_uint64 * 3),
        ("sm_of_block", c_uint64),
        ("first_block", c_int64),
        ("blocks", c_int64),
        ("waves", c_int64),
        ("shared_slab", c_uint64),
        ("local_slab", c_uint64),
        ("frame_slab", c_uint64),
        ("shared_frame", c_uint64),
        ("frame_bytes", c_uint64),
        ("threads_per_block", c_uint64),
        ("width", c_uint64),
        ("sites_bytes", c_uint64),
        ("fuel_per_turn", c_int64),
        ("slot", c_uint64),
        ("warp_states", c_uint64),
        ("states_bytes", c_uint64),
        ("cluster_blocks", c_uint64),
        ("workers", c_uint64),
        ("worker_count", c_uint32),
        ("worker_bytes", c_uint32),
        ("slots_at_once", c_int64),
        ("preferred", c_int64),
        ("deadline", c_uint64),
        ("help_at", c_uint64),
        ("next_block", c_int64),
        ("next_slot", c_int64),
        ("fault_block", c_int64),
        ("stopping", c_uint32),
        ("alone", c_uint32),
        ("progress_before", c_uint32),
        ("fault_worker", c_uint32),
        ("is_open", c_uint32),
        ("joined", c_uint32),
        ("running", c_uint32),
        ("was_helped", c_uint32),
        ("is_prepared", c_uint32),
        ("is_straight", c_uint32),
        ("needs_python", c_uint32),
        ("next_open", c_uint64),
    )


SLOT: Final = np.dtype(
    [
        *(("number", "i8"), ("left", "u4"), ("bailing", "u2"), ("uses_barriers", "u2")),
        *(("barriers", "u4", (BARRIERS + 1, 5)), ("remaining", "u4"), ("following", "u8"), ("unused", "V16")),
    ]
)
"""A slot for a block in progress; its number is the block's in the batch, -1 for a free slot."""
WARP_STATE: Final = np.dtype(
    [
        ("state", "u1"),
        ("barrier", "u1"),
        ("spins", "u2"),
        ("long_spins", "u4"),
        ("seen", "u4"),
        ("escapes", "u4"),
        ("wake", "u8"),
    ]
)
refresh_function: Final = _REFRESH
"""Makes a C function of a Python function."""
FUNCTIONS: Final = (
    *("kernels_resolve", "kernels_gather", "kernels_scatter", "kernels_arrive", "kernels_clock"),
    *("kernels_move_fragment", "kernels_move_rows", "kernels_copy", "kernels_advance"),
    *("kernels_sample", "kernels_surface"),
)
"""The functions that generated code calls."""
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "kernels_run": (c_int, (ctypes.POINTER(SharedState), c_uint64)),
    "kernels_rewind": (None, (ctypes.POINTER(SharedState), c_int64)),
    "kernels_publish": (None, (ctypes.POINTER(SharedState), ctypes.POINTER(ReachableMemory))),
    "kernels_worker_bytes": (c_uint64, ()),
    "kernels_batch_bytes": (c_uint64, ()),
    "kernels_slot_bytes": (c_uint64, ()),
    "kernels_resolve": (c_int, (ctypes.POINTER(Worker), c_uint64, c_void_p, c_uint32, c_uint32, c_void_p, c_uint32)),
}


@cache
def runtime() -> Any:
    """Return the library with its functions declared; raise NoLibrary."""
    library = load("_kernels", _SIGNATURES)
    sizes = library.kernels_worker_bytes(), library.kernels_batch_bytes(), library.kernels_slot_bytes()
    if sizes != (ctypes.sizeof(Worker), ctypes.sizeof(SharedState), SLOT.itemsize):
        raise NoLibrary("it is of another build: install again")
    return library


def offset_of(name: str) -> int:
    """Return the offset of a field of `Worker`, in bytes."""
    return int(getattr(Worker, name).offset)
