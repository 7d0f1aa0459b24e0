"""mma: products of matrices that warps hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value
from pympsd_server.backends.emulated.ptx.math.conversion import float_from_bfloat
from pympsd_server.backends.emulated.ptx.math.rounding import fma64
from pympsd_server.backends.emulated.ptx.math.small_floats import half_from_small
from pympsd_server.backends.emulated.ptx.matrices.fragments import (
    Fragment,
    accumulator,
    multiplicand_a,
    multiplicand_b,
)
from pympsd_server.backends.emulated.ptx.runtime.lanes import WARP, Lanes

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.ptx.runtime.batch_state import BatchState

_BITS: Final = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64}
"""Of an element of A or B."""
_TF32_MASK: Final = np.uint32(0xFFFFE000)

Shape = tuple[int, int, int]


def fragments(shape: Shape, kinds: tuple[str, str, str]) -> tuple[Fragment, Fragment, Fragment]:
    """Return the fragments of A, B and of C and D, whose element types are `kinds`."""
    m, n, k = shape
    a, b = (max(1, 32 // _BITS[kind]) for kind in kinds[:2])
    return multiplicand_a(m, k, a), multiplicand_b(k, n, b), accumulator(m, n, 2 if kinds[2] == "f16" else 1)


def multiply_matrices(
    state: BatchState,
    lanes: Lanes,
    shape: Shape,
    kinds: tuple[str, str, str],
    saturate: bool,
    a: tuple[Value, ...],
    b: tuple[Value, ...],
    c: tuple[Value, ...],
) -> list[Value]:
    """Return the registers of D = A * B + C, for warps all of whose lanes are in the group.

    Floats are summed in double precision and rounded once to the type of D: closer than tensor cores sum.
    Doubles are added one product after another, each step rounded.
    """
    of_a, of_b, of_c = fragments(shape, kinds)
    m, n, k = shape
    left = _gathered(state, lanes, of_a, a, kinds[0], (m, k))
    right = _gathered(state, lanes, of_b, b, kinds[1], (k, n))
    total = _gathered(state, lanes, of_c, c, kinds[2], (m, n))
    if kinds[0] == "f64":
        for step in range(k):
            total = fma64(*np.broadcast_arrays(left[:, :, step, None], right[:, None, step, :], total))
    elif kinds[2] == "s32":
        exact = left @ right + total
        total = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact
        total = total.astype(np.int32)
    else:
        total = (left @ right + total).astype(np.float16 if kinds[2] == "f16" else np.float32)
    return _scattered(state, lanes, of_c, total)


def _gathered(
    state: BatchState,
    lanes: Lanes,
    fragment: Fragment,
    registers: tuple[Value, ...],
    kind: str,
    size: tuple[int, int],
) -> Array:
    """Return the matrices of all warps, as doubles or 64-bit integers; those of absent warps are undefined."""
    matrices = np.zeros((state.warps, *size), np.int64 if kind in ("s8", "u8", "s32") else np.float64)
    for index, register in enumerate(registers):
        table = np.zeros(state.warps * WARP, register.dtype)
        table[lanes.pick(state.slot)] = register
        each = table.reshape(-1, WARP)
        for element in range(fragment.packed):
            at = index * fragment.packed + element
            bits = each >> np.uint32(8 * element * (4 // fragment.packed)) if fragment.packed > 1 else each
            matrices[:, fragment.rows[:, at], fragment.columns[:, at]] = _number(bits, kind)
    return matrices


def _number(bits: Array, kind: str) -> Array:
    if kind in ("e4m3", "e5m2"):
        return half_from_small(bits, kind)  # type: ignore[no-any-return]
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16)
    if kind == "bf16":
        return float_from_bfloat(bits.astype(np.uint16))  # type: ignore[no-any-return]
    if kind == "tf32":
        return (bits & _TF32_MASK).view(np.float32)
    if kind in ("s8", "u8"):
        return bits.astype(np.uint8).view(np.int8 if kind == "s8" else np.uint8)
    return bits


def _scattered(state: BatchState, lanes: Lanes, fragment: Fragment, matrices: Array) -> list[Value]:
    columns = []
    slots = lanes.pick(state.slot)
    elements = matrices[:, fragment.rows, fragment.columns].reshape(state.warps * WARP, -1)[slots]
    for index in range(fragment.registers):
        parts = np.ascontiguousarray(elements[:, index * fragment.packed : (index + 1) * fragment.packed])
        columns.append(parts.view(np.uint32)[:, 0] if fragment.packed > 1 else parts[:, 0])
    return columns
