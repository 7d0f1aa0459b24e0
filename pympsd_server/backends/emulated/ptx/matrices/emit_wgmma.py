"""wgmma: products of warp groups, whose warps have met when the block begins; nothing is left to wait for."""

from __future__ import annotations

from typing import Final

from pympsd_server.backends.emulated.ptx.codegen.emission import emits
from pympsd_server.backends.emulated.ptx.codegen.emit_matrices import (
    ACCUMULATED,
    MIXED,
    assign_all,
    items,
    registers,
    size_of,
)
from pympsd_server.backends.emulated.ptx.codegen.writer import Writer
from pympsd_server.backends.emulated.ptx.datatypes import BOOL, U64
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.matrices.fragments import fragment_of
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

ALL_N: Final = tuple(range(8, 257, 8))
INTEGER_N: Final = (8, 16, 24, *range(32, 257, 16))
GROUP_PRODUCTS: Final = {
    ("f16", "f16"): (16, ALL_N),
    ("f16", "f32"): (16, ALL_N),
    ("bf16", "f32"): (16, ALL_N),
    ("tf32", "f32"): (8, ALL_N),
    ("e4m3", "f16"): (32, ALL_N),
    ("e4m3", "f32"): (32, ALL_N),
    ("e5m2", "f16"): (32, ALL_N),
    ("e5m2", "f32"): (32, ALL_N),
    ("s8", "s32"): (32, INTEGER_N),
    ("u8", "s32"): (32, INTEGER_N),
}
"""K, and each N of the shapes m64nNkK, by the types of A and of D."""
_SHAPES: Final = {f"m64n{n}k{k}" for k, every in GROUP_PRODUCTS.values() for n in every}
_TYPES: Final = sorted({kind for types in GROUP_PRODUCTS for kind in types})
_OPERANDS: Final = {"mma_async": (4, 9), "fence": (0, 0), "commit_group": (0, 0), "wait_group": (1, 1)}


@emits("wgmma", (0, 9), f"mma_async fence commit_group wait_group sync aligned satfinite {' '.join(_SHAPES)}", _TYPES)
def _group_instruction(w: Writer, o: Operation) -> None:
    action = o.one_of(*_OPERANDS)
    if not (action and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    low, high = _OPERANDS[action]
    if not low <= len(o.operands) <= high:
        raise w.refuse(f"{len(o.operands)} operands")
    if action == "mma_async":
        _multiply(w, o)


def _multiply(w: Writer, o: Operation) -> None:
    """D = A * B + D: the types are those of D, A and B; A is a fragment or a descriptor, B a descriptor."""
    shape = o.one_of(*_SHAPES)
    if len(o.types) != 3 or not shape:
        raise w.refuse()
    d, a, b = o.types
    size, alike = size_of(shape), a == b or {a, b} in MIXED
    k, every = GROUP_PRODUCTS.get((a, d), (0, ()))
    if not alike or size[2] != k or size[1] not in every or (o.has("satfinite") and d != "s32"):
        raise w.refuse("this shape of these types")
    in_registers = isinstance(o.operands[1], Group)
    signs, transposed = _choices(w, o.operands[4:], a, in_registers)
    rows = (16, size[1], k)
    left = registers(w, o.operands[1], "a", rows, a) if in_registers else f"({w.value(o.operands[1], U64)},)"
    right, sums = w.value(o.operands[2], U64), registers(w, o.operands[0], "d", rows, d)
    accumulate = w.value(o.operands[3], BOOL)
    name = w.name()
    w.lines.append(
        f"{name} = multiply_in_groups(B, T, {size}, {(a, b, d)}, {o.has('satfinite')}, {signs}, {transposed}, "
        f"{left}, {right}, {sums}, {accumulate}, {w.guard})"
    )
    assign_all(w, items(w, o.operands[0], fragment_of("d", rows, d).registers), name, ACCUMULATED[d])


def _choices(
    w: Writer, given: tuple[Argument, ...], kind: str, in_registers: bool
) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """Return the signs of A and B, and whether each is MN-major; operands that `kind` does not have are refused."""
    halves = kind in ("f16", "bf16")
    count = 0 if kind in ("s8", "u8") else 2 + (2 - in_registers if halves else 0)
    values = [item.value for item in given if isinstance(item, Immediate)]
    if len(values) != len(given) or len(values) != count:
        raise w.refuse(f"{count} immediate operands are needed after the predicate")
    signs, transposed = values[:2] or [1, 1], values[2:]
    if not {*signs} <= {1, -1} or not {*transposed} <= {0, 1}:
        raise w.refuse("a scale that is not 1 or -1, or a transposition that is not 0 or 1")
    transposed = [0] * (2 - len(transposed)) + transposed
    return (signs[0], signs[1]), (bool(transposed[0]), bool(transposed[1]))
