"""Matrices of warps: mma, ldmatrix, stmatrix, movmatrix. All lanes of the warp have met when the block begins."""

from __future__ import annotations

import re
from typing import Final

from pympsd_server.backends.emulated.ptx.isa.datatypes import BOOL, F32, F64, S32, U32, U64, DType
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.matrices.fragments import Shape, fragment_of
from pympsd_server.backends.emulated.ptx.numpy_tier.emit_async import address_of
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer
from pympsd_server.backends.emulated.ptx.syntax.tree import Immediate

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
MULTIPLIED = {
    ("f16", "f16"): ("m16n8k8", "m16n8k16"),
    ("bf16", "f32"): ("m16n8k8", "m16n8k16"),
    ("f16", "f32"): ("m16n8k8", "m16n8k16"),
    ("tf32", "f32"): ("m16n8k4", "m16n8k8"),
    ("e4m3", "f32"): ("m16n8k16", "m16n8k32"),
    ("e5m2", "f32"): ("m16n8k16", "m16n8k32"),
    ("e4m3", "f16"): ("m16n8k16", "m16n8k32"),
    ("e5m2", "f16"): ("m16n8k16", "m16n8k32"),
    ("s8", "s32"): ("m8n8k16", "m16n8k16", "m16n8k32"),
    ("u8", "s32"): ("m8n8k16", "m16n8k16", "m16n8k32"),
    ("f64", "f64"): ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    ("b1", "s32"): ("m8n8k128", "m16n8k128", "m16n8k256"),
}
"""Shapes by the types of A and of C."""
ACCUMULATED: dict[str, DType] = {"f16": U32, "f32": F32, "s32": S32, "f64": F64}
MIXED = ({"s8", "u8"}, {"e4m3", "e5m2"})
_MMA_SHAPES = sorted({shape for shapes in MULTIPLIED.values() for shape in shapes})
_MMA_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64", "f32", "s32", "b1")
BITWISE = "and xor popc"
"""What products of bits have: .and.popc or .xor.popc."""


def size_of(shape: str) -> Shape:
    """Return the M, N and K of a shape that is one."""
    match = SHAPE.fullmatch(shape)
    assert match is not None
    m, n, k = (int(number) for number in match.groups())
    return m, n, k


def items(w: Writer, argument: Argument, count: int) -> tuple[Argument, ...]:
    """Return the `count` registers of an operand; without braces it is one."""
    found = argument.items if isinstance(argument, Group) else (argument,)
    if len(found) != count:
        raise w.refuse(f"a fragment of {count} registers is needed, not of {len(found)}")
    return found


def registers(w: Writer, argument: Argument, matrix: str, size: Shape, kind: str) -> str:
    """Return a tuple of the values of the fragment of a, b, c or d that an operand has."""
    dtype = F64 if kind == "f64" else ACCUMULATED[kind] if matrix in ("c", "d") else U32
    found = items(w, argument, fragment_of(matrix, size, kind).registers)
    return f"({', '.join(w.value(item, dtype) for item in found)},)"


def differ_of(w: Writer, o: Operation, kind: str) -> bool:
    """Return whether a product counts differing bits. Raises InvalidPtx for .and, .xor or .popc out of place."""
    counted = [m for m in o.modifiers if m in BITWISE.split()]
    if counted not in ([["and", "popc"], ["xor", "popc"]] if kind == "b1" else [[]]):
        raise w.refuse("products of bits, and no others, have .and.popc or .xor.popc")
    if kind == "b1" and o.has("satfinite"):
        raise w.refuse("modifier .satfinite")
    return counted[:1] == ["xor"]


@emits("mma", 4, f"sync aligned row col satfinite {BITWISE} {' '.join(_MMA_SHAPES)}", _MMA_TYPES)
def _multiply_mma(w: Writer, o: Operation) -> None:
    """D = A * B + C: the modifiers are the shape and .row.col, the types those of D, A, B and C."""
    shape = o.one_of(*_MMA_SHAPES)
    layout = [m for m in o.modifiers if m in ("row", "col")]
    if len(o.types) != 4 or layout != ["row", "col"] or not (o.has("sync") and o.has("aligned")):
        raise w.refuse()
    d, a, b, c = o.types
    alike = a == b or any({a, b} == mixed for mixed in MIXED)
    if d != c or not alike or shape not in MULTIPLIED.get((a, c), ()) or (o.has("satfinite") and c != "s32"):
        raise w.refuse("this shape of these types")
    size = size_of(shape)
    kinds = (a, b, c, d)
    given = [registers(w, x, m, size, kind) for x, m, kind in zip(o.operands[1:], "abc", kinds, strict=False)]
    name = w.name()
    options = f"{size}, {kinds}, {o.has('satfinite')}, {', '.join(given)}, {differ_of(w, o, a)}"
    w.lines.append(f"{name} = multiply_matrices(B, T, {options})")
    assign_all(w, items(w, o.operands[0], fragment_of("d", size, d).registers), name, ACCUMULATED[d])


def assign_all(w: Writer, targets: tuple[Argument, ...], name: str, dtype: DType) -> None:
    """Write the assignment of the list `name`, one result to each of the targets."""
    results = [w.keep(f"{name}[{index}]") for index in range(len(targets))]
    for target, result in zip(targets, results, strict=True):
        w.assign(target, result, dtype)


_TRANSFER = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"


