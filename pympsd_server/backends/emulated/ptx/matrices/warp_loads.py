"""wmma.load and wmma.store: a matrix in memory and the fragments of the lanes of a warp, those of mma."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value
from pympsd_server.backends.emulated.ptx.matrices.fragments import Fragment, Shape, fragment_of
from pympsd_server.backends.emulated.ptx.matrices.multiply import STORED, packed
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes, spread
from pympsd_server.backends.emulated.ptx.runtime.spaces import load, store

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WORD_BITS = 32


def load_fragment(
    state: BatchState,
    lanes: Lanes,
    space: str,
    address: Value,
    stride: Value,
    matrix: str,
    shape: Shape,
    kind: str,
    by_columns: bool,
    guard: Value | None,
) -> list[Value]:
    """wmma.load: return the registers of a, b or c, whose rows, or columns, are `stride` elements apart."""
    fragment = fragment_of(matrix, shape, kind)
    if kind == "b1":
        # A register is 32 bits that follow each other in memory, along rows of A and columns of B: an element.
        rows, columns = fragment.rows[:, ::_WORD_BITS], fragment.columns[:, ::_WORD_BITS]
        rows, columns = (rows // _WORD_BITS, columns) if by_columns else (rows, columns // _WORD_BITS)
        fragment, kind = Fragment(rows, columns, 1), "tf32"
        stride = stride // np.uint32(_WORD_BITS)
    dtype = STORED[kind]
    places = _addresses(state, lanes, fragment, address, stride, dtype.itemsize, by_columns)
    found = [spread(load(state, lanes, space, at, dtype, dtype.itemsize, guard), lanes.count) for at in places.T]
    return packed(np.stack(found, axis=1), fragment)


def store_fragment(
    state: BatchState,
    lanes: Lanes,
    space: str,
    address: Value,
    stride: Value,
    shape: Shape,
    kind: str,
    by_columns: bool,
    registers: tuple[Value, ...],
    guard: Value | None,
) -> None:
    """wmma.store: write D, whose rows, or columns, are `stride` elements apart."""
    fragment = fragment_of("d", shape, kind)
    dtype = STORED[kind]
    places = _addresses(state, lanes, fragment, address, stride, dtype.itemsize, by_columns)
    elements = np.stack([spread(register, lanes.count) for register in registers], axis=1).view(dtype)
    for at, value in zip(places.T, elements.T, strict=True):
        store(state, lanes, space, at, dtype, dtype.itemsize, (value,), guard)


def _addresses(
    state: BatchState, lanes: Lanes, fragment: Fragment, address: Value, stride: Value, size: int, by_columns: bool
) -> Array:
    """Return the address of each element of each lane."""
    lane = lanes.pick(state.lane)
    rows, columns = fragment.rows[lane], fragment.columns[lane]
    line, place = (columns, rows) if by_columns else (rows, columns)
    offsets = (line * spread(stride, lanes.count).astype(np.int64)[:, None] + place) * size
    found: Array = spread(address, lanes.count)[:, None] + offsets.astype(address.dtype)
    return found
