"""Track the CTA barriers of a batch: which threads wait, and when they may continue."""

import numpy as np
from attrs import define

from pympsd_server.ptx.execution.thread_groups import Group, part_of, pick_registers
from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.machine import BARRIERS, CLUSTER_BARRIER, WARP
from pympsd_server.ptx.lowering.block_plans import BlockPlan
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads, spread

_NOT_WAITING = -1
_NEVER = 1 << 30


@define(eq=False)
class Waiting:
    """Threads that wait at barriers, the plan of the block that led there, and the registers of the next block."""

    plan: BlockPlan
    threads: Threads
    registers: tuple[Value, ...]
    number: Array
    predicate: Value | None


class Barriers:
    """The sixteen barriers of each CTA, and the barrier of its cluster.

    Arrivals count by warps, as on a GPU: a warp has arrived when all of its living lanes have, and then counts as 32
    threads.
    """

    def __init__(self, state: BatchState) -> None:
        self._state = state
        # The barrier at which each thread waits.
        self._at = np.full(state.count, _NOT_WAITING, np.int8)
        # By (CTA, barrier): how many threads the barrier waits for (0 means all), and how many bar.arrive announced.
        self._expected = np.zeros((state.blocks, BARRIERS + 1), np.int64)
        self._announced = np.zeros((state.blocks, BARRIERS + 1), np.int64)
        # How often each thread has executed bar.arrive while other lanes of its warp had not, by barrier and thread.
        self._early: dict[int, Array] = {}
        self.waiting: list[Waiting] = []

    @property
    def in_use(self) -> bool:
        """Whether threads wait at a barrier, or have announced themselves by bar.arrive."""
        return bool(self.waiting) or bool(self._announced.any()) or bool(self._early)

    def arrive_only(self, threads: Threads, number: Value, count: Value) -> None:
        """bar.arrive: announce the warps of these threads without waiting."""
        state, ids = self._state, threads.indices()
        numbers = spread(number, threads.count).astype(np.int64)
        for barrier in np.unique(numbers).tolist():
            early = self._early.setdefault(barrier, np.zeros(state.count, np.int64))
            early[ids[numbers == barrier]] += 1
        self._expected[threads.pick(state.cta), numbers] = count
        self._announce_warps()

    def _announce_warps(self) -> None:
        """Announce the warps of which all living lanes have executed bar.arrive, also if they did so separately."""
        state, alive = self._state, self._state.alive
        for number, early in list(self._early.items()):
            arrivals, most = np.full(state.warps, _NEVER), np.zeros(state.warps, np.int64)
            np.minimum.at(arrivals, state.warp[alive], early[alive])
            np.maximum.at(most, state.warp, early)
            arrivals = np.where(arrivals == _NEVER, most, arrivals)  # a warp without living lanes
            self._announced[:, number] += WARP * arrivals.reshape(state.blocks, -1).sum(axis=1)
            early = np.maximum(early - arrivals[state.warp], 0)
            if early.any():
                self._early[number] = early
            else:
                del self._early[number]

    def announce(self, threads: Array) -> None:
        """Set how many threads bar.arrive has announced, by (CTA, barrier)."""
        self._announced[:, : threads.shape[1]] = threads

    def wait(self, waiting: Waiting, count: Value | None) -> None:
        """Add threads that wait at a barrier for `count` threads, or for all threads of the block if that is None."""
        threads = waiting.threads
        ids = threads.indices()
        self._at[ids] = waiting.number
        cta = threads.pick(self._state.cta)
        self._expected[cta, waiting.number] = 0 if count is None else count
        self.waiting.append(waiting)

    def open(self) -> Array | None:
        """Return whether each barrier opens now, by (CTA, barrier), or None if none does. Reset those that open."""
        state = self._state
        self._announce_warps()  # lanes that have not arrived may have ended
        present = np.zeros((state.blocks, BARRIERS + 1), np.int64)
        for number in np.unique(self._at[self._at >= 0]).tolist():
            present[:, number] = self._warps_at(number)
        total = present * WARP + self._announced
        everyone = self._find_living_warps()[:, None] * WARP
        required = np.where(self._expected > 0, self._expected, everyone)
        opens: Array = (present > 0) & (total >= required)
        if state.cluster_blocks > 1:
            # Other blocks do not wait for a block whose threads have all exited.
            passes = (opens[:, CLUSTER_BARRIER] | (everyone[:, 0] == 0)).reshape(-1, state.cluster_blocks)
            opens[:, CLUSTER_BARRIER] = np.repeat(passes.all(axis=1), state.cluster_blocks)
        if not opens.any():
            return None
        self._announced[opens] = 0
        self._at[(self._at >= 0) & opens[state.cta, np.maximum(self._at, 0)]] = _NOT_WAITING
        return opens

    def _warps_at(self, number: int) -> Array:
        """Return, for each CTA, how many warps have all of their living lanes waiting at a barrier."""
        state = self._state
        flags = np.zeros(state.warps * WARP, np.bool_)
        flags[state.slot] = self._at == number
        arrived = np.packbits(flags, bitorder="little").view(np.uint32)
        living = state.find_living_lanes()
        complete = (arrived != 0) & ((living & ~arrived) == 0)
        return complete.reshape(state.blocks, -1).sum(axis=1)  # type: ignore[no-any-return]

    def _find_living_warps(self) -> Array:
        state = self._state
        return (state.find_living_lanes() != 0).reshape(state.blocks, -1).sum(axis=1)  # type: ignore[no-any-return]


def reduce_predicates(state: BatchState, entries: list[tuple[Waiting, Array]], mode: str) -> list[Array]:
    """Return the results of bar.red for the threads that continue, an array for each entry.

    An entry is a waiting group and the positions of its threads that continue.
    """
    totals = np.zeros((2, state.blocks, BARRIERS), np.int64)
    for waiting, selected in entries:
        cta = waiting.threads.pick(state.cta)[selected]
        number = waiting.number[selected]
        truth = spread(waiting.predicate, waiting.threads.count)[selected]
        np.add.at(totals[0], (cta, number), 1)
        np.add.at(totals[1], (cta, number), truth)
    results = []
    for waiting, selected in entries:
        where = (waiting.threads.pick(state.cta)[selected], waiting.number[selected])
        count, true = totals[0][where], totals[1][where]
        results.append(true if mode == "popc" else true == count if mode == "and" else true > 0)
    return results


def rest_of(entry: Waiting, selected: Array) -> Waiting:
    """Return the part of an entry whose threads still wait; `selected` are their positions."""
    group = part_of(entry.threads, entry.registers, selected)
    predicate = None if entry.predicate is None else pick_registers((entry.predicate,), selected)[0]
    return Waiting(entry.plan, group.threads, group.registers, entry.number.take(selected), predicate)


def store_result(plan: BlockPlan, group: Group, result: Array | None, plans: list[BlockPlan]) -> Group:
    """Return a group after its barrier: with the result of a bar.red in its register, otherwise unchanged."""
    position = None if plan.barrier is None else plan.barrier.result
    if result is None or position is None:
        return group
    registers = list(group.registers)
    registers[position] = result.astype(plans[plan.following].dtypes[position])
    return Group(group.threads, tuple(registers))
