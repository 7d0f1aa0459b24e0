"""A batch of blocks of a compiled kernel, with the interface of the NumPy tier's `Batch`.

The problem: a batch has up to thousands of blocks, of which few should be begun at a time, so that their memory stays
in the cache; but blocks may wait for each other, instructions may escape, and the whole must stop after a slice.

The idea: blocks live in *slots*. The runtime in C (native/src/kernels.c) runs the warps of a slot in turn, takes the
next block when one ends, and begins another one next to it when it makes no progress, up to some hundreds, or twice
as many while none of those makes progress: all blocks of a batch may wait for each other. It returns when time is up,
or when nothing can run without Python:

    slot 0   block 7   warp 0 waits at a barrier, warp 1 at an escape         shared slab   one frame per slot
    slot 1   block 8   warps 0 and 1 wait at the same escape                  local slab    one frame per thread
    slot 2   free                                                             frame slab    one frame per warp

`_serve` then executes each escaping instruction for all warps that wait there: the registers are columns of the frame
slab, and the function is the NumPy tier's own. A block that bails is handed over to a `Batch` of its own.

Invariants: only the thread that runs a step touches the worker and the slabs. A fault, wherever it happens, names
block and thread; the batch is not used again after it.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.compiled_tier.frames import Frames
from pympsd_server.backends.emulated.ptx.compiled_tier.machine_code import MachineCode
from pympsd_server.backends.emulated.ptx.compiled_tier.native_runtime import (
    CONSTANTS,
    MISALIGNED,
    NO_BARRIER,
    NO_ENTRY,
    SLOT,
    SPACE_NUMBERS,
    WARP_STATE,
    Outcome,
    WarpState,
    Worker,
    refresh_function,
    runtime,
)
from pympsd_server.backends.emulated.ptx.execution.barriers import Waiting
from pympsd_server.backends.emulated.ptx.execution.batch import Batch
from pympsd_server.backends.emulated.ptx.execution.thread_groups import Group
from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, Array, Value
from pympsd_server.backends.emulated.ptx.isa.faults import (
    Cancelled,
    DeviceAssertion,
    DeviceFault,
    IllegalAddress,
    LaunchFailed,
    MisalignedAddress,
)
from pympsd_server.backends.emulated.ptx.isa.machine import BARRIERS, WARP
from pympsd_server.backends.emulated.ptx.loading.linking import LoadedModule
from pympsd_server.backends.emulated.ptx.runtime.batch_state import (
    BatchState,
    CancelFlag,
    LaunchSetup,
    align_frame,
    place_in,
)
from pympsd_server.backends.emulated.ptx.runtime.special_registers import shared_sizes
from pympsd_server.backends.emulated.ptx.runtime.threads import Threads

_LOOK_SECONDS: Final = 0.002
"""The longest time between two looks at the cancel flag."""
_FUEL: Final = 2048
_PREFERRED_SLOTS: Final = 256
_PREFERRED_ESCAPING_SLOTS: Final = 128
_CACHE_LINE: Final = 64
_SPACES: Final = {number: space for space, number in SPACE_NUMBERS.items() if space not in ("const", "generic")}
_BATCHES: Final[weakref.WeakValueDictionary[int, CompiledBatch]] = weakref.WeakValueDictionary()
"""Those whose kernels may run, by the address of their workers."""


def _look_again(worker: int) -> int:
    """Look again at the allocations before an access faults: there may be new ones."""
    return _BATCHES[worker].look_at_allocations()


_refresh: Final = refresh_function(_look_again)


@lru_cache(maxsize=64)
def _coordinates(block: tuple[int, int, int], width: int) -> tuple[Array, ...]:
    """Return %tid of a block's threads, by axis, for whole warps."""
    threads = np.arange(-(-prod(block) // width) * width, dtype=np.uint32)
    x, y, _ = block
    return tuple(map(np.ascontiguousarray, (threads % x, threads // x % y, threads // (x * y))))


def _aligned(nbytes: int) -> Array:
    """Return bytes that are not initialised, at the beginning of a cache line."""
    whole = np.empty(nbytes + _CACHE_LINE, np.uint8)
    begin = -int(whole.ctypes.data) % _CACHE_LINE
    return whole[begin : begin + nbytes]


class CompiledBatch:
    """`len(sm_of_block)` whole CTAs of one launch, from CTA number `first_block`. Raises ValueError as `Batch`."""

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
        self._first_block, self._sm_of_block = first_block, np.ascontiguousarray(sm_of_block, np.int64)
        self._taken_over: list[Batch] = []
        self._state: BatchState | None = None
        self._over = False
        self.steps = 0
        self._slots = np.zeros(len(sm_of_block), SLOT)  # any may wait for any; memory is used by those that begin
        self._slots["number"] = -1
        self._worker = Worker()
        preferred = _PREFERRED_ESCAPING_SLOTS if code.escapes else _PREFERRED_SLOTS
        self._worker.preferred = len(sm_of_block) if setup.workspace else preferred
        self._size_memory()
        self._describe_launch()
        self.look_at_allocations()
        _BATCHES[ctypes.addressof(self._worker)] = self

    def _size_memory(self) -> None:
        worker, kernel, setup = self._worker, self.kernel, self._setup
        threads = prod(setup.block)
        dynamic_offset = align_frame(kernel.translation.shared_bytes)
        shared = (dynamic_offset if setup.dynamic_shared else kernel.translation.shared_bytes) + setup.dynamic_shared
        reached = self._module.space.bounds.end_of_shared(shared)
        worker.dynamic_offset, worker.shared_bytes, worker.shared_frame = (
            dynamic_offset,
            reached,
            align_frame(reached),
        )
        worker.local_bytes, worker.local_frame = kernel.local_bytes, align_frame(kernel.local_bytes)
        worker.warps, worker.width = -(-threads // self._code.width), self._code.width
        worker.threads_per_block, worker.frame_bytes = threads, self._code.frame_bytes
        slots = worker.slots = len(self._slots)
        self._shared = _aligned(slots * worker.shared_frame)
        self._local = _aligned(slots * threads * worker.local_frame)
        self._frames = Frames(
            self._code, _aligned(slots * worker.warps * worker.frame_bytes), self.kernel.translation
        )
        self._warps = np.zeros((slots, worker.warps), WARP_STATE)
        worker.shared_slab, worker.local_slab = self._shared.ctypes.data, self._local.ctypes.data
        worker.frame_slab = self._frames.memory.ctypes.data
        worker.slot, worker.warp_states = self._slots.ctypes.data, self._warps.ctypes.data
        values = {
            "nsmid": self._module.multiprocessors,
            "dynamic_smem_size": setup.dynamic_shared,
            **shared_sizes(shared - self._reserved_shared),
            "envreg1": setup.workspace >> 32,
            "envreg2": setup.workspace & 0xFFFFFFFF,
            "nwarpid": -(-threads // WARP),
            "gridid": 1,
        }
        worker.constants[:] = [values[name] for name in CONSTANTS]

    def _describe_launch(self) -> None:
        worker, setup, code = self._worker, self._setup, self._code
        worker.kernel, worker.fuel_per_turn = code.address, _FUEL
        self._parameters = np.frombuffer(setup.parameters + bytes(16), np.uint8)
        worker.parameters, worker.parameter_bytes = self._parameters.ctypes.data, len(setup.parameters)
        worker.nctaid[:], worker.ntid[:] = setup.grid, setup.block
        self._coordinates = _coordinates(setup.block, code.width)
        worker.threads[:] = [column.ctypes.data for column in self._coordinates]
        worker.sm_of_block, worker.first_block = self._sm_of_block.ctypes.data, self._first_block
        worker.blocks = len(self._sm_of_block)
        self._bound = self._bind()
        worker.addresses = self._bound[0].ctypes.data
        self._sites = np.zeros(2 * code.sites + 2, np.uint64)
        worker.sites = self._sites.ctypes.data
        worker.refresh = _refresh

    def _bind(self) -> tuple[Array, dict[int, Any]]:
        """Return the addresses of the variables that the kernel uses, and the functions of its escapes."""
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

    def look_at_allocations(self) -> int:
        """Read which memory the kernel reaches; return whether that has changed."""
        space, worker = self._module.space, self._worker
        starts, ends = space.reach()
        if worker.starts == starts.ctypes.data and worker.ends == ends.ctypes.data:
            return 0
        views = space.views[DTYPES["u8"]]
        self._reach = starts, ends, views
        worker.starts, worker.ends, worker.allocations = starts.ctypes.data, ends.ctypes.data, len(starts)
        worker.base, worker.delta = space.base, views.ctypes.data - space.base
        self._sites[:] = 0
        return 1

    @property
    def finished(self) -> bool:
        """Whether all threads have exited."""
        return self._over and not self._taken_over

    def step(self, quantum_seconds: float, cancel: CancelFlag) -> bool:
        """Run blocks until the batch is finished (True) or the time is up (False).

        Raises Cancelled when `cancel` is set, DeviceFault on a fault.
        """
        deadline = time.perf_counter() + quantum_seconds
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
        """Run a step of each block that the NumPy tier has taken over. All their failed assertions are reported."""
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
        self.steps += 1
        outcome = runtime().kernels_run(ctypes.byref(self._worker), until)
        if outcome == Outcome.FINISHED:
            self._over = True
        elif outcome in (Outcome.SERVICE, Outcome.TIME):  # others may continue for ever, waiting for those at escapes
            if not self._serve(cancel) and outcome == Outcome.SERVICE:
                raise self._place(self._fault(Outcome.DEADLOCKED), self._worker.fault_block, 0)
        else:
            raise self._place(self._fault(outcome), self._worker.fault_block, self._thread_at_fault())

    # --- faults

    def _fault(self, outcome: int) -> DeviceFault:
        worker = self._worker
        if outcome == Outcome.DEADLOCKED:
            return LaunchFailed("deadlock: all threads wait for each other at barriers")
        if outcome == Outcome.TRAPPED:
            return LaunchFailed("a trap instruction was executed")
        address, nbytes, space = worker.fault_address, worker.fault_bytes, _SPACES.get(worker.fault_space, "global")
        if worker.fault_kind == NO_BARRIER:
            return LaunchFailed(f"barrier {address} does not exist")
        if worker.fault_kind == NO_ENTRY:
            return LaunchFailed(f"brx.idx to entry {address}, which does not exist")
        where = f"{'' if space == 'global' else space + ' '}address {address:#x}, {nbytes} bytes: "
        if worker.fault_kind == MISALIGNED:
            return MisalignedAddress(f"{where}misaligned")
        if space == "global":
            return IllegalAddress(f"{where}outside of the allocations")
        sizes = {"shared": worker.shared_bytes, "local": worker.local_bytes, "param": worker.parameter_bytes}
        return IllegalAddress(f"{where}outside of the {sizes[space]} bytes there are")

    def _thread_at_fault(self) -> int:
        return int(self._worker.warp * self._worker.width + self._worker.fault_lane)

    def _place(self, fault: DeviceFault, block: int, thread: int) -> DeviceFault:
        """Return a fault with its kernel, block and thread."""
        fault.kernel = self.kernel.name
        fault.block = place_in(self._first_block + block, self._setup.grid)
        fault.thread = place_in(thread, self._setup.block)
        return fault

    # --- what only Python does

    def _serve(self, cancel: CancelFlag) -> bool:
        """Let warps that need it continue; return whether there were any."""
        states = self._warps["state"]
        escaping = np.argwhere(states == WarpState.ESCAPING)
        if len(escaping):
            rows = escaping[:, 0] * self._worker.warps + escaping[:, 1]
            stops = self._frames.stops(rows)
            for stop in np.unique(stops).tolist():
                self._escape(int(stop), rows[stops == stop], cancel)
            states[escaping[:, 0], escaping[:, 1]] = WarpState.READY
        resting = ~((states == WarpState.READY) | (states == WarpState.ESCAPING)).any(axis=1)
        bailing = (self._slots["bailing"] != 0) & (self._slots["number"] >= 0) & resting
        for slot in np.flatnonzero(bailing).tolist():
            self._hand_over(slot)
        return bool(len(escaping) or bailing.any())

    def _escape(self, stop: int, rows: Array, cancel: CancelFlag) -> None:
        """Execute an instruction for the warps of some frames, which wait at the stop before it."""
        state = self._shared_state(cancel)
        function, inputs, outputs = self._bound[1][stop]
        lanes = self._frames.lanes(rows)
        slots, warps = np.divmod(rows, self._worker.warps)
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
        self.look_at_allocations()  # there may have been a malloc

    def _shared_state(self, cancel: CancelFlag) -> BatchState:
        """Return the state by which NumPy's functions find the memory of all slots."""
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
            module.facilities,
            self._setup,
            *sizes,
            self._first_block,
            sm_of_block,
            self._reserved_shared,
            memory=memory,
        )

    def _hand_over(self, slot: int) -> None:
        """Let the NumPy tier run a block to its end."""
        number = int(self._slots["number"][slot])
        sm = self._sm_of_block[number : number + 1]
        batch = Batch(self._module, self.kernel.name, self._setup, self._first_block + number, sm)
        shared, local = batch.state.memory or (np.zeros(0, np.uint8),) * 2
        threads, barriers = batch.state.threads_per_block, self._slots["barriers"][slot]
        shared[:] = self._shared[slot * len(shared) : (slot + 1) * len(shared)]
        local[:] = self._local[slot * len(local) : (slot + 1) * len(local)]
        groups: list[tuple[int, Group]] = []
        waiting: list[tuple[Waiting, Value | None]] = []
        alive = np.zeros(threads, np.bool_)
        votes = barriers[:, 3].astype(np.int64)
        for warp in range(self._worker.warps):
            state = self._warps[slot, warp]
            if state["state"] == WarpState.ENDED:
                continue
            row = slot * self._worker.warps + warp
            first = warp * self._code.width
            living = np.flatnonzero(self._frames.living_lanes(row)) + first
            alive[living[living < threads]] = True
            for at, lanes, barrier in self._frames.places(row):
                registers = self._frames.registers(row, at, lanes)
                group = Group(Threads(np.flatnonzero(lanes) + first, int(lanes.sum())), registers)
                if barrier < 0:
                    groups.append((at, group))
                    continue
                number = int(state["barrier"])
                true = np.arange(group.threads.count) < votes[number]
                votes[number] -= int(true.sum())
                plan, numbers = self.kernel.translation.plans[barrier], np.full(group.threads.count, number, np.int64)
                entry = Waiting(plan, group.threads, registers, numbers, true if plan.barrier_reduces else None)
                expected = int(barriers[number, 0])
                waiting.append((entry, np.uint32(expected) if expected else None))
        batch.take_over(groups, waiting, barriers[:BARRIERS, 1][None], alive)
        self._taken_over.append(batch)
        self._slots["number"][slot] = -1
        self._warps["state"][slot] = WarpState.ENDED
        self._worker.active -= 1
