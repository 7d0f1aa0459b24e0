"""Declare the C runtime of compiled kernels (native/src/kernels.h): structures, functions, states and faults.

The structures are declared here a second time. When the library is loaded, their sizes are compared with the sizes in
C.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np

from pympsd_server.native.library import NoLibrary, load
from pympsd_server.ptx.isa.faults import DeviceFault, IllegalAddress, LaunchFailed, MisalignedAddress
from pympsd_server.ptx.isa.machine import BARRIERS

StopReason = IntEnum(
    "StopReason", "DONE BARRIER SLICE SPIN ESCAPE BAIL FAULT TRAP POLL TURN SLEEP POLLING_ESCAPE", start=0
)
"""The result of a kernel's function: the reason why a warp stopped (see kernel_text.py)."""
WarpState = IntEnum("WarpState", "READY WAITING ENDED ESCAPING BAILING SLEEPING", start=0)
"""The state of a warp between two calls of its kernel."""
Outcome = IntEnum("Outcome", "FINISHED TIME SERVICE FAULTED TRAPPED DEADLOCKED", start=0)
"""The result of `kernels_run`."""
SPACE_NUMBERS: Final = {"global": 0, "const": 0, "shared": 1, "local": 2, "param": 3, "generic": 4}
WRITTEN: Final = 5
"""The number of the generic space for accesses that write, which cannot be to parameters."""
_SPACES: Final = {number: space for space, number in SPACE_NUMBERS.items() if space not in ("const", "generic")}
OUTSIDE, MISALIGNED, NO_BARRIER, NO_BLOCK, NO_ENTRY, NO_AGREEMENT, NO_COUNT, NO_SEGMENT, READ_ONLY = range(1, 10)
"""The kinds of faults."""
CONSTANTS: Final = (
    *("nsmid", "dynamic_smem_size", "total_smem_size", "aggr_smem_size"),
    *("envreg1", "envreg2", "nwarpid", "gridid"),
)
"""The special registers that do not change during a launch, in the order of `Worker.constants`."""
FRAME_HEADER: Final = 32
FRAME_STOP, FRAME_ALIVE, FRAME_MASK, FRAME_TRUES, FRAME_TOTAL, FRAME_TURNS = 0, 4, 8, 16, 20, 24
"""Offsets in a warp's frame, in bytes: its stop, its living lanes, the lanes at the stop, the votes of bar.red (true
ones and all), and the kinds of turns since the last barrier."""
CACHE_LINE: Final = 128
"""The alignment of data that different threads write, in bytes: processors fetch cache lines in pairs."""
_REFRESH = ctypes.CFUNCTYPE(None, c_void_p)


