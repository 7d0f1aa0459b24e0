"""Continue a batch that the NumPy tier has begun as machine code.

The problem: a kernel may run for minutes in one batch, for example a block of 256 threads that loops. After 20 ms it
is compiled, but no new batch of the kernel begins.

The idea: a group of the NumPy tier (threads at the beginning of a block, with their live registers) contains the same
as a frame at a stop: the stop's segment, its lanes, the registers, and the lanes that are pending at other blocks. So
the batch stops as soon as a stop describes the state of every warp: the stop's block is the lowest with lanes of the
warp, and the other blocks with its lanes are pending ones of the stop. Loops have stops at their headers, so most
kernels come to this state in the next round. While warps wait at barriers, or lanes for others, they cannot. They
cannot either while lanes of a warp differ in a register that machine code has once for the warp: NumPy's bursts let
some lanes run ahead of others, by rounds of a loop.

    NumPy:     block 3: threads 0 to 39, block 7: threads 40 to 63     (3 is the header of a loop, 7 is after it)
    compiled:  warp 0: stop at 3, all lanes; warp 1: stop at 3, lanes 0 to 7, with lanes 8 to 31 pending at 7

`Exits` has the stops of a kernel by block. Both tiers lay out the memory of blocks and threads in the same way.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pympsd_server.ptx.compiled_tier.batches.batch import CompiledBatch
from pympsd_server.ptx.compiled_tier.batches.frames import Frames
from pympsd_server.ptx.compiled_tier.compilation.machine_code import MachineCode
from pympsd_server.ptx.execution.batch import Batch
from pympsd_server.ptx.execution.thread_groups import Group
from pympsd_server.ptx.isa.datatypes import Array
from pympsd_server.ptx.runtime.threads import spread

_NOWHERE: Final = -1


class Exits:
    """The blocks at which a batch of the NumPy tier may continue as machine code."""

    def __init__(self, code: MachineCode, blocks: int) -> None:
        self.code = code
        self._chances, self._next_chance = 0, 1
        self.reached: Array | None = None
        """The stop of each warp when `are_reached` last checked the batch, or None if it could not continue."""
        self._stops = np.full(blocks, _NOWHERE)
        self._pending = np.zeros((blocks, blocks), np.bool_)
        for number, stop in enumerate(code.stops):
            block = code.origins[stop.segment]
            if block < 0 or stop.is_entry or stop.result is not None or self._stops[block] >= 0:
                continue
            self._stops[block] = number
            self._pending[block, [block, *(code.origins[k] for k in stop.pending if code.origins[k] >= 0)]] = True

    def are_reached(self, batch: Batch) -> bool:
        """Return whether a batch can continue as machine code now. Later calls check less often."""
        groups = batch.groups_at_rest()
        if groups is None or self._stops[min(groups)] < 0:
            return False
        self._chances += 1
        if self._chances < self._next_chance:
            return False
        self._next_chance = self._chances * 5 // 4 + 1
        self.reached = self.find_stops(batch)
        return self.reached is not None

    def find_stops(self, batch: Batch) -> Array | None:
        """Return the stop of each warp (-1 if it has ended), or None if the batch cannot be taken over now."""
        groups = batch.groups_at_rest()
        if groups is None or self._stops[min(groups)] < 0:
            return None
        places = _arrange_by_lane(_places(groups, batch.state.count), batch, self.code.width, _NOWHERE)
        lives = places >= 0
        lowest = np.where(lives, places, len(self._stops) - 1).min(axis=1)
        stops = np.where(lives.any(axis=1), self._stops[lowest], _NOWHERE)
        is_good = np.where(lives, (stops >= 0)[:, None] & self._pending[lowest[:, None], places], True)
        return stops if is_good.all() and self._agree_in_uniform_registers(batch, groups, places) else None

    def _agree_in_uniform_registers(self, batch: Batch, groups: dict[int, list[Group]], places: Array) -> bool:
        """Return whether lanes of a warp have the same value of each register that machine code has once."""
        uniform: dict[int, list[int]] = {}
        for block in groups:
            for number in batch.kernel.translation.plans[block].live_in:
                if number in self.code.slots and not self.code.varies(number):
                    uniform.setdefault(number, []).append(block)
        for number, blocks in uniform.items():
            bits = np.zeros(batch.state.count, np.uint64)
            for block in blocks:
                values = _values(batch, block, groups[block], number)
                bits |= values.view(f"u{values.itemsize}")  # 0 for threads at other blocks
            rows, lives = _arrange_by_lane(bits, batch, self.code.width, 0), np.isin(places, blocks)
            first = rows[np.arange(len(rows)), lives.argmax(axis=1)]
            if (lives & (rows != first[:, None])).any():
                return False
        return True


def _places(groups: dict[int, list[Group]], threads: int) -> Array:
    """Return the block of the kernel at which each thread is, or _NOWHERE."""
    places = np.full(threads, _NOWHERE)
    for block, parts in groups.items():
        for group in parts:
            places[group.threads.indices()] = block
    return places


def _values(batch: Batch, block: int, parts: list[Group], number: int) -> Array:
    """Return the value of a register for each thread of the groups at a block, and 0 for other threads."""
    plan = batch.kernel.translation.plans[block]
    position = plan.live_in.index(number)
    values = np.zeros(batch.state.count, plan.dtypes[position])
    for group in parts:
        values[group.threads.indices()] = spread(group.registers[position], group.threads.count)
    return values


def _arrange_by_lane(values: Array, batch: Batch, width: int, filler: int) -> Array:
    """Arrange an array with a value for each thread as rows of warps, with `filler` for lanes without a thread."""
    blocks, threads = batch.state.blocks, batch.state.threads_per_block
    lanes = -(-threads // width) * width
    rows = np.full((blocks, lanes), filler, values.dtype)
    rows[:, :threads] = values.reshape(blocks, threads)
    return rows.reshape(-1, width)


def take_over(batch: Batch, compiled: CompiledBatch, code: MachineCode, stops: Array) -> None:
    """Move the work of a batch, whose warps are at these stops, to a compiled batch that has not begun."""
    groups, memory = batch.groups_at_rest(), batch.state.memory
    assert groups is not None
    assert memory is not None
    frames = compiled.prepare_blocks(memory, stops >= 0)
    places = _arrange_by_lane(_places(groups, batch.state.count), batch, code.width, _NOWHERE)
    segments = np.array([stop.segment for stop in code.stops])[stops]
    frames.clear(stops, places >= 0)
    for block, parts in groups.items():
        segment = code.origins.index(block)
        rows = np.flatnonzero((places == block).any(axis=1))
        lanes = places[rows] == block
        is_lowest = segments[rows] == segment
        frames.set_mask(rows[is_lowest], None, lanes[is_lowest])
        frames.set_mask(rows[~is_lowest], segment, lanes[~is_lowest])
        _write_registers(batch, frames, code, block, parts, rows, lanes)


def _write_registers(
    batch: Batch, frames: Frames, code: MachineCode, block: int, parts: list[Group], rows: Array, lanes: Array
) -> None:
    """Write the registers of the groups at a block into the frames of their warps."""
    for number in batch.kernel.translation.plans[block].live_in:
        values = _values(batch, block, parts, number)
        frames.write(rows, number, lanes, _arrange_by_lane(values, batch, code.width, 0)[rows][lanes])
