"""ldmatrix, stmatrix and movmatrix: matrices of 8 by 8 elements of 16 bits; lanes have the addresses of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Value
from pympsd_server.backends.emulated.ptx.faults import DeviceFault
from pympsd_server.backends.emulated.ptx.runtime.lanes import Lanes, spread
from pympsd_server.backends.emulated.ptx.runtime.spaces import elements, load, store
from pympsd_server.backends.emulated.ptx.runtime.warp import shuffle

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_WORD: Final = np.dtype("u4")
_HALF: Final = np.dtype("u2")
_ROW_BYTES: Final = 16
_WHOLE_WARP: Final = np.uint32(31)


def _from_lane(state: BatchState, lanes: Lanes, value: Value, source: Value) -> Value:
    return shuffle(state, lanes, "idx", spread(value, lanes.count), source.astype(np.uint32), _WHOLE_WARP)[0]


def _check_rows(state: BatchState, lanes: Lanes, space: str, address: Value, count: int) -> None:
    """Fault unless the rows whose addresses the first lanes hold are there, and aligned."""
    chosen = np.flatnonzero(lanes.pick(state.lane) < 8 * count)
    inner = Lanes(lanes.indices().take(chosen), len(chosen))
    try:
        elements(state, inner, space, spread(address, lanes.count).take(chosen), _ROW_BYTES, _ROW_BYTES)
    except DeviceFault as fault:
        fault.position = int(chosen[fault.position])
        raise


def load_matrices(
    state: BatchState, lanes: Lanes, space: str, address: Value, count: int, transposed: bool
) -> list[Value]:
    """ldmatrix: lane t gets of each matrix two elements of row t / 4, or of column t / 4."""
    _check_rows(state, lanes, space, address, count)
    lane = lanes.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    found = []
    for matrix in range(count):
        if not transposed:
            base = _from_lane(state, lanes, address, 8 * matrix + row)
            at = base + (4 * pair).astype(base.dtype)
            found.append(load(state, lanes, space, at, _WORD, 4, None))
            continue
        halves = []
        for element in range(2):
            base = _from_lane(state, lanes, address, 8 * matrix + 2 * pair + element)
            halves.append(load(state, lanes, space, base + (2 * row).astype(base.dtype), _HALF, 2, None))
        found.append(halves[0].astype(np.uint32) | (halves[1].astype(np.uint32) << np.uint32(16)))
    return found


def store_matrices(
    state: BatchState, lanes: Lanes, space: str, address: Value, values: tuple[Value, ...], transposed: bool
) -> None:
    """stmatrix: the reverse of ldmatrix."""
    _check_rows(state, lanes, space, address, len(values))
    lane = lanes.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    for matrix, value in enumerate(values):
        word = spread(value, lanes.count)
        if not transposed:
            base = _from_lane(state, lanes, address, 8 * matrix + row)
            store(state, lanes, space, base + (4 * pair).astype(base.dtype), _WORD, 4, (word,), None)
            continue
        for element in range(2):
            base = _from_lane(state, lanes, address, 8 * matrix + 2 * pair + element)
            half = (word >> np.uint32(16 * element)).astype(np.uint16)
            store(state, lanes, space, base + (2 * row).astype(base.dtype), _HALF, 2, (half,), None)


def transpose_matrix(state: BatchState, lanes: Lanes, value: Value) -> Value:
    """movmatrix.trans: element (i, j) of a matrix that the lanes hold becomes element (j, i)."""
    lane = lanes.pick(state.lane)
    row, pair = lane >> 2, lane & 3
    result = np.zeros(lanes.count, np.uint32)
    for element in range(2):
        # The new element (row, 2 * pair + element) was at that row, column `row`.
        word = _from_lane(state, lanes, value, 4 * (2 * pair + element) + (row >> 1))
        half = (word >> (16 * (row & 1)).astype(np.uint32)) & np.uint32(0xFFFF)
        result |= half << np.uint32(16 * element)
    return result
