"""Matrix descriptors of wgmma: where the elements of a matrix lie in shared memory.

After the PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout". The unit there is a chunk of 16 bytes;
8 rows of chunks repeat along both dimensions.
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
"""Chunks in a row, by swizzle mode: none, 128, 64 and 32 bytes."""


@frozen(eq=False)
class Descriptors:
    """The fields of some descriptors; offsets in bytes, each an array that broadcasts over rows and chunks."""

    start: Array
    leading: Array
    stride: Array
    base: Array
    row_chunks: Array

    @classmethod
    def of(cls, values: Array) -> Descriptors:
        """Return the fields of descriptors as registers hold them (uint64)."""
        bits = values.view(S64).reshape(-1, 1, 1)
        start, leading, stride = (((bits >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
        return cls(start, leading, stride, (bits >> 49) & 7, _ROW_CHUNKS[(bits >> 62) & 3])

    def addresses(self, rows: int, chunks: int, transposed: bool) -> Array:
        """Return the address of each chunk of `rows` rows (of K if `transposed`, else of M or N) in shared memory."""
        row, chunk = np.arange(rows)[:, None], np.arange(chunks)
        plain = self.row_chunks == 1
        inner, outer = chunk % self.row_chunks, chunk // self.row_chunks
        if transposed:
            across, down = np.where(plain, self.stride, self.leading), np.where(plain, self.leading, self.stride)
        else:
            # A row of chunks is at least as wide as K is, unless nothing is swizzled.
            across, down = self.leading, self.stride
        linear: Array = self.start + _CHUNK * (inner + row % 8 * self.row_chunks) + outer * across + row // 8 * down
        return self._swizzle(linear)

    def _swizzle(self, address: Array) -> Array:
        """Return addresses whose chunk is exchanged by the number of their row, which has 128 bytes."""
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
    """Return a matrix for each of the leaders (positions in `threads`), in whose block's shared memory it is.

    `size` are the rows (M or N) and columns (K) of the result; `transposed`: K is not the dimension along which
    elements are neighbours. Raises IllegalAddress if a part of the tile is outside of the shared memory.
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
    """Return the registers of D = A * B + D, or without `accumulate` of A * B.

    `kinds` are the types of the elements of A, B and D; `a` has registers, or one descriptor; `b` is a descriptor;
    `signs` and `transposed` are of A and of B. Where `guard` is false nothing is read, and the result is undefined.
    Raises LaunchFailed unless all threads of each group are here, IllegalAddress for memory that does not exist.
    """
    leaders = threads.remember("leaders", lambda: _leaders(state, threads))
    if guard is not None:
        leaders = leaders[spread(guard, threads.count)[leaders]]
    if not len(leaders):
        return [spread(register, threads.count) for register in d]
    m, n, k = shape
    warps = threads.pick(state.warp)[leaders][:, None] + np.arange(GROUP_WARPS)
    own = (_WARP_ROWS, n, k)

    def read_registers(matrix: str, registers: tuple[Value, ...], kind: str, columns: int) -> Array:
        """Return the matrices of the groups, whose warps hold 16 rows each in registers."""
        fragment = fragment_of(matrix, own, kind)
        matrices = gather(state, threads, fragment, registers, kind, (_WARP_ROWS, columns))
        return np.asarray(matrices[warps].reshape(-1, m, columns))

    def read_shared(descriptor: Value, index: int, rows: int) -> Array:
        """Return the matrices of the groups in shared memory, A or the transpose of B."""
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
    return scatter(state, threads, fragment_of("d", own, kinds[2]), of_all)


def _leaders(state: BatchState, threads: Threads) -> Array:
    """Return the positions of the first threads of the warp groups. Raises LaunchFailed if threads are missing."""
    warp = threads.pick(state.warp)
    rank = warp % state.warps_per_block
    group = warp - rank % GROUP_WARPS
    # The warps of a block's last group may not be there, those that follow are the next block's.
    there = np.bincount(group, minlength=state.warps) == GROUP_WARPS * WARP
    if not there[group].all():
        why = "wgmma needs all threads of four warps, of which the first has a rank that is a multiple of four"
        raise LaunchFailed(why, position=int(np.argmin(there[group])))
    return np.flatnonzero((rank % GROUP_WARPS == 0) & (threads.pick(state.lane) == 0))