def _declare(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Return the fields of a structure from groups of a type and several names, as C declares them."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class Worker(ctypes.Structure):
    """The state of a thread that runs blocks, shared with C and generated code (native/src/kernels.h)."""

    _fields_ = _declare(
        (c_uint64, "shared local parameters"),
        (c_int64, "delta"),
        (c_uint64, "sites"),
        (c_uint64 * 3, "tid"),
        (c_uint64, "addresses dynamic_offset local_frame local_bytes parameter_bytes"),
        (c_int64, "fuel"),
        (c_uint64, "sleep"),
        (c_uint32 * 3, "ctaid nctaid ntid clusterid nclusterid cluster_ctaid cluster_nctaid"),
        (c_uint32, "cluster_ctarank cluster_nctarank is_explicit_cluster shared_bytes warps warp smid"),
        (c_uint32 * 8, "constants"),
        (c_uint32, "barrier_number barrier_threads barrier_trues barrier_total"),
        (c_uint64, "fault_address"),
        (c_uint32, "fault_lane fault_kind fault_bytes fault_space"),
        (c_int64, "block"),
        (c_uint64, "batch current states frames locals cluster_shared before free"),
        (c_int64, "active preferred idle"),
        (c_uint64, "generation"),
        (c_uint32, "progress outcome calls stops"),
    )


class ReachableMemory(ctypes.Structure):
    """The memory that kernels can access: the ranges of allocations, as offsets, and the windows of peers."""

    _fields_ = _declare(
        (c_uint64, "starts ends"),
        (c_int64, "count"),
        (c_uint64, "generation peers"),
        (c_int64, "peer_count own_size"),
    )


class SharedState(ctypes.Structure):
    """The state that the workers of a batch share (`Batch` in native/src/kernels.h)."""

    _fields_ = _declare(
        (c_uint64, "kernel"),
        (_REFRESH, "refresh"),
        (c_uint64, "allocations"),
        (c_int64, "base"),
        (c_uint64 * 3, "threads"),
        (c_uint64, "sm_of_block"),
        (c_int64, "first_block blocks waves next_wave"),
        (c_uint64, "shared_slab local_slab frame_slab shared_frame frame_bytes threads_per_block width sites_bytes"),
        (c_int64, "fuel_per_turn"),
        (c_uint64, "slot warp_states states_bytes cluster_blocks workers"),
        (c_uint32, "worker_count worker_bytes"),
        (c_int64, "slots_at_once preferred"),
        (c_uint64, "deadline help_at"),
        (c_int64, "next_block next_slot fault_block"),
        (c_uint32, "stopping alone progress_before fault_worker is_open"),
        (c_uint32, "joined running was_helped is_prepared is_straight needs_python"),
        (c_uint64, "next_open"),
    )


SLOT: Final = np.dtype(
    [
        *(("number", "i8"), ("left", "u4"), ("bailing", "u2"), ("uses_barriers", "u2")),
        *(("barriers", "u4", (BARRIERS + 1, 5)), ("remaining", "u4"), ("following", "u8"), ("unused", "V16")),
    ]
)
"""A slot for a block in progress. `number` is the block's number in the batch, or -1 for a free slot."""
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
"""The type of the C function that `SharedState.refresh` calls; it converts a Python function."""
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
    """Load the C library, with its functions declared. Raises NoLibrary if it is missing or of another build."""
    library = load("_kernels", _SIGNATURES)
    sizes = library.kernels_worker_bytes(), library.kernels_batch_bytes(), library.kernels_slot_bytes()
    if sizes != (ctypes.sizeof(Worker), ctypes.sizeof(SharedState), SLOT.itemsize):
        raise NoLibrary("the library is of another build: install pympsd again")
    return library


def offset_of(name: str) -> int:
    """Return the offset of a field of `Worker`, in bytes."""
    return int(getattr(Worker, name).offset)


def describe_fault(outcome: int, worker: Worker) -> DeviceFault:
    """Return the fault with which `kernels_run` ended. The caller must set its kernel, block and thread."""
    if outcome == Outcome.TRAPPED:
        return LaunchFailed("a trap instruction was executed")
    if outcome == Outcome.DEADLOCKED or worker.fault_kind == NO_AGREEMENT:
        return LaunchFailed("deadlock: all threads wait for each other at barriers")
    if worker.fault_kind == NO_COUNT:
        return LaunchFailed("bar.arrive without a thread count")
    address, nbytes, space = worker.fault_address, worker.fault_bytes, _SPACES.get(worker.fault_space, "global")
    if worker.fault_kind == NO_BARRIER:
        return LaunchFailed(f"barrier {address} does not exist")
    if worker.fault_kind == NO_BLOCK:
        blocks = worker.cluster_nctarank
        return IllegalAddress(f"shared address {address:#x}: a cluster has {blocks} blocks")
    if worker.fault_kind == NO_ENTRY:
        return LaunchFailed(f"brx.idx to entry {address}, which does not exist")
    if worker.fault_kind == NO_SEGMENT:
        return LaunchFailed("internal error, threads were lost: set PYMPSD_TIER=numpy, and report the kernel")
    where = f"{'' if space == 'global' else space + ' '}address {address:#x}, {nbytes} bytes: "
    if worker.fault_kind == MISALIGNED:
        return MisalignedAddress(f"{where}misaligned")
    if worker.fault_kind == READ_ONLY:
        return IllegalAddress(f"{where}kernels cannot write their parameters")
    if space == "global":
        return IllegalAddress(f"{where}outside of the allocations")
    sizes = {"shared": worker.shared_bytes, "local": worker.local_bytes, "param": worker.parameter_bytes}
    return IllegalAddress(f"{where}outside of the {sizes[space]} bytes of {space} memory")
