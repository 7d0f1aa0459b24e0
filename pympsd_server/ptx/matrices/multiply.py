"""Multiply matrices in a warp's registers (mma and wmma); some functions here serve wgmma, too."""

from typing import Final

import numpy as np

from pympsd_server.ptx.isa.datatypes import Array, Value
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.math.conversion import float_from_bfloat
from pympsd_server.ptx.math.floats import canonicalize, fma64
from pympsd_server.ptx.math.small_floats import half_from_small
from pympsd_server.ptx.matrices.fragments import Fragment, Shape, fragment_of
from pympsd_server.ptx.runtime.batch_state import BatchState
from pympsd_server.ptx.runtime.threads import Threads

STORED: Final = {
    kind: np.dtype(name)
    for name, kinds in {
        "u1": "e4m3 e5m2 s8 u8 b1",
        "u2": "f16 bf16",
        "u4": "tf32",
        "f4": "f32",
        "i4": "s32",
        "f8": "f64",
    }.items()
    for kind in kinds.split()
}
"""The dtype of an element in memory and registers, by its type; a u1 contains eight elements of b1."""
_TF32_MASK: Final = np.uint32(0xFFFFE000)
_MIN_S32, _MAX_S32 = -(2.0**31), 2.0**31 - 1


def multiply_matrices(
    state: BatchState,
    threads: Threads,
    shape: Shape,
    kinds: tuple[str, str, str, str],
    saturate: bool,
    a: tuple[Value, ...],
    b: tuple[Value, ...],
    c: tuple[Value, ...],
    differ: bool = False,
) -> list[Value]:
    """Return the registers of D = A * B + C. All lanes of each warp must be in the group.

    `kinds` are the types of the elements of A, B, C and D. Doubles are added one product after another, each sum
    rounded. Products of bits count the positions at which both bits are 1 (.and.popc), or with `differ` the positions
    at which they differ (.xor.popc).
    """
    m, n, k = shape
    left = gather(state, threads, fragment_of("a", shape, kinds[0]), a, kinds[0], (m, k))
    right = gather(state, threads, fragment_of("b", shape, kinds[1]), b, kinds[1], (k, n))
    total = gather(state, threads, fragment_of("c", shape, kinds[2]), c, kinds[2], (m, n))
    if kinds[0] == "f64":
        for step in range(k):
            total = fma64(*np.broadcast_arrays(left[:, :, step, None], right[:, None, step, :], total))
    elif kinds[0] == "b1":
        products = left @ right
        if differ:
            products = left.sum(axis=2, keepdims=True) + right.sum(axis=1, keepdims=True) - 2 * products
        total = round_sums(products + total, kinds[3], saturate)
    else:
        products = np.zeros_like(total)
        for step in range(k):  # the compiled tier adds in the same order
            products += left[:, :, step, None] * right[:, None, step, :]
        total = round_sums(products + total, kinds[3], saturate)
    return scatter(state, threads, fragment_of("d", shape, kinds[3]), total)


def round_sums(total: Array, kind: str, saturate: bool) -> Array:
    """Convert sums from doubles to elements of D. Sums of integers are exact; they wrap, or saturate.

    Floats are rounded once, so the sums are more exact than a tensor core's.
    """
    if kind == "s32":
        return (np.clip(total, _MIN_S32, _MAX_S32) if saturate else total).astype(np.int64).astype(np.int32)
    rounded: Array = canonicalize(total.astype(np.float16 if kind == "f16" else np.float32))
    return rounded


def gather(
    state: BatchState,
    threads: Threads,
    fragment: Fragment,
    registers: tuple[Value, ...],
    kind: str,
    size: tuple[int, int],
) -> Array:
    """Return the matrices of all warps of the batch as doubles, with zeros for warps that are not in the group."""
    table = np.zeros((state.warps * WARP, len(registers)), registers[0].dtype)
    slots = threads.pick(state.slot)
    for index, register in enumerate(registers):
        table[slots, index] = register
    matrices = np.zeros((state.warps, *size))
    elements = table.view(STORED[kind]).reshape(state.warps, WARP, -1)
    matrices[:, fragment.rows, fragment.columns] = numbers(elements, kind)
    return matrices


def numbers(bits: Array, kind: str) -> Array:
    """Return the values of elements that are stored with the dtypes of STORED."""
    if kind == "b1":
        return np.unpackbits(bits, axis=-1, bitorder="little")
    if kind in ("e4m3", "e5m2"):
        return half_from_small(bits, kind)  # type: ignore[no-any-return]
    if kind == "f16":
        return bits.view(np.float16)
    if kind == "bf16":
        return float_from_bfloat(bits)  # type: ignore[no-any-return]
    if kind == "tf32":
        return (bits & _TF32_MASK).view(np.float32)
    return bits.view(np.int8) if kind == "s8" else bits


def scatter(state: BatchState, threads: Threads, fragment: Fragment, matrices: Array) -> list[Value]:
    """Distribute the warps' matrices to registers of these threads: the reverse of `gather`."""
    elements = matrices[:, fragment.rows, fragment.columns].reshape(state.warps * WARP, -1)
    return pack(elements[threads.pick(state.slot)], fragment)


def pack(elements: Array, fragment: Fragment) -> list[Value]:
    """Pack elements, which have a row for each thread, into registers."""
    if fragment.packed > 1:
        elements = np.ascontiguousarray(elements).view(np.uint32)
    return [np.ascontiguousarray(column) for column in elements.T]
