"""wmma: products of a warp whose fragments only wmma knows, as nvcuda::wmma has them. Here they are those of mma."""

from __future__ import annotations

from typing import Final

from pympsd_server.backends.emulated.ptx.codegen.emission import emits
from pympsd_server.backends.emulated.ptx.codegen.emit_matrices import (
    ACCUMULATED,
    BITWISE,
    assign_all,
    differ_of,
    items,
    place_of,
    registers,
    size_of,
)
from pympsd_server.backends.emulated.ptx.codegen.writer import Writer
from pympsd_server.backends.emulated.ptx.datatypes import F64, U32
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.matrices.fragments import Shape, fragment_of

_SHAPES: Final = ("m16n16k16", "m32n8k16", "m8n32k16")
WARP_PRODUCTS: Final = {
    ("f16", "f16"): _SHAPES,
    ("f16", "f32"): _SHAPES,
    ("bf16", "f32"): _SHAPES,
    ("tf32", "f32"): ("m16n16k8",),
    ("s8", "s32"): _SHAPES,
    ("u8", "s32"): _SHAPES,
    ("f64", "f64"): ("m8n8k4",),
    ("b1", "s32"): ("m8n8k128",),
}
"""Shapes by the types of A and B, and of C or D."""
_EVERY: Final = sorted({shape for shapes in WARP_PRODUCTS.values() for shape in shapes})
_TYPES: Final = sorted({kind for types in WARP_PRODUCTS for kind in types})
_HALF_REGISTERS: Final = 8
"""The registers of a fragment of A or B of f16, whatever its shape: the first are repeated."""
_MODIFIERS: Final = (
    f"load store mma a b c d sync aligned row col rn satfinite global shared shared::cta {BITWISE} {' '.join(_EVERY)}"
)


@emits("wmma", (2, 4), _MODIFIERS, _TYPES)
def _warp_instruction(w: Writer, o: Operation) -> None:
    shape = o.one_of(*_EVERY)
    if not (shape and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    if o.has("mma"):
        _multiply(w, o, shape)
    else:
        _transfer(w, o, shape)


def _count(matrix: str, size: Shape, kind: str) -> int:
    """Return the number of registers that the instructions have for a fragment."""
    if kind == "f16" and matrix in ("a", "b"):
        return _HALF_REGISTERS
    return fragment_of(matrix, size, kind).registers


def _transfer(w: Writer, o: Operation, shape: str) -> None:
    """wmma.load, wmma.store: a fragment, an address, and how many elements a row or column is from the next."""
    matrix, layout, stored = o.one_of("a", "b", "c", "d"), o.one_of("row", "col"), o.has("store")
    if not (layout and matrix) or (matrix == "d") != stored or o.has("load") == stored or len(o.operands) > 3:
        raise w.refuse()
    kinds = {types[matrix in ("c", "d")] for types, shapes in WARP_PRODUCTS.items() if shape in shapes}
    if len(o.types) != 1 or o.type not in kinds:
        raise w.refuse("this shape of this type")
    if o.type == "b1" and (matrix, layout) not in (("a", "row"), ("b", "col")):
        raise w.refuse("of bits, A is loaded by rows and B by columns")
    size, by_columns = size_of(shape), layout == "col"
    fragment, memory = o.operands[:2][::-1] if stored else o.operands[:2]
    space, address = place_of(w, o, memory)
    stride = w.value(o.operands[2], U32) if len(o.operands) == 3 else w.scalar(_length(matrix, size, by_columns), U32)
    where, what = f"B, T, {space!r}, {address}, {stride}", f"{size}, {o.type!r}, {by_columns}"
    if stored:
        w.lines.append(f"store_fragment({where}, {what}, {registers(w, fragment, 'd', size, o.type)}, {w.guard})")
        return
    name = w.name()
    w.lines.append(f"{name} = load_fragment({where}, {matrix!r}, {what}, {w.guard})")
    dtype = F64 if o.type == "f64" else ACCUMULATED[o.type] if matrix == "c" else U32
    targets, distinct = items(w, fragment, _count(matrix, size, o.type)), fragment_of(matrix, size, o.type).registers
    for first in range(0, len(targets), distinct):
        assign_all(w, targets[first : first + distinct], name, dtype)


def _length(matrix: str, size: Shape, by_columns: bool) -> int:
    """Return the elements of a row, or of a column."""
    m, n, k = size
    rows, columns = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    return rows if by_columns else columns


def _multiply(w: Writer, o: Operation, shape: str) -> None:
    """wmma.mma: the types are those of D, A, B and C; of D and C alone if A and B are of f16."""
    if len(o.types) not in (2, 4) or len(o.operands) != 4:
        raise w.refuse()
    d, a, b, c = o.types if len(o.types) == 4 else (o.types[0], "f16", "f16", o.types[1])
    known = all(shape in WARP_PRODUCTS.get((a, sums), ()) for sums in (c, d))
    layouts = [m for m in o.modifiers if m in ("row", "col")]
    if a != b or not known or len(layouts) != 2 or (a == "b1" and layouts != ["row", "col"]):
        raise w.refuse("this shape of these types")
    if (len(o.types) == 2) != (a == "f16") or (o.has("satfinite") and d != "s32"):
        raise w.refuse()
    size = size_of(shape)
    left, right = (_distinct(w, x, m, size, a) for x, m in zip(o.operands[1:3], "ab", strict=True))
    given = (
        registers(w, left, "a", size, a),
        registers(w, right, "b", size, b),
        registers(w, o.operands[3], "c", size, c),
    )
    name = w.name()
    options = f"{size}, {(a, b, c, d)}, {o.has('satfinite')}, {', '.join(given)}, {differ_of(w, o, a)}"
    w.lines.append(f"{name} = multiply_matrices(B, T, {options})")
    assign_all(w, items(w, o.operands[0], fragment_of("d", size, d).registers), name, ACCUMULATED[d])


def _distinct(w: Writer, argument: Argument, matrix: str, size: Shape, kind: str) -> Argument:
    """Return a fragment of A or B without the registers that repeat others."""
    every = items(w, argument, _count(matrix, size, kind))
    return Group(every[: fragment_of(matrix, size, kind).registers])
