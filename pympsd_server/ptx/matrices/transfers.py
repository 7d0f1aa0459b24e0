"""Load, store and transpose matrices in a warp's registers: ldmatrix, stmatrix, movmatrix, wmma.load and store.

The first three work on matrices of 8 by 8 elements of 16 bits; the addresses of rows are in the lanes.
"""

from typing import Final

import numpy as np
from attrs import evolve, frozen

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.faults import DeviceFault
from pympsd_server.ptx.matrices.fragments import Fragment, Shape, fragment_of
from pympsd_server.ptx.matrices.multiply import STORED, pack
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.spaces import elements, load, store
from pympsd_server.ptx.runtime.threads import Threads, spread
from pympsd_server.ptx.runtime.warp import shuffle

_WORD: Final = np.dtype("u4")
_HALF: Final = np.dtype("u2")
_ROW_BYTES: Final = 16
_WHOLE_WARP: Final = np.uint32(31)


def _fetch_from_lane(state: BatchState, threads: Threads, value: Value, source: Value) -> Value:
    return shuffle(state, threads, "idx", spread(value, threads.count), source.astype(np.uint32), _WHOLE_WARP)[0]


def _check_rows(state: BatchState, threads: Threads, space: str, address: Value, count: int, *, writes: bool) -> None:
    """Raise DeviceFault if a row whose address is in the first 8 * `count` lanes cannot be read, or written."""
    selected = np.flatnonzero(threads.pick(state.lane) < 8 * count)
    inner = Threads(threads.indices().take(selected), len(selected))
    try:
        addresses = spread(address, threads.count).take(selected)
        elements(state, inner, space, addresses, _ROW_BYTES, _ROW_BYTES, writes=writes)
    except DeviceFault as fault:
        fault.position = int(selected[fault.position])
        raise


def load_matrices(
    state: BatchState, threads: Threads, space: str, address: Value, count: int, transposed: bool
) -> list[Value]:
    """ldmatrix: return a register for each matrix; lane t's has two elements of row (or column) t / 4."""
    _check_rows(state, threads, space, address, count, writes=False)
    lane = threads.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    registers = []
    for matrix in range(count):
        if not transposed:
            base = _fetch_from_lane(state, threads, address, 8 * matrix + row)
            at = base + (4 * pair).astype(base.dtype)
            registers.append(load(state, threads, space, at, _WORD, 4, None))
            continue
        halves = []
        for element in range(2):
            base = _fetch_from_lane(state, threads, address, 8 * matrix + 2 * pair + element)
            halves.append(load(state, threads, space, base + (2 * row).astype(base.dtype), _HALF, 2, None))
        registers.append(halves[0].astype(np.uint32) | (halves[1].astype(np.uint32) << np.uint32(16)))
    return registers


def store_matrices(
    state: BatchState, threads: Threads, space: str, address: Value, values: tuple[Value, ...], transposed: bool
) -> None:
    """stmatrix: store matrices, each from one register, in the layout that `load_matrices` reads."""
    _check_rows(state, threads, space, address, len(values), writes=True)
    lane = threads.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    for matrix, value in enumerate(values):
        word = spread(value, threads.count)
        if not transposed:
            base = _fetch_from_lane(state, threads, address, 8 * matrix + row)
            store(state, threads, space, base + (4 * pair).astype(base.dtype), _WORD, 4, (word,), None)
            continue
        for element in range(2):
            base = _fetch_from_lane(state, threads, address, 8 * matrix + 2 * pair + element)
            half = (word >> np.uint32(16 * element)).astype(np.uint16)
            store(state, threads, space, base + (2 * row).astype(base.dtype), _HALF, 2, (half,), None)


def transpose_matrix(state: BatchState, threads: Threads, value: Value) -> Value:
    """movmatrix.trans: return the transpose of a matrix in the lanes' registers."""
    lane = threads.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    result = np.zeros(threads.count, np.uint32)
    for element in range(2):
        # The new element at (row, 2 * pair + element) was at row 2 * pair + element, column `row`.
        word = _fetch_from_lane(state, threads, value, 4 * (2 * pair + element) + (row >> 1))
        half = (word >> (16 * (row & 1)).astype(np.uint32)) & np.uint32(0xFFFF)
        result |= half << np.uint32(16 * element)
    return result


_WORD_BITS = 32


@frozen
class MatrixPlace:
    """The place of a matrix in memory: its rows, or columns, are `stride` elements apart."""

    space: str
    address: Value
    stride: Value
    by_columns: bool


def load_fragment(
    state: BatchState,
    threads: Threads,
    place: MatrixPlace,
    matrix: str,
    shape: Shape,
    kind: str,
    guard: Value | None,
) -> list[Value]:
    """wmma.load: return the registers of a, b or c."""
    fragment = fragment_of(matrix, shape, kind)
    if kind == "b1":
        # A register contains 32 consecutive bits of a row of A or a column of B. Load them as one element.
        rows, columns = fragment.rows[:, ::_WORD_BITS], fragment.columns[:, ::_WORD_BITS]
        rows, columns = (rows // _WORD_BITS, columns) if place.by_columns else (rows, columns // _WORD_BITS)
        fragment, kind = Fragment(rows, columns, 1), "tf32"
        place = evolve(place, stride=place.stride // np.uint32(_WORD_BITS))
    dtype = STORED[kind]
    addresses = _addresses(state, threads, fragment, place, dtype.itemsize)
    loaded = (load(state, threads, place.space, at, dtype, dtype.itemsize, guard) for at in addresses.T)
    return pack(np.stack([spread(element, threads.count) for element in loaded], axis=1), fragment)


def store_fragment(
    state: BatchState,
    threads: Threads,
    place: MatrixPlace,
    shape: Shape,
    kind: str,
    registers: tuple[Value, ...],
    guard: Value | None,
) -> None:
    """wmma.store: write D."""
    fragment = fragment_of("d", shape, kind)
    dtype = STORED[kind]
    addresses = _addresses(state, threads, fragment, place, dtype.itemsize)
    elements = np.stack([spread(register, threads.count) for register in registers], axis=1).view(dtype)
    for at, value in zip(addresses.T, elements.T, strict=True):
        store(state, threads, place.space, at, dtype, dtype.itemsize, (value,), guard)


def _addresses(state: BatchState, threads: Threads, fragment: Fragment, place: MatrixPlace, size: int) -> Array:
    """Return the addresses of elements: a row for each thread, a column for each of its elements."""
    lane = threads.pick(state.lane)
    rows, columns = fragment.rows[lane], fragment.columns[lane]
    line, position = (columns, rows) if place.by_columns else (rows, columns)
    offsets = (line * spread(place.stride, threads.count).astype(np.int64)[:, None] + position) * size
    addresses: Array = spread(place.address, threads.count)[:, None] + offsets.astype(place.address.dtype)
    return addresses
