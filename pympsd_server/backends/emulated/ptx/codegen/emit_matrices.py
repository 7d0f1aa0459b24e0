"""Matrices of warps: mma, ldmatrix, stmatrix, movmatrix. All lanes of the warp have met when the block begins."""

from __future__ import annotations

import re

from pympsd_server.backends.emulated.ptx.codegen.emission import emits
from pympsd_server.backends.emulated.ptx.codegen.emit_async import address_of
from pympsd_server.backends.emulated.ptx.codegen.writer import Writer
from pympsd_server.backends.emulated.ptx.datatypes import F32, F64, S32, U32, DType
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Group, Operation
from pympsd_server.backends.emulated.ptx.matrices.fragments import Shape, fragment_of

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
_SHAPES = sorted({shape for shapes in MULTIPLIED.values() for shape in shapes})
_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64", "f32", "s32", "b1")
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


@emits("mma", 4, f"sync aligned row col satfinite {BITWISE} {' '.join(_SHAPES)}", _TYPES)
def _multiply(w: Writer, o: Operation) -> None:
    """D = A * B + C: the modifiers are the shape and .row.col, the types those of D, A, B and C."""
    shape = o.one_of(*_SHAPES)
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


def _count(w: Writer, o: Operation) -> int:
    number = o.one_of("x1", "x2", "x4")
    if not (number and o.has("m8n8") and o.has("sync") and o.has("aligned")):
        raise w.refuse()
    return int(number[1:])


def place_of(w: Writer, o: Operation, memory: Argument) -> tuple[str, str]:
    """Return the state space and the address of a memory operand."""
    return o.one_of("global", "shared", "shared::cta").split("::")[0] or "generic", address_of(w, memory)


@emits("ldmatrix", 2, _TRANSFER, ("b16",))
def _load(w: Writer, o: Operation) -> None:
    count = _count(w, o)
    targets = items(w, o.operands[0], count)
    space, address = place_of(w, o, o.operands[1])
    name = w.name()
    w.lines.append(f"{name} = load_matrices(B, T, {space!r}, {address}, {count}, {o.has('trans')})")
    assign_all(w, targets, name, U32)


@emits("stmatrix", 2, _TRANSFER, ("b16",))
def _store(w: Writer, o: Operation) -> None:
    values = [w.value(item, U32) for item in items(w, o.operands[1], _count(w, o))]
    space, address = place_of(w, o, o.operands[0])
    w.lines.append(f"store_matrices(B, T, {space!r}, {address}, ({', '.join(values)},), {o.has('trans')})")


@emits("movmatrix", 2, "sync aligned m8n8 trans", ("b16",))
def _transpose(w: Writer, o: Operation) -> None:
    if set(o.modifiers) != {"sync", "aligned", "m8n8", "trans"}:
        raise w.refuse()
    w.assign(o.operands[0], w.keep(f"transpose_matrix(B, T, {w.value(o.operands[1], U32)})"), U32)