def _count_matrices(w: Writer, o: Operation) -> int:
    number = o.one_of("x1", "x2", "x4")
    if not (number and o.has("m8n8") and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    return int(number[1:])


def place_of(w: Writer, o: Operation, memory: Argument) -> tuple[str, str]:
    """Return the state space and the address of a memory operand."""
    return o.one_of("global", "shared", "shared::cta").split("::")[0] or "generic", address_of(w, memory)


@emits("ldmatrix", 2, _TRANSFER, ("b16",))
def _load(w: Writer, o: Operation) -> None:
    count = _count_matrices(w, o)
    targets = items(w, o.operands[0], count)
    space, address = place_of(w, o, o.operands[1])
    name = w.name()
    w.lines.append(f"{name} = load_matrices(B, T, {space!r}, {address}, {count}, {o.has('trans')})")
    assign_all(w, targets, name, U32)


@emits("stmatrix", 2, _TRANSFER, ("b16",))
def _store(w: Writer, o: Operation) -> None:
    values = [w.value(item, U32) for item in items(w, o.operands[1], _count_matrices(w, o))]
    space, address = place_of(w, o, o.operands[0])
    w.lines.append(f"store_matrices(B, T, {space!r}, {address}, ({', '.join(values)},), {o.has('trans')})")


@emits("movmatrix", 2, "sync aligned m8n8 trans", ("b16",))
def _transpose(w: Writer, o: Operation) -> None:
    if set(o.modifiers) != {"sync", "aligned", "m8n8", "trans"}:
        raise w.refuse()
    w.assign(o.operands[0], w.keep(f"transpose_matrix(B, T, {w.value(o.operands[1], U32)})"), U32)


_WMMA_SHAPES: Final = ("m16n16k16", "m32n8k16", "m8n32k16")
WARP_PRODUCTS: Final = {
    ("f16", "f16"): _WMMA_SHAPES,
    ("f16", "f32"): _WMMA_SHAPES,
    ("bf16", "f32"): _WMMA_SHAPES,
    ("tf32", "f32"): ("m16n16k8",),
    ("s8", "s32"): _WMMA_SHAPES,
    ("u8", "s32"): _WMMA_SHAPES,
    ("f64", "f64"): ("m8n8k4",),
    ("b1", "s32"): ("m8n8k128",),
}
"""Shapes by the types of A and B, and of C or D."""
_WMMA_SHAPE_NAMES: Final = sorted({shape for shapes in WARP_PRODUCTS.values() for shape in shapes})
_WMMA_TYPES: Final = sorted({kind for types in WARP_PRODUCTS for kind in types})
_HALF_REGISTERS: Final = 8
"""The registers of a fragment of A or B of f16, whatever its shape: the first are repeated."""
_WMMA_MODIFIERS: Final = (
    "load store mma a b c d sync aligned row col rn satfinite global shared shared::cta "
    f"{BITWISE} {' '.join(_WMMA_SHAPE_NAMES)}"
)


@emits("wmma", (2, 4), _WMMA_MODIFIERS, _WMMA_TYPES)
def _warp_instruction(w: Writer, o: Operation) -> None:
    shape = o.one_of(*_WMMA_SHAPE_NAMES)
    if not (shape and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    if o.has("mma"):
        _multiply_wmma(w, o, shape)
    else:
        _transfer_wmma(w, o, shape)


def _count_wmma_registers(matrix: str, size: Shape, kind: str) -> int:
    """Return the number of registers that the instructions have for a fragment."""
    if kind == "f16" and matrix in ("a", "b"):
        return _HALF_REGISTERS
    return fragment_of(matrix, size, kind).registers


def _transfer_wmma(w: Writer, o: Operation, shape: str) -> None:
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
    targets, distinct = (
        items(w, fragment, _count_wmma_registers(matrix, size, o.type)),
        fragment_of(matrix, size, o.type).registers,
    )
    for first in range(0, len(targets), distinct):
        assign_all(w, targets[first : first + distinct], name, dtype)


def _length(matrix: str, size: Shape, by_columns: bool) -> int:
    """Return the elements of a row, or of a column."""
    m, n, k = size
    rows, columns = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    return rows if by_columns else columns


def _multiply_wmma(w: Writer, o: Operation, shape: str) -> None:
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
    every = items(w, argument, _count_wmma_registers(matrix, size, kind))
    return Group(every[: fragment_of(matrix, size, kind).registers])


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
_WGMMA_SHAPES: Final = {f"m64n{n}k{k}" for k, every in GROUP_PRODUCTS.values() for n in every}
_WGMMA_TYPES: Final = sorted({kind for types in GROUP_PRODUCTS for kind in types})
_WGMMA_OPERANDS: Final = {"mma_async": (4, 9), "fence": (0, 0), "commit_group": (0, 0), "wait_group": (1, 1)}


@emits(
    "wgmma",
    (0, 9),
    f"mma_async fence commit_group wait_group sync aligned satfinite {' '.join(_WGMMA_SHAPES)}",
    _WGMMA_TYPES,
)
def _group_instruction(w: Writer, o: Operation) -> None:
    action = o.one_of(*_WGMMA_OPERANDS)
    if not (action and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    low, high = _WGMMA_OPERANDS[action]
    if not low <= len(o.operands) <= high:
        raise w.refuse(f"{len(o.operands)} operands")
    if action == "mma_async":
        _multiply_wgmma(w, o)


def _multiply_wgmma(w: Writer, o: Operation) -> None:
    """D = A * B + D: the types are those of D, A and B; A is a fragment or a descriptor, B a descriptor."""
    shape = o.one_of(*_WGMMA_SHAPES)
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
