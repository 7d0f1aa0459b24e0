"""Multiply matrices by wgmma; matrix descriptors state where the elements of a matrix are in shared memory.

The layout is that of the PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout". Its unit is a chunk of
16 bytes; a pattern of 8 rows of chunks repeats along both dimensions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen

from pympsd_server.ptx.isa.datatypes import S64, U64, Array, Value
from pympsd_server.ptx.isa.faults import DeviceFault, LaunchFailed
from pympsd_server.ptx.isa.machine import GROUP_WARPS, WARP
from pympsd_server.ptx.matrices.fragments import Shape, fragment_of
from pympsd_server.ptx.matrices.multiply import STORED, gather, numbers, round_sums, scatter
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import frame_elements, translate_fault
from pympsd_server.ptx.runtime.threads import Threads, spread

_CHUNK: Final = 16
_ROW_CHUNKS: Final = np.array([1, 8, 4, 2])
"""The number of chunks in a row, for the swizzle modes none, 128, 64 and 32 bytes."""


@frozen(eq=False)
class Descriptors:
    """The fields of several descriptors, as arrays that broadcast over rows and chunks; offsets are in bytes."""

    start: Array
    leading: Array
    stride: Array
    base: Array
    row_chunks: Array

    @classmethod
    def of(cls, values: Array) -> Descriptors:
        """Return the fields of descriptors from registers (uint64)."""
        bits = values.view(S64).reshape(-1, 1, 1)
        start, leading, stride = (((bits >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
        return cls(start, leading, stride, (bits >> 49) & 7, _ROW_CHUNKS[(bits >> 62) & 3])

    def addresses(self, rows: int, chunks: int, transposed: bool) -> Array:
        """Return the shared address of each chunk. Rows are along K if `transposed`, else along M or N."""
        row, chunk = np.arange(rows)[:, None], np.arange(chunks)
        plain = self.row_chunks == 1
        inner, outer = chunk % self.row_chunks, chunk // self.row_chunks
        if transposed:
            across, down = np.where(plain, self.stride, self.leading), np.where(plain, self.leading, self.stride)
        else:
            # Only without a swizzle can K be wider than a row of chunks.
            across, down = self.leading, self.stride
        linear: Array = self.start + _CHUNK * (inner + row % 8 * self.row_chunks) + outer * across + row // 8 * down
        return self._swizzle(linear)

    def _swizzle(self, address: Array) -> Array:
        """Exchange the chunks of each row of 128 bytes, depending on the row's number."""
        row = (address >> 7) - self.base
        swizzled: Array = address ^ ((row & (self.row_chunks - 1)) << 4)
        return swizzled


def read_matrices(
    state: BatchState,
    threads: Threads,
    leaders: Array,
    descriptors: Array,
    size: tuple[int, int],
    kind: str,
    transposed: bool,
) -> Array:
    """Return a matrix for each leader, from the shared memory of the leader's block.

    `leaders` are positions in `threads`. `size` is the number of rows (M or N) and columns (K) of the result. With
    `transposed`, neighbours in memory are along M or N instead of K. Raises IllegalAddress if a part of a matrix is
    outside of the shared memory.
    """
    lines, length = size[::-1] if transposed else size
    chunks = length * STORED[kind].itemsize // _CHUNK
    addresses = Descriptors.of(descriptors).addresses(lines, chunks, transposed).reshape(len(leaders), -1)
    positions = np.repeat(leaders, addresses.shape[1])
    readers = Threads(threads.indices().take(positions), len(positions))
    try:
        index = frame_elements(state, readers, "shared", addresses.reshape(-1), _CHUNK, _CHUNK)
    except DeviceFault as fault:
        raise translate_fault(positions, fault) from None
    elements = state.view("shared", U64).reshape(-1, 2)[index].view(STORED[kind])
    matrices = numbers(elements.reshape(len(leaders), lines, length), kind).astype(np.float64)
    return matrices.transpose(0, 2, 1) if transposed else matrices


_WARP_ROWS: Final = 16


def multiply_in_groups(
    state: BatchState,
    threads: Threads,
    shape: Shape,
    kinds: tuple[str, str, str],
    saturate: bool,
    signs: tuple[int, int],
    transposed: tuple[bool, bool],
    a: tuple[Value, ...],
    b: Value,
    d: tuple[Value, ...],
    accumulate: Value,
    guard: Value | None,
) -> list[Value]:
    """wgmma: return the registers of D = A * B + D, or without `accumulate` of A * B.

    `kinds` are the types of the elements of A, B and D. `a` is the registers of A or its descriptor, `b` the
    descriptor of B. `signs` (1 or -1) and `transposed` have an element for A and one for B. If a group's `guard` is
    false, its memory is not read and its result is undefined. Raises LaunchFailed unless all threads of each warp
    group are in `threads`, and IllegalAddress for a matrix outside of the shared memory.
    """
    leaders = threads.remember("leaders", lambda: _leaders(state, threads))
    if guard is not None:
        leaders = leaders[spread(guard, threads.count)[leaders]]
    if not len(leaders):
        return [spread(register, threads.count) for register in d]
    m, n, k = shape
    warps = threads.pick(state.warp)[leaders][:, None] + np.arange(GROUP_WARPS)
    warp_shape = (_WARP_ROWS, n, k)

    def read_registers(matrix: str, registers: tuple[Value, ...], kind: str, columns: int) -> Array:
        """Return the matrices of the groups from registers; each warp has 16 rows."""
        fragment = fragment_of(matrix, warp_shape, kind)
        matrices = gather(state, threads, fragment, registers, kind, (_WARP_ROWS, columns))
        return np.asarray(matrices[warps].reshape(-1, m, columns))

    def read_shared(descriptor: Value, index: int, rows: int) -> Array:
        """Return the matrices of the groups from shared memory: A, or the transpose of B."""
        descriptors = spread(descriptor, threads.count)[leaders]
        return read_matrices(state, threads, leaders, descriptors, (rows, k), kinds[index], transposed[index])

    left = read_shared(a[0], 0, m) if len(a) == 1 else read_registers("a", a, kinds[0], k)
    total = (signs[0] * left) @ (signs[1] * read_shared(b, 1, n)).transpose(0, 2, 1)
    if np.any(accumulate):
        total += np.where(
            spread(accumulate, threads.count)[leaders][:, None, None], read_registers("d", d, kinds[2], n), 0.0
        )
    sums = round_sums(total, kinds[2], saturate)
    of_all = np.zeros((state.warps, _WARP_ROWS, n), sums.dtype)
    of_all[warps] = sums.reshape(-1, GROUP_WARPS, _WARP_ROWS, n)
    return scatter(state, threads, fragment_of("d", warp_shape, kinds[2]), of_all)


def _leaders(state: BatchState, threads: Threads) -> Array:
    """Return the positions of the first threads of the warp groups. Raises LaunchFailed if threads are missing."""
    warp = threads.pick(state.warp)
    rank = warp % state.warps_per_block
    group = warp - rank % GROUP_WARPS
    # If a block's warps are not a multiple of four, its last group is incomplete; the next warps are another block's.
    is_complete = np.bincount(group, minlength=state.warps) == GROUP_WARPS * WARP
    if not is_complete[group].all():
        why = "wgmma needs all threads of four warps, of which the first has a rank that is a multiple of four"
        raise LaunchFailed(why, position=int(np.argmin(is_complete[group])))
    return np.flatnonzero((rank % GROUP_WARPS == 0) & (threads.pick(state.lane) == 0))
