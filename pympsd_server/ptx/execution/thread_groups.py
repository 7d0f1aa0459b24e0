"""Split and merge groups of threads at the same point of the program."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from pympsd_server.ptx.isa.datatypes import Array, DType, Value
from pympsd_server.ptx.runtime.threads import Threads, spread


@frozen(eq=False)
class Group:
    """Threads that are at the beginning of the same block, with the block's live-in registers."""

    threads: Threads
    registers: tuple[Value, ...]

    def select(self, mask: Array) -> Group:
        """Return the part of the group for which a mask is true."""
        return part_of(self.threads, self.registers, np.flatnonzero(mask))


def part_of(threads: Threads, registers: tuple[Value, ...], selected: Array) -> Group:
    """Return a group of some of the threads; `selected` are their positions in `threads`."""
    ids = selected if threads.ids is None else threads.ids.take(selected)
    return Group(Threads(ids, len(selected)), pick_registers(registers, selected))


def pick_registers(registers: tuple[Value, ...], selected: Array) -> tuple[Value, ...]:
    """Return the registers of the threads at positions `selected`; uniform values stay uniform."""
    return tuple(v if v.ndim == 0 else v.take(selected) for v in registers)


def merge(parts: list[Group], dtypes: tuple[DType, ...], everyone: Threads) -> Group:
    """Merge disjoint groups into one. If it has all threads of the batch, they are in thread order again."""
    total = sum(part.threads.count for part in parts)
    columns = zip(*(part.registers for part in parts), strict=True)
    if total == everyone.count:
        registers = tuple(_scatter(c, parts, d, total) for c, d in zip(columns, dtypes, strict=True))
        return Group(everyone, registers)
    ids = np.concatenate([part.threads.indices() for part in parts])
    return Group(Threads(ids, total), tuple(_join(column, parts) for column in columns))


def _is_uniform(values: tuple[Value, ...]) -> bool:
    first = values[0]
    if any(v.ndim for v in values):
        return False
    return all(v is first or v.tobytes() == first.tobytes() for v in values[1:])


def _join(values: tuple[Value, ...], parts: list[Group]) -> Value:
    if _is_uniform(values):
        return values[0]
    return np.concatenate([spread(v, p.threads.count) for v, p in zip(values, parts, strict=True)])


def _scatter(values: tuple[Value, ...], parts: list[Group], dtype: DType, total: int) -> Value:
    if _is_uniform(values):
        return values[0]
    result = np.empty(total, dtype)
    for value, part in zip(values, parts, strict=True):
        result[part.threads.ids] = value
    return result
