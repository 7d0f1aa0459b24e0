"""Run a batch of blocks of a compiled kernel, with the interface of the NumPy tier's `Batch`.

The problem: a batch has up to thousands of blocks. Only a few should be in progress at a time, so that their memory
stays in the processor's cache. But blocks may wait for each other, instructions may escape, and the batch must stop
after a slice.

The idea: blocks in progress are in *slots*. The runtime in C (native/src/kernels.c) runs the warps of a slot in turn,
and takes the next block when a block ends. If the running blocks make no progress it begins another one: up to some
hundreds, and then twice as many each time, because all blocks of a batch may wait for each other. It returns when
time is up, or when nothing can run without Python:

    slot 0   block 7   warp 0 waits at a barrier, warp 1 at an escape         shared slab   one frame per slot
    slot 1   block 8   warps 0 and 1 wait at the same escape                  local slab    one frame per thread
    slot 2   free                                                             frame slab    one frame per warp

The blocks of a cluster begin together, in consecutive slots of one worker. The slots become free when all of these
blocks have ended, because until then any of them may access the others' shared memory. A warp that sleeps (nanosleep)
has a time at which it wakes. If all warps of a worker sleep or wait, the worker lets that time pass in C.

`_serve` executes each escaping instruction for all warps that wait before it: the registers are columns of the frame
slab, and the function is the NumPy tier's own. A block that bails is handed over to a `Batch` of its own.

Threads: a batch has a *worker* for each thread that may help, at most one for each multiprocessor of its blocks. The
first worker belongs to the thread that calls `step`. When a call takes longer than 50 microseconds, threads of a pool
in C (native/src/kernel_threads.c) join as the other workers. The call returns when all have stopped, so nothing runs
between two calls, and the scheduler's slices are shares of the device, as with one thread. A worker keeps each block
that it takes; between calls, blocks that no thread would run are given to other workers.

    worker 0 (this thread)   slot 0 ──▶ slot 2 ──▶ slot 0        in turn, as above
    worker 1 (the pool's)    slot 16 ──▶ slot 17 ──▶ slot 16

Warps that spin for a long time may wait for a worker whose thread the system has not scheduled. One thread then runs
all blocks until there is progress; a warp that waits for itself is detected there, and bails. If there are several
faults, the fault in the lowest block counts: workers with higher blocks stop, workers with lower blocks continue
until the call ends.

A program may launch one kernel a million times, and preparing a batch takes longer than running a small one. So a
finished batch is used again for other blocks of the same shape. `add_waves` makes C run the next blocks of the launch
in the same slots. If the batch is not large, its module *keeps* it for another launch (`keep`, `begin_again`). Only
the number of the first block and the values of parameters are replaced, and C resets the state that it has changed
(`kernels_rewind`).

Invariants: while `kernels_run` runs, only the worker that has a slot accesses the slot and its part of the slabs;
between two calls, only this thread does. When the allocations change, the results of earlier checks become invalid;
the arrays of allocations exist until all threads are at rest. A space that maps more peers moves, and a batch follows
when its threads are at rest. After a fault, which names block and thread, a batch is not used again.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from functools import lru_cache
from math import prod
from typing import Any, Final, cast

import numpy as np

from pympsd.vocabulary.variables import KERNEL_THREADS, read
from pympsd_server.ptx.compiled_tier.batches.frames import Frames, allocate_aligned, allocate_zeros, exchange_words
from pympsd_server.ptx.compiled_tier.compilation.machine_code import MachineCode
from pympsd_server.ptx.compiled_tier.native_runtime import (
    CACHE_LINE,
    CONSTANTS,
    SLOT,
    WARP_STATE,
    Outcome,
    ReachableMemory,
    SharedState,
    WarpState,
    Worker,
    describe_fault,
    offset_of,
    refresh_function,
    runtime,
)
from pympsd_server.ptx.execution.barriers import Waiting
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.execution.bounded_use import MAX_BATCH_BYTES, BoundedUse
from pympsd_server.ptx.execution.thread_groups import Group
from pympsd_server.ptx.isa.datatypes import DTYPES, Array, Value
from pympsd_server.ptx.isa.faults import (
    Cancelled,
    DeviceAssertion,
    DeviceFault,
)
from pympsd_server.ptx.isa.machine import GROUP_WARPS
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.lowering.ir import Special
from pympsd_server.ptx.runtime.batch_state import (
    BatchState,
    CancelFlag,
    LaunchSetup,
    align_frame,
    align_local_frame,
    align_shared_frame,
    place_in,
    place_of_block,
)
from pympsd_server.ptx.runtime.special_registers import shared_sizes
from pympsd_server.ptx.runtime.threads import Threads

_LOOK_SECONDS: Final = 0.004
"""The maximum time between two checks of the cancel flag."""
_FUEL: Final = 2048
_PREFERRED_SLOTS: Final = 256
_PREFERRED_ESCAPING_SLOTS: Final = 128
_MAX_SLOTS_AT_ONCE: Final = 16
_MAX_KEPT_BYTES: Final = 1 << 24
"""The maximum size, in bytes, of the slabs of a finished batch that is kept."""
_OBJECT_BYTES: Final = 1 << 14
"""The size of a batch without its slabs, in bytes."""
_BATCHES: Final[weakref.WeakValueDictionary[int, CompiledBatch]] = weakref.WeakValueDictionary()
"""The batches whose kernels may run, by the address of their shared state."""
_looking: Final = threading.Lock()


def _look_again(batch: int) -> None:
    """Read the allocations again, because an access that is about to fault may be to a new allocation."""
    _BATCHES[batch].look_at_allocations(at_rest=False)


_refresh: Final = refresh_function(_look_again)


def _drop(batch: CompiledBatch) -> None:
    batch._module.kept.pop(batch._shape, None)


_kept: Final = BoundedUse(MAX_BATCH_BYTES, _drop)


@lru_cache(maxsize=64)
def _coordinates(block: tuple[int, int, int], width: int) -> tuple[Array, ...]:
    """Return %tid of a block's threads for each axis; the threads fill whole warps."""
    threads = np.arange(-(-prod(block) // width) * width, dtype=np.uint32)
    x, y, _ = block
    return tuple(map(np.ascontiguousarray, (threads % x, threads // x % y, threads // (x * y))))


def _round_up(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE


@lru_cache
def _allowed_threads(setting: str) -> int:
    return int(read({KERNEL_THREADS: setting}, KERNEL_THREADS) or 0)


def _count_threads(sm_of_block: Array) -> int:
    """Return how many threads may run blocks: one for each multiprocessor of the blocks, if the CPU has so many."""
    allowed = _allowed_threads(os.environ.get(KERNEL_THREADS, "")) or len(os.sched_getaffinity(0))
    if allowed == 1 or len(sm_of_block) == 1:
        return 1
    return min(allowed, int(np.count_nonzero(np.bincount(sm_of_block))))


class CompiledBatch:
    """Consecutive CTAs of one launch, as machine code. Arguments and errors are as for `Batch`."""

    def __init__(
        self,
        module: LoadedModule,
        kernel_name: str,
        setup: LaunchSetup,
        first_block: int,
        sm_of_block: Array,
        code: MachineCode,
    ) -> None:
        kernel = module.program.kernels[kernel_name]
        if len(setup.parameters) < kernel.parameter_bytes:
            raise ValueError(f"{kernel_name} takes {kernel.parameter_bytes} bytes, not {len(setup.parameters)}")
        self.kernel, self._module, self._setup, self._code = kernel, module, setup, code
        self._view: Array = module.space.views[DTYPES["u8"]]
        self._sm_of_block = np.ascontiguousarray(sm_of_block, np.int64)
        self._taken_over: list[Batch] = []
        self._reach: list[tuple[Any, ...]] = []
        self._state: BatchState | None = None
        self._shape: tuple[Any, ...] = ()
        """The key of the batches that can replace each other: everything except parameters and the first block."""
        self._common, self._threads = SharedState(), prod(setup.block)
        self._size_memory()
        self._describe_launch()
        self.begin_again(setup, first_block)
        self.look_at_allocations()
        _BATCHES[ctypes.addressof(self._common)] = self

    @classmethod
    def begin(
        cls,
        module: LoadedModule,
        kernel_name: str,
        setup: LaunchSetup,
        first_block: int,
        sm_of_block: Array,
        code: MachineCode,
    ) -> CompiledBatch:
        """Return a batch that was kept for this shape, or a new one. Arguments and errors are the constructor's."""
        launch = setup.grid, setup.block, setup.cluster, setup.dynamic_shared, len(setup.parameters), setup.workspace
        shape = code, launch, sm_of_block.tobytes(), os.environ.get(KERNEL_THREADS, "")
        batch: CompiledBatch | None = module.kept.pop(shape, None)
        if batch is None:
            batch = cls(module, kernel_name, setup, first_block, sm_of_block, code)
            batch._shape = shape
        else:
            batch.begin_again(setup, first_block)
        return batch

    def keep(self) -> None:
        """Keep this finished batch for a later launch of the same shape, unless it is large."""
        if self.can_begin_again and self._nbytes <= _MAX_KEPT_BYTES:
            self._module.kept[self._shape] = self
            nbytes = self._nbytes + self._code.nbytes + _OBJECT_BYTES
            _kept.use(self, nbytes, self._module.facilities.user)

    @property
    def first_block(self) -> int:
        """The number of the first block of the wave that runs."""
        return int(self._common.first_block)

    @property
    def can_begin_again(self) -> bool:
        """Whether the batch can run other blocks when it has finished."""
        return bool(self._shape) and self._state is None

    def add_waves(self, waves: int, first_block: int) -> None:
        """Make the next step also run `waves` more waves of blocks, the first from `first_block` on.

        Do nothing if the batch cannot run other blocks.
        """
        self._common.waves = waves if self.can_begin_again and not self._taken_over else 0
        self._common.next_wave = first_block

    def begin_again(self, setup: LaunchSetup, first_block: int) -> None:
        """Begin other blocks of the same shape. All earlier blocks must have ended."""
        if setup is not self._setup:
            self._parameters[: len(setup.parameters)] = np.frombuffer(setup.parameters, np.uint8)
        self._setup, self._common.waves, self._over = setup, 0, False
        runtime().kernels_rewind(ctypes.byref(self._common), first_block)

    def _size_memory(self) -> None:
        """Allocate the slabs, with a slot for each block, because any block may wait for any other.

        Several workers may each take slots that they do not use, so there are some more. Only used slots take memory.
        """
        common, kernel, code = self._common, self.kernel, self._code
        self._dynamic_offset = align_frame(kernel.translation.shared_bytes)
        dynamic = self._setup.dynamic_shared
        self._shared_bytes = (self._dynamic_offset if dynamic else kernel.translation.shared_bytes) + dynamic
        self._reached = self._module.space.bounds.end_of_shared(self._shared_bytes)
        self._warps_per_block = -(-self._threads // code.width)
        common.worker_count, blocks = _count_threads(self._sm_of_block), len(self._sm_of_block)
        cluster = prod(self._setup.cluster)
        share = blocks // (4 * common.worker_count * cluster) if common.worker_count > 1 else 1
        common.slots_at_once = min(max(share, 1), _MAX_SLOTS_AT_ONCE) * cluster
        slots = blocks + (common.slots_at_once - cluster) * common.worker_count
        common.states_bytes = _round_up(self._warps_per_block * WARP_STATE.itemsize)
        self._slots = allocate_zeros(slots * SLOT.itemsize).view(SLOT)
        states = allocate_zeros(slots * common.states_bytes).reshape(slots, common.states_bytes)
        self._warps = states[:, : self._warps_per_block * WARP_STATE.itemsize].view(WARP_STATE)
        common.shared_frame = align_shared_frame(self._reached)
        self._shared = allocate_aligned(slots * common.shared_frame)
        self._local = allocate_aligned(slots * self._threads * align_local_frame(kernel.local_bytes))
        memory = allocate_aligned(slots * self._warps_per_block * code.frame_bytes)
        self._frames = Frames(code, memory, kernel.translation)
        self._nbytes = self._shared.nbytes + self._local.nbytes + memory.nbytes + self._slots.nbytes + states.nbytes
        common.shared_slab, common.local_slab = self._shared.ctypes.data, self._local.ctypes.data
        common.frame_slab, common.frame_bytes = memory.ctypes.data, code.frame_bytes
        common.slot, common.warp_states = self._slots.ctypes.data, self._warps.ctypes.data

    def _describe_launch(self) -> None:
        """Fill in the shared state, with the code and the shape of the launch, and the state of each worker."""
        common, setup, code = self._common, self._setup, self._code
        common.kernel, common.fuel_per_turn, common.refresh = code.address, _FUEL, _refresh
        common.threads_per_block, common.width = self._threads, code.width
        common.sm_of_block = self._sm_of_block.ctypes.data
        common.cluster_blocks = prod(setup.cluster)
        common.is_straight = common.cluster_blocks == 1 and len(code.stops) == 1  # its only stop is the entry
        common.blocks, common.base = len(self._sm_of_block), self._module.space.base
        self._coordinates = _coordinates(setup.block, code.width)
        common.threads[:] = [column.ctypes.data for column in self._coordinates]
        self._bound = self._bind()
        count = common.worker_count
        common.worker_bytes, common.sites_bytes = _round_up(ctypes.sizeof(Worker)), _round_up(16 * code.sites)
        self._workers = allocate_aligned(count * common.worker_bytes)
        self._sites = allocate_aligned(count * common.sites_bytes)
        common.workers = self._workers.ctypes.data
        self._describe_worker()
        rows = self._workers.reshape(count, common.worker_bytes)
        rows[1:] = rows[0]
        self._column("sites")[:] += np.arange(count, dtype=np.uint64) * np.uint64(common.sites_bytes)

    def _column(self, name: str) -> Array:
        """Return a view of a field of all workers."""
        at, rows = offset_of(name), self._workers.reshape(-1, self._common.worker_bytes)
        return cast(Array, rows[:, at : at + 8].view(np.uint64)[:, 0])

    def _follow_mapping(self) -> None:
        """Use the space's new mapping if the space has moved. All threads must be at rest."""
        if self._view is not self._module.space.views[DTYPES["u8"]]:
            self._view = self._module.space.views[DTYPES["u8"]]
            self._column("delta")[:] = self._view.ctypes.data - self._module.space.base

    def _worker(self, index: int) -> Worker:
        return Worker.from_buffer(self._workers.data, index * self._common.worker_bytes)

    def _describe_worker(self) -> None:
        """Fill in the fields of the first worker."""
        ctypes.memset(self._common.workers, 0, ctypes.sizeof(Worker))
        worker, kernel, setup = self._worker(0), self.kernel, self._setup
        self._parameters = np.frombuffer(bytearray(setup.parameters + bytes(16)), np.uint8)
        worker.parameters, worker.parameter_bytes = self._parameters.ctypes.data, len(setup.parameters)
        worker.delta = self._view.ctypes.data - self._module.space.base
        worker.sites, worker.addresses = self._sites.ctypes.data, self._bound[0].ctypes.data
        worker.dynamic_offset, worker.shared_bytes = self._dynamic_offset, self._reached
        worker.local_frame, worker.local_bytes = align_local_frame(kernel.local_bytes), kernel.local_bytes
        worker.nctaid[:], worker.ntid[:], worker.cluster_nctaid[:] = setup.grid, setup.block, setup.cluster
        worker.nclusterid[:] = [extent // size for extent, size in zip(setup.grid, setup.cluster, strict=True)]
        worker.cluster_nctarank, worker.is_explicit_cluster = prod(setup.cluster), prod(setup.cluster) > 1
        worker.warps, worker.batch = self._warps_per_block, ctypes.addressof(self._common)
        preferred = _PREFERRED_ESCAPING_SLOTS if self._code.escapes else _PREFERRED_SLOTS
        self._common.preferred = len(self._sm_of_block) if setup.workspace else preferred
        values = {
            "nsmid": self._module.multiprocessors,
            "dynamic_smem_size": setup.dynamic_shared,
            **shared_sizes(self._shared_bytes - self._reserved_shared),
            "envreg1": setup.workspace >> 32,
            "envreg2": setup.workspace & 0xFFFFFFFF,
            "nwarpid": self._module.resident_warps,
            "gridid": 1,
        }
        worker.constants[:] = [values[name] for name in CONSTANTS]

    def _bind(self) -> tuple[Array, dict[int, Any]]:
        """Return the addresses of the variables that the kernel uses, and the functions of its escapes by stop."""
        bound: tuple[Array, dict[int, Any]] | None = self._module.bound.get(self._code)
        if bound is None:
            addresses = self._module.addresses
            places = [(addresses[name] + offset) & (2**64 - 1) for name, offset in self._code.globals_used]
            functions = {
                stop: self.kernel.translation.operation_function(operation, addresses)
                for stop, (operation, _) in self._code.escapes.items()
            }
            bound = self._module.bound[self._code] = np.array([*places, 0], np.uint64), functions
        return bound

    def look_at_allocations(self, *, at_rest: bool = True) -> None:
        """Read which memory the kernel can access, and publish it to C.

        `at_rest` is whether no thread runs, so that the arrays that were read earlier can be released.
        """
        with _looking:
            starts, ends = self._module.space.reach()
            if self._reach and self._reach[-1][0] is starts and self._reach[-1][1] is self._view:
                return
            mapped = int(np.searchsorted(starts, len(self._view)))  # later ranges are not in this mapping
            generation = self._reach[-1][-1].generation + 1 if self._reach else 1
            peers, space = self._module.space.peer_windows(), self._module.space
            own = starts.ctypes.data, ends.ctypes.data, mapped, generation
            memory = ReachableMemory(*own, peers.ctypes.data, len(peers), space.size)
            self._reach = [*([] if at_rest else self._reach), (starts, self._view, ends, peers, memory)]
            runtime().kernels_publish(ctypes.byref(self._common), ctypes.byref(memory))

    def prepare_blocks(self, memory: tuple[Array, Array], is_living: Array) -> Frames:
        """Begin all blocks with another batch's memory, and return their frames, which the caller must fill.

        `memory` is the other batch's shared and local memory. `is_living` is True for each warp that has not ended.
        """
        shared, local = memory
        if word := self._code.word:
            local = exchange_words(local, word, self._code.width, align_local_frame(self.kernel.local_bytes) // word)
        self._shared[: len(shared)], self._local[: len(local)] = shared, local
        lives = is_living.reshape(-1, self._warps_per_block)
        slots, warps = self._slots[: len(lives)], self._warps[: len(lives)]
        warps["state"] = np.where(lives, WarpState.READY, WarpState.ENDED)
        slots["number"], slots["left"] = np.arange(len(lives)), lives.sum(axis=1)
        self._common.is_prepared, self._common.is_straight, self._common.next_slot = 1, 0, len(lives)
        return self._frames

    @property
    def finished(self) -> bool:
        """Whether all threads have exited."""
        return self._over and not self._taken_over

    def step(self, quantum_seconds: float, cancel: CancelFlag) -> bool:
        """Run blocks until the batch is finished or the time is up. Return whether it is finished.

        Raises Cancelled if `cancel` is set, and DeviceFault if the kernel makes an error.
        """
        deadline = time.perf_counter() + quantum_seconds
        self._follow_mapping()
        self.look_at_allocations()
        while not self.finished:
            if cancel.is_set():
                raise Cancelled
            until = min(deadline, time.perf_counter() + _LOOK_SECONDS)
            if not self._over:
                self._run(int(until * 1e9), cancel)
            self._step_taken_over(cancel)
            if time.perf_counter() >= deadline:
                break
        return self.finished

    def _step_taken_over(self, cancel: CancelFlag) -> None:
        """Run a step of each batch that was handed over to the NumPy tier, so that all of them report assertions."""
        failures = []
        for batch in list(self._taken_over):
            try:
                if batch.step(0, cancel):
                    self._taken_over.remove(batch)
            except DeviceAssertion as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _run(self, until: int, cancel: CancelFlag) -> None:
        outcome = runtime().kernels_run(ctypes.byref(self._common), until)
        if outcome == Outcome.FINISHED:
            self._over = True
        elif outcome in (Outcome.SERVICE, Outcome.TIME):  # after TIME, too: others may spin on them
            is_served = bool(self._common.needs_python) and self._serve(cancel)
            if not is_served and outcome == Outcome.SERVICE:
                numbers = self._slots["number"][: self._common.next_slot]
                fault = describe_fault(Outcome.DEADLOCKED, self._worker(0))
                raise self._place(fault, int(numbers[numbers >= 0].min()), 0)
        else:
            worker = self._worker(self._common.fault_worker)
            thread = worker.warp * self._code.width + worker.fault_lane
            raise self._place(describe_fault(outcome, worker), worker.block, thread)

    # --- faults

    def _place(self, fault: DeviceFault, block: int, thread: int) -> DeviceFault:
        """Set a fault's kernel, block and thread, and return it."""
        fault.kernel = self.kernel.name
        fault.block = place_of_block(self.first_block + block, self._setup.grid, self._setup.cluster)
        fault.thread = place_in(thread, self._setup.block)
        return fault

    # --- what needs Python

    def _serve(self, cancel: CancelFlag) -> bool:
        """Execute escapes, and hand over blocks that bail; return whether there were any."""
        self._common.waves = 0  # the state and the batches made here are for these blocks only
        used = self._common.next_slot
        states = self._warps["state"][:used]
        escaping = np.argwhere(states == WarpState.ESCAPING)
        rows = escaping[:, 0] * self._warps_per_block + escaping[:, 1]
        stops = self._frames.stops(rows)
        executed = 0
        for stop in np.unique(stops).tolist():
            ready = rows[stops == stop]
            if self._code.escapes[stop][0].has("mma_async"):
                ready = self._whole_groups(ready, states)
            if len(ready):
                self._escape(int(stop), ready, cancel)
            states[np.divmod(ready, self._warps_per_block)] = WarpState.READY
            executed += len(ready)
        slots, count = self._slots[:used], self._common.cluster_blocks
        leaving = ((slots["bailing"] != 0) & (slots["number"] >= 0)).reshape(-1, count).any(axis=1)
        if not leaving.any():
            self._common.needs_python = executed < len(escaping)
            return bool(executed)
        resting = ~np.isin(states, (WarpState.READY, WarpState.ESCAPING, WarpState.SLEEPING)).any(axis=1)
        bailing = leaving & resting.reshape(-1, count).all(axis=1)
        for cluster in np.flatnonzero(bailing).tolist():
            self._hand_over(range(cluster * count, (cluster + 1) * count))
        self._common.needs_python = bool((leaving & ~bailing).any() or executed < len(escaping))
        return bool(executed or bailing.any())

    def _whole_groups(self, rows: Array, states: Array) -> Array:
        """Return the warps at a stop at which all living warps of their warp group are."""
        slots, warps = np.divmod(rows, self._warps_per_block)
        groups = -(-self._warps_per_block // GROUP_WARPS)
        living = np.zeros((len(states), groups * GROUP_WARPS), np.bool_)
        living[:, : self._warps_per_block] = states != WarpState.ENDED
        group = slots * groups + warps // GROUP_WARPS
        group_sizes = living.reshape(-1, GROUP_WARPS).sum(axis=1)
        complete: Array = rows[np.bincount(group, minlength=len(group_sizes))[group] == group_sizes[group]]
        return complete

    def _escape(self, stop: int, rows: Array, cancel: CancelFlag) -> None:
        """Execute the escaping instruction after a stop, for the warps of some frames."""
        state = self._shared_state(cancel)
        function, inputs, outputs = self._bound[1][stop]
        lanes = self._frames.lanes(rows)
        slots, warps = np.divmod(rows, self._warps_per_block)
        if any(isinstance(operand, Special) for operand in self._code.escapes[stop][0].operands):
            numbers = self._slots["number"]
            state.place_blocks(self.first_block + numbers, self._sm_of_block[numbers])
        firsts = slots * state.threads_per_block + warps * self._code.width
        threads = Threads((firsts[:, None] + np.arange(self._code.width))[lanes], int(lanes.sum()))
        try:
            with np.errstate(all="ignore"):
                results = function(state, threads, *(self._frames.read(rows, r, lanes) for r in inputs))
        except DeviceFault as fault:
            slot, thread = divmod(int(threads.indices()[fault.position]), state.threads_per_block)
            raise self._place(fault, int(self._slots["number"][slot]), thread) from None
        for number, value in zip(outputs, results, strict=True):
            self._frames.write(rows, number, lanes, value)
        self._frames.move(rows, self._code.escapes[stop][1])
        self.look_at_allocations()  # in case the instruction was a malloc

    def _shared_state(self, cancel: CancelFlag) -> BatchState:
        """Return the state for escaping instructions: the batch's memory, with all slots as its blocks."""
        if self._state is None:
            numbers = np.zeros(len(self._slots), np.int64)
            memory = self._shared, self._local
            self._state = self._make_state(numbers, memory)
        self._state.cancel = cancel
        return self._state

    @property
    def _reserved_shared(self) -> int:
        return self.kernel.translation.shared_bytes - self.kernel.shared_bytes

    def _make_state(self, sm_of_block: Array, memory: tuple[Array, Array]) -> BatchState:
        module, kernel = self._module, self.kernel
        sizes = kernel.translation.shared_bytes, kernel.local_bytes
        return BatchState(
            module.space,
            module.multiprocessors,
            module.resident_warps,
            module.facilities,
            self._setup,
            *sizes,
            self.first_block,
            sm_of_block,
            self._reserved_shared,
            memory=memory,
        )

    def _hand_over(self, slots: range) -> None:
        """Hand a block, or the blocks of a cluster, over to the NumPy tier, which runs them to the end."""
        number, part = int(self._slots["number"][slots[0]]), slice(slots[0], slots[-1] + 1)
        sm = self._sm_of_block[number : number + len(slots)]
        batch = Batch(self._module, self.kernel.name, self._setup, self.first_block + number, sm)
        assert batch.state.memory is not None
        for memory, own in zip(batch.state.memory, (self._shared, self._local), strict=True):
            memory[:] = own[slots[0] * len(memory) // len(slots) :][: len(memory)]
        if word := self._code.word:
            local = batch.state.memory[1]
            local[:] = exchange_words(local, word, batch.state.local_frame // word, self._code.width)
        groups: list[tuple[int, Group]] = []
        waiting: list[tuple[Waiting, Value | None]] = []
        alive = np.zeros(batch.state.count, np.bool_)
        for slot in slots:
            self._list_threads(slot, (slot - slots[0]) * self._threads, groups, waiting, alive)
        batch.take_over(groups, waiting, self._slots["barriers"][part, :, 1], alive)
        self._taken_over.append(batch)
        self._slots["number"][part] = -1
        self._warps["state"][part] = WarpState.ENDED

    def _list_threads(
        self,
        slot: int,
        begin: int,
        groups: list[tuple[int, Group]],
        waiting: list[tuple[Waiting, Value | None]],
        alive: Array,
    ) -> None:
        """Add a block's threads to `groups`, `waiting` and `alive`; `begin` is the number of the first thread."""
        barriers = self._slots["barriers"][slot]
        votes = barriers[:, 3].astype(np.int64)
        for warp in np.flatnonzero(self._warps["state"][slot] != WarpState.ENDED).tolist():
            row, first = slot * self._warps_per_block + warp, begin + warp * self._code.width
            living = np.flatnonzero(self._frames.find_living_lanes(row)) + first
            alive[living[living < begin + self._threads]] = True
            for at, lanes, barrier in self._frames.places(row):
                registers = self._frames.registers(row, at, lanes)
                group = Group(Threads(np.flatnonzero(lanes) + first, int(lanes.sum())), registers)
                if barrier < 0:
                    groups.append((at, group))
                    continue
                number = int(self._warps["barrier"][slot, warp])
                true = np.arange(group.threads.count) < votes[number]
                votes[number] -= int(true.sum())
                plan, numbers = self.kernel.translation.plans[barrier], np.full(group.threads.count, number, np.int64)
                entry = Waiting(plan, group.threads, registers, numbers, true if plan.barrier_reduces else None)
                expected = int(barriers[number, 0])
                waiting.append((entry, np.uint32(expected) if expected else None))
