"""Execute a batch of thread blocks: choose which threads run next, and bring diverged threads together again.

The problem: the threads of a GPU's warp run in step until they diverge. Here all threads of up to a few hundred
thread blocks run in step, because one NumPy call for 32,768 threads costs little more than one for 32. They, too,
diverge, wait at barriers, and spin on each other's flags, and must make progress as PTX promises.

The idea: threads at the same basic block form a *group*. The batch has the groups by the number of their block. It
repeats one step: choose a block, merge all groups at it, run its function for all of their threads, and move the
threads to the blocks that its plan determines (lowering/block_plans.py):

    block 2 (loop)      block 5 (after it)          the group at block 2 runs first, again and again, until its last
    [0 1 2 3 7]         [4 5 6]                     thread has come to block 5; then all eight continue together

- The *lowest* block runs first. Compilers place the code where two paths join after both paths, so diverged threads
  wait there for each other.
- *Barriers.* Threads that arrive early are stored with the registers with which they continue (barriers.py). If all
  threads of the batch arrive together, they continue without being stored.
- *Warps.* Before a block with shuffles, votes or matrices, all lanes in its membermask must be at the block. A lane
  is parked until its partners come. If no group can run, lanes that wait for each other at different blocks are
  released.
- *Spinning.* A loop that waits for a flag could run forever as the lowest block. So each step adds the plan's weight
  to a counter; when this exceeds _STEPS_BEFORE_BURST, another group runs for a burst of steps. For the first
  `Batch.steps_together` steps it has no lanes that would run ahead of others of their warp.

Invariants: every living thread of the batch is in exactly one place: in a group that can run, parked, or at a
barrier. A step runs one block for one group and then checks the deadline and the cancel flag, so a kernel that never
ends is stopped between two blocks. If no group can run and no lanes can be released, the batch is deadlocked, which
is a fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from pympsd_server.ptx.execution.barriers import Barriers, Waiting, reduce_predicates, rest_of, store_result
from pympsd_server.ptx.execution.thread_groups import Group, merge, part_of
from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.faults import Cancelled, DeviceFault, LaunchFailed
from pympsd_server.ptx.isa.machine import BARRIERS
from pympsd_server.ptx.loading.linking import LoadedModule
from pympsd_server.ptx.lowering.block_plans import BlockPlan
from pympsd_server.ptx.lowering.control_flow import EXIT
from pympsd_server.ptx.runtime.batch_state import BatchState, CancelFlag, LaunchSetup
from pympsd_server.ptx.runtime.printing import report_assertion
from pympsd_server.ptx.runtime.threads import Threads, spread
from pympsd_server.ptx.runtime.warp import have_all_arrived

# With about this many threads in a batch, a kernel's arrays fit in the processor's cache.
PREFERRED_THREADS = 32768
_MAX_LOCAL_BYTES = 256 << 20
_STEPS_BEFORE_BURST = 1024
_BURST = 32
_IN_TURN = 8
_ALL_LANES = np.uint32(0xFFFFFFFF)
_NO_IDS = np.zeros(0, np.int64)


def blocks_per_batch(threads_per_block: int, local_bytes: int = 0, *, together: bool = False) -> int:
    """Return how many CTAs a batch may have; with `together`, as many as fit, because CTAs wait for each other.

    `local_bytes` is the local memory of a thread: the more it is, the fewer CTAs.
    """
    threads = min(
        _MAX_LOCAL_BYTES if together else PREFERRED_THREADS, max(1024, _MAX_LOCAL_BYTES // max(local_bytes, 1))
    )
    return max(1, threads // threads_per_block)


class ExitsOfBatch(Protocol):
    """The blocks at which another tier can take a batch over."""

    def are_reached(self, batch: Batch) -> bool:
        """Return whether another tier can take the batch over now. The batch calls this after each block."""


class Batch:
    """Consecutive CTAs of one launch, from number `first_block` on; `sm_of_block` has the %smid of each.

    Raises ValueError if the launch has fewer parameter bytes than the kernel takes.
    """

    def __init__(
        self, module: LoadedModule, kernel_name: str, setup: LaunchSetup, first_block: int, sm_of_block: Array
    ) -> None:
        kernel = module.program.kernels[kernel_name]
        if len(setup.parameters) < kernel.parameter_bytes:
            raise ValueError(f"{kernel_name} takes {kernel.parameter_bytes} bytes, not {len(setup.parameters)}")
        self.kernel = kernel
        self._plans = kernel.translation.plans
        self._functions = module.functions(kernel_name)
        self._state = BatchState(
            module.space,
            module.multiprocessors,
            module.resident_warps,
            module.facilities,
            setup,
            kernel.translation.shared_bytes,
            kernel.local_bytes,
            first_block,
            sm_of_block,
            kernel.translation.shared_bytes - kernel.shared_bytes,
        )
        # Created when it is first needed, because in most kernels all threads reach a barrier together.
        self._barriers: Barriers | None = None
        undefined = tuple(d.type(0) for d in self._plans[0].dtypes)
        self._run: dict[int, list[Group]] = {0: [Group(self._state.all, undefined)]}
        self._parked: dict[int, list[Group]] = {}
        # The threads that no longer wait for their partners, by the basic block in which they were parked.
        self._released: dict[int, Array] = {}
        self._impatience = 0
        self._burst, self._favoured = 0, -1
        self.steps_together = 0
        """The number of steps in which no lanes of a warp run ahead of others, so that another tier can take the
        batch over."""
        self._running = self._state.all
        self.steps = 0
        self.exits: ExitsOfBatch | None = None
        """The blocks at which another tier can take the batch over, where a step ends; None if no tier can."""
        self.is_at_exit = False
        """Whether the last step ended because another tier can take the batch over."""

    @property
    def finished(self) -> bool:
        """Whether all threads have exited."""
        return not (self._run or self._parked or self._has_waiting() or self._state.asleep)

    def step(self, quantum_seconds: float, cancel: CancelFlag) -> bool:
        """Run blocks until the batch is finished or at an exit, or the time is up. Return whether it is finished.

        At least one block runs. Raises Cancelled if `cancel` is set, and DeviceFault if the kernel makes an error.
        """
        began = time.perf_counter()
        self._state.cancel, deadline = cancel, began + quantum_seconds
        with np.errstate(all="ignore"):
            while not self.finished:
                if cancel.is_set():
                    raise Cancelled
                try:
                    if self._state.asleep:
                        self._state.rest(deadline, alone=len(self._run) < 2)
                    else:
                        self._advance()
                except DeviceFault as fault:
                    fault.kernel = self.kernel.name
                    ids = self._running.indices()
                    if fault.position < len(ids):
                        fault.block, fault.thread = self._state.place_of(int(ids[fault.position]))
                    raise
                self.is_at_exit = self.exits is not None and self.exits.are_reached(self)
                if self.is_at_exit or time.perf_counter() >= deadline:
                    break
        self.kernel.translation.numpy_seconds += time.perf_counter() - began
        return self.finished

    def take_over(
        self,
        groups: Iterable[tuple[int, Group]],
        waiting: Iterable[tuple[Waiting, Value | None]],
        announced: Array,
        alive: Array,
    ) -> None:
        """Continue a batch that another tier has begun; the state already has its memory.

        - `groups` are the groups that can run, each with its basic block.
        - `waiting` are the groups at barriers, each with the number of threads that the barrier waits for.
        - `announced` is the number of threads that bar.arrive has announced, by (CTA, barrier).
        - `alive` is whether each thread has not exited.
        """
        self._run = {}
        for at, group in groups:
            self._run.setdefault(at, []).append(group)
        self._state.alive[:] = alive
        self._barriers = Barriers(self._state)
        self._barriers.announce(announced)
        for entry, count in waiting:
            self._barriers.wait(entry, count)
        self._open_barriers()

    def groups_at_rest(self) -> dict[int, list[Group]] | None:
        """Return the groups of all living threads by block, or None if no thread is left or some thread waits."""
        in_use = self._barriers is not None and self._barriers.in_use
        is_waiting = self._parked or self._released or self._state.asleep or in_use
        return None if is_waiting or not self._run else self._run

    @property
    def state(self) -> BatchState:
        """The threads of the batch and their memory."""
        return self._state

    def _has_waiting(self) -> bool:
        """Return whether threads wait at barriers."""
        return self._barriers is not None and bool(self._barriers.waiting)

    def _advance(self) -> None:
        """Choose a block, and run it for the threads that are there."""
        if not self._run:
            self._unblock()
            return
        at = self._choose()
        parts, released = self._run.pop(at), self._released.pop(at, None)
        if self._parked:
            parts += self._parked.pop(at, [])
        plan = self._plans[at]
        group = parts[0] if len(parts) == 1 else merge(parts, plan.dtypes, self._state.all)
        if plan.meeting is not None and group.threads.ids is not None:
            joined = self._meet(at, plan, group, released)
            if joined is None:
                return
            group = joined
        # Lanes that have met continue together, without another wait.
        stays_together = self.steps_together > 0 and plan.meeting is None
        if (plan.joins or stays_together) and self._run and at > min(self._run):
            # In a burst, other lanes of a warp may still come here from a lower block.
            if plan.joins:
                ready = have_all_arrived(self._state, group.threads, _ALL_LANES)
            else:
                ready = ~self._are_ahead(at, group.threads)
            if not ready.all():
                self._run[at] = [group.select(~ready)]
                if not ready.any():
                    self._burst = 0
                    return
                group = group.select(ready)
        if plan.in_turn and plan.meeting is None and group.threads.count > _IN_TURN:
            # Run only some of the threads, so that other kernels have their turn before the rest.
            now, later = np.split(np.arange(group.threads.count), [_IN_TURN])
            self._run.setdefault(at, []).append(part_of(group.threads, group.registers, later))
            group = part_of(group.threads, group.registers, now)
        self.steps += 1
        self._impatience += plan.weight
        self._running = threads = group.threads
        returned = self._functions[at](self._state, threads, *group.registers)
        if plan.kind == "branch":
            self._branch(plan, threads, *returned)
        elif plan.kind == "next":
            self._move(plan.target, Group(threads, returned))
        else:
            self._end_block(plan, threads, returned)

    def _move(self, target: int, group: Group) -> None:
        """Move a group to the beginning of a block; EXIT ends its threads."""
        if target == EXIT:
            self._state.exit(group.threads)
            for at, parts in self._parked.items():
                self._run.setdefault(at, []).extend(parts)
            self._parked = {}
            if self._has_waiting():
                self._open_barriers()
            return
        self._run.setdefault(target, []).append(group)
        if self._burst:
            self._favoured = target

    def _branch(
        self,
        plan: BlockPlan,
        threads: Threads,
        condition: Value,
        taken: tuple[Value, ...],
        fall_through: tuple[Value, ...],
    ) -> None:
        """Move threads to the plan's target where the condition is true, and the others to the following block."""
        if condition.ndim == 0:
            yes = threads.count if condition else 0
        else:
            yes = int(np.count_nonzero(condition))
        if yes == threads.count:
            self._move(plan.target, Group(threads, taken))
        elif yes == 0:
            self._move(plan.following, Group(threads, fall_through))
        else:
            self._move(plan.target, part_of(threads, taken, condition.nonzero()[0]))
            self._move(plan.following, part_of(threads, fall_through, (~condition).nonzero()[0]))

    def _end_block(self, plan: BlockPlan, threads: Threads, returned: object) -> None:
        if plan.kind == "exit":
            self._move(EXIT, Group(threads, ()))
        elif plan.kind == "barrier":
            self._arrive(plan, threads, *returned)  # type: ignore[misc]
        elif plan.kind == "index":
            self._switch(plan, threads, *returned)  # type: ignore[misc]
        elif plan.kind == "assert":
            raise report_assertion(self._state, threads, returned)  # type: ignore[arg-type]
        else:
            raise LaunchFailed("a trap instruction was executed")

    def _switch(
        self, plan: BlockPlan, threads: Threads, index: Value, outgoing: tuple[tuple[Value, ...], ...]
    ) -> None:
        index = spread(index, threads.count)
        if int(index.max()) >= len(plan.targets):
            at = int(np.argmax(index >= len(plan.targets)))
            raise LaunchFailed(f"brx.idx to entry {int(index[at])}, which does not exist", position=at)
        for entry, (target, registers) in enumerate(zip(plan.targets, outgoing, strict=True)):
            selected = np.flatnonzero(index == entry)
            if len(selected):
                self._move(target, part_of(threads, registers, selected))

    def _choose(self) -> int:
        """Return the block to run next: the lowest, or for a burst another one if the lowest seems to spin."""
        run = self._run
        if len(run) == 1 and not self._parked:
            return next(iter(run))
        if self._burst:
            self._burst -= 1
            if self._favoured in run:
                return self._favoured
            self._burst = 0
        if self._impatience >= _STEPS_BEFORE_BURST:
            self.steps_together -= self._impatience
            self._impatience = 0
            self._release_across()
            waiting = sorted(run)
            self._favoured = next((pc for pc in waiting if pc > self._favoured), waiting[0])
            self._burst = _BURST
            return self._favoured
        return min(run)

    def _are_ahead(self, at: int, threads: Threads) -> Array:
        """Return whether other lanes of each thread's warp can run at a lower block."""
        has_lanes = np.zeros(self._state.warps, np.bool_)
        for block, parts in self._run.items():
            if block < at:
                for group in parts:
                    has_lanes[group.threads.pick(self._state.warp)] = True
        are_ahead: Array = has_lanes[threads.pick(self._state.warp)]
        return are_ahead

    # Lanes of a warp that must meet.

    def _meet(self, at: int, plan: BlockPlan, group: Group, released: Array | None) -> Group | None:
        """Park the threads that must wait for partners; return the others, None if there are no others.

        Threads in `released` do not wait.
        """
        mask = self._mask(plan, group)
        ready = have_all_arrived(self._state, group.threads, mask, plan.warps)
        if released is not None:
            ready = ready | np.isin(group.threads.indices(), released)
        if ready.all():
            return group
        late = group.select(~ready)
        self._parked.setdefault(at, []).append(late)
        if not ready.any():
            return None
        return group.select(ready)

    @staticmethod
    def _mask(plan: BlockPlan, group: Group) -> Value:
        mask = plan.meeting
        return group.registers[mask].view(np.uint32) if isinstance(mask, int) else mask

    def _release_across(self) -> bool:
        """Release lanes of a warp that wait for each other at different blocks; return whether there were any."""
        parked = {at: parts for at, parts in self._parked.items() if self._plans[at].warps == 1}
        if len(parked) < 2:
            return False
        ids = np.concatenate([group.threads.indices() for parts in parked.values() for group in parts])
        everyone = Threads(ids, len(ids))
        released = False
        for at, parts in parked.items():
            group = merge(parts, self._plans[at].dtypes, self._state.all)
            mask = self._mask(self._plans[at], group)
            full = np.zeros(self._state.count, np.uint32)
            full[group.threads.indices()] = mask
            is_complete = have_all_arrived(self._state, everyone, full.take(everyone.indices()))
            ready = np.zeros(self._state.count, np.bool_)
            ready[everyone.indices()] = is_complete
            released |= self._release(at, group, ready.take(group.threads.indices()))
        return released

    def _release(self, at: int, group: Group, ready: Array) -> bool:
        if not ready.any():
            return False
        ready_group = group.select(ready)
        self._run.setdefault(at, []).append(ready_group)
        self._released[at] = np.append(self._released.get(at, _NO_IDS), ready_group.threads.indices())
        del self._parked[at]
        if not ready.all():
            self._parked[at] = [group.select(~ready)]
        return True

    def _unblock(self) -> None:
        """Open barriers or release lanes when no group can run. Raises LaunchFailed if neither is possible."""
        if self._has_waiting() and self._open_barriers():
            return
        if not self._release_across():
            waiting = [group.threads for parts in self._parked.values() for group in parts]
            waiting += [] if self._barriers is None else [entry.threads for entry in self._barriers.waiting]
            self._running = min(waiting, key=lambda threads: int(threads.indices().min()))
            first = int(self._running.indices().argmin())
            raise LaunchFailed("deadlock: all threads wait for each other at barriers", position=first)

    # Barriers of a CTA.

    def _arrive(
        self,
        plan: BlockPlan,
        threads: Threads,
        arrival: tuple[Value, Value | None, Value | None],
        registers: tuple[Value, ...],
    ) -> None:
        """Let threads wait at a barrier or announce them (bar.arrive), then open barriers that are complete."""
        number, count, predicate = arrival
        barrier = plan.barrier
        assert barrier is not None
        if not barrier.cluster and int(number.max()) >= BARRIERS:
            at = int(np.argmax(number >= BARRIERS))
            raise LaunchFailed(f"barrier {int(number.flat[at])} does not exist", position=at)
        everyone = threads.ids is None and number.ndim == 0 and (count is None or self._is_all(count))
        if everyone and not barrier.arrive and predicate is None:
            self._move(plan.following, Group(threads, registers))
            return
        if self._barriers is None:
            self._barriers = Barriers(self._state)
        if barrier.arrive:
            if count is None:
                raise LaunchFailed("bar.arrive without a thread count")
            self._barriers.arrive_only(threads, number, count)
            self._move(plan.following, Group(threads, registers))
        else:
            numbers = spread(number, threads.count).astype(np.int64)
            self._barriers.wait(Waiting(plan, threads, registers, numbers, predicate), count)
        self._open_barriers()

    def _is_all(self, count: Value) -> bool:
        return count.ndim == 0 and int(count) == self._state.warps_per_block * 32

    def _open_barriers(self) -> bool:
        barriers = self._barriers
        if barriers is None or (opens := barriers.open()) is None:
            return False
        released: list[tuple[Waiting, Array]] = []
        waiting, barriers.waiting = barriers.waiting, []
        for entry in waiting:
            passes = opens[entry.threads.pick(self._state.cta), entry.number]
            if passes.any():
                released.append((entry, np.flatnonzero(passes)))
            if not passes.all():
                barriers.waiting.append(rest_of(entry, np.flatnonzero(~passes)))
        self._continue(released)
        return True

    def _continue(self, released: list[tuple[Waiting, Array]]) -> None:
        for mode in {"", "popc", "and", "or"}:
            entries = [e for e in released if e[0].plan.barrier and e[0].plan.barrier.reduction == mode]
            results = reduce_predicates(self._state, entries, mode) if mode else [None] * len(entries)
            for (entry, selected), result in zip(entries, results, strict=True):
                group = part_of(entry.threads, entry.registers, selected)
                self._move(entry.plan.following, store_result(entry.plan, group, result, self._plans))
