"""Write products of matrices: mma, wmma and wgmma, and the loads and stores of their fragments.

The registers of a warp's lanes contain a matrix in parts, called *fragments* (ptx/matrices/fragments.py). When the
block begins, all lanes of the warp (for wgmma, of the group's four warps) have met. So an emitter writes one call
that gathers the fragments of all warps into matrices, multiplies these, and scatters the result:

- mma: the fragments are as in the PTX ISA's figures. ldmatrix, stmatrix and movmatrix load, store and transpose them.
- wmma: the PTX ISA does not specify the fragments; here they are the same as for mma.
- wgmma: A is in registers or shared memory, B in shared memory; descriptors state where. The product is complete when
  it is issued, so fences and waits write nothing.
"""

import re
from typing import Final

from pympsd_server.ptx.isa.datatypes import BOOL, F32, F64, S32, U32, U64, DType
from pympsd_server.ptx.lowering.ir import Argument, Group, Operation, items_of, space_of
from pympsd_server.ptx.matrices.fragments import Shape, fragment_of
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer
from pympsd_server.ptx.syntax.tree import Immediate

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_HALVES = ("f16", "f16"), ("f16", "f32"), ("bf16", "f32")
_SMALL = ("e4m3", "f32"), ("e5m2", "f32"), ("e4m3", "f16"), ("e5m2", "f16")
_BYTES = ("s8", "s32"), ("u8", "s32")
"""Pairs of the types of A and C that have the same shapes."""
MULTIPLIED = {
    **dict.fromkeys(_HALVES, ("m16n8k8", "m16n8k16")),
    ("tf32", "f32"): ("m16n8k4", "m16n8k8"),
    **dict.fromkeys(_SMALL, ("m16n8k16", "m16n8k32")),
    **dict.fromkeys(_BYTES, ("m8n8k16", "m16n8k16", "m16n8k32")),
    ("f64", "f64"): ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    ("b1", "s32"): ("m8n8k128", "m16n8k128", "m16n8k256"),
}
"""The shapes of mma, by the types of A and C."""
ACCUMULATED: dict[str, DType] = {"f16": U32, "f32": F32, "s32": S32, "f64": F64}
MIXED = ({"s8", "u8"}, {"e4m3", "e5m2"})
_MMA_SHAPES = sorted({shape for shapes in MULTIPLIED.values() for shape in shapes})
_MMA_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64", "f32", "s32", "b1")
BITWISE = "and xor popc"
"""The modifiers of products of bits: .and.popc or .xor.popc."""


def size_of(shape: str) -> Shape:
    """Return M, N and K of a valid shape such as m16n8k16."""
    match = SHAPE.fullmatch(shape)
    assert match is not None
    m, n, k = (int(number) for number in match.groups())
    return m, n, k


def fragment(writer: Writer, argument: Argument, count: int) -> tuple[Argument, ...]:
    """Return the `count` registers of an operand that is a fragment. Raises InvalidPtx for other counts."""
    why = f"a fragment of {count} registers is needed, not of {len(items_of(argument))}"
    return writer.items(argument, count, why)


def registers(writer: Writer, argument: Argument, matrix: str, size: Shape, kind: str) -> str:
    """Return the text of a tuple with the values of a fragment; `matrix` is a, b, c or d."""
    dtype = F64 if kind == "f64" else ACCUMULATED[kind] if matrix in ("c", "d") else U32
    return writer.tuple_of(fragment(writer, argument, fragment_of(matrix, size, kind).registers), dtype)


def counts_differences(writer: Writer, operation: Operation, kind: str) -> bool:
    """Return whether a product counts differing bits. Raises InvalidPtx for misplaced .and, .xor or .popc."""
    counted = [m for m in operation.modifiers if m in BITWISE.split()]
    writer.refuse_if(
        counted not in ([["and", "popc"], ["xor", "popc"]] if kind == "b1" else [[]]),
        "products of bits, and no others, have .and.popc or .xor.popc",
    )
    writer.refuse_if(kind == "b1" and operation.has("satfinite"), "modifier .satfinite")
    return counted[:1] == ["xor"]


@emits("mma", 4, f"sync aligned row col satfinite {BITWISE} {' '.join(_MMA_SHAPES)}", _MMA_TYPES)
def _multiply_mma(writer: Writer, operation: Operation) -> None:
    """Write mma: D = A * B + C. The modifiers are the shape and .row.col; the types are of D, A, B and C."""
    shape = operation.one_of(*_MMA_SHAPES)
    layout = [m for m in operation.modifiers if m in ("row", "col")]
    writer.refuse_if(
        len(operation.types) != 4
        or layout != ["row", "col"]
        or not (operation.has("sync") and operation.has("aligned"))
    )
    d, a, b, c = operation.types
    alike = a == b or any({a, b} == mixed for mixed in MIXED)
    writer.refuse_if(
        d != c or not alike or shape not in MULTIPLIED.get((a, c), ()) or (operation.has("satfinite") and c != "s32"),
        "this shape of these types",
    )
    size, kinds = size_of(shape), (d, a, b, c)
    operands = zip(operation.inputs, "abc", kinds[1:], strict=True)
    _write_product(writer, operation, size, [registers(writer, x, m, size, kind) for x, m, kind in operands], kinds)


def _write_product(
    writer: Writer, operation: Operation, size: Shape, fragments: list[str], kinds: tuple[str, str, str, str]
) -> None:
    """Write D = A * B + C. `fragments` are tuples of the values of A, B and C, `kinds` the types of D, A, B and C."""
    d, a, b, c = kinds
    differ = counts_differences(writer, operation, a)
    options = f"{size}, {(a, b, c, d)}, {operation.has('satfinite')}, {', '.join(fragments)}, {differ}"
    name = writer.keep(f"multiply_matrices(B, T, {options})")
    targets = fragment(writer, operation.operands[0], fragment_of("d", size, d).registers)
    assign_all(writer, targets, name, ACCUMULATED[d])


def assign_all(writer: Writer, targets: tuple[Argument, ...], name: str, dtype: DType) -> None:
    """Write the assignment of each element of the list `name` to its target."""
    results = [writer.keep(f"{name}[{index}]") for index in range(len(targets))]
    for target, result in zip(targets, results, strict=True):
        writer.assign(target, result, dtype)


_TRANSFER = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"


def _count_matrices(writer: Writer, operation: Operation) -> int:
    number = operation.one_of("x1", "x2", "x4")
    writer.refuse_if(not (number and operation.has("m8n8") and operation.has("sync") and operation.has("aligned")))
    return int(number[1:])


@emits("ldmatrix", 2, _TRANSFER, ("b16",))
def _load(writer: Writer, operation: Operation) -> None:
    count = _count_matrices(writer, operation)
    targets = fragment(writer, operation.operands[0], count)
    space, address = space_of(operation), writer.address_of(operation.operands[1])
    name = writer.keep(f"load_matrices(B, T, {space!r}, {address}, {count}, {operation.has('trans')})")
    assign_all(writer, targets, name, U32)


@emits("stmatrix", 2, _TRANSFER, ("b16",))
def _store(writer: Writer, operation: Operation) -> None:
    values = writer.tuple_of(fragment(writer, operation.operands[1], _count_matrices(writer, operation)), U32)
    space, address = space_of(operation), writer.address_of(operation.operands[0])
    writer.run(f"store_matrices(B, T, {space!r}, {address}, {values}, {operation.has('trans')})")


@emits("movmatrix", 2, "sync aligned m8n8 trans", ("b16",))
def _transpose(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(set(operation.modifiers) != {"sync", "aligned", "m8n8", "trans"})
    writer.set_result(writer.keep(f"transpose_matrix(B, T, {writer.input(1, U32)})"), U32)


_WMMA_SHAPES: Final = ("m16n16k16", "m32n8k16", "m8n32k16")
WARP_PRODUCTS: Final = {
    **dict.fromkeys((*_HALVES, *_BYTES), _WMMA_SHAPES),
    ("tf32", "f32"): ("m16n16k8",),
    ("f64", "f64"): ("m8n8k4",),
    ("b1", "s32"): ("m8n8k128",),
}
"""The shapes of wmma, by the type of A and B and the type of C or D."""
_WMMA_SHAPE_NAMES: Final = sorted({shape for shapes in WARP_PRODUCTS.values() for shape in shapes})
_WMMA_TYPES: Final = sorted({kind for types in WARP_PRODUCTS for kind in types})
_HALF_REGISTERS: Final = 8
"""The number of registers of a fragment of A or B of f16. In shapes that need fewer, the first ones are repeated."""
_WMMA_MODIFIERS: Final = (
    "load store mma a b c d sync aligned row col rn satfinite global shared shared::cta "
    f"{BITWISE} {' '.join(_WMMA_SHAPE_NAMES)}"
)


@emits("wmma", (2, 4), _WMMA_MODIFIERS, _WMMA_TYPES)
def _warp_instruction(writer: Writer, operation: Operation) -> None:
    shape = operation.one_of(*_WMMA_SHAPE_NAMES)
    writer.refuse_if(not (shape and operation.has("sync") and operation.has("aligned")))
    if operation.has("mma"):
        _multiply_wmma(writer, operation, shape)
    else:
        _transfer_wmma(writer, operation, shape)


def _count_wmma_registers(matrix: str, size: Shape, kind: str) -> int:
    """Return the number of registers that wmma instructions name for a fragment."""
    if kind == "f16" and matrix in ("a", "b"):
        return _HALF_REGISTERS
    return fragment_of(matrix, size, kind).registers


def _transfer_wmma(writer: Writer, operation: Operation, shape: str) -> None:
    """Write wmma.load or wmma.store: a fragment, an address, perhaps the stride of rows or columns in elements."""
    matrix, layout = operation.one_of("a", "b", "c", "d"), operation.one_of("row", "col")
    stored = operation.has("store")
    writer.refuse_if(
        not (layout and matrix)
        or (matrix == "d") != stored
        or operation.has("load") == stored
        or len(operation.operands) > 3
    )
    kinds = {types[matrix in ("c", "d")] for types, shapes in WARP_PRODUCTS.items() if shape in shapes}
    writer.refuse_if(len(operation.types) != 1 or operation.type not in kinds, "this shape of this type")
    writer.refuse_if(
        operation.type == "b1" and (matrix, layout) not in (("a", "row"), ("b", "col")),
        "of bits, A is loaded by rows and B by columns",
    )
    size, by_columns = size_of(shape), layout == "col"
    matrix_operand, memory = operation.operands[:2][::-1] if stored else operation.operands[:2]
    space, address = space_of(operation), writer.address_of(memory)
    stride = (
        writer.input(2, U32)
        if len(operation.operands) == 3
        else writer.scalar(line_length(matrix, size, by_columns), U32)
    )
    place, form = f"MatrixPlace({space!r}, {address}, {stride}, {by_columns})", f"{size}, {operation.type!r}"
    if stored:
        values = registers(writer, matrix_operand, "d", size, operation.type)
        writer.run(f"store_fragment(B, T, {place}, {form}, {values}, {writer.guard})")
        return
    name = writer.keep(f"load_fragment(B, T, {place}, {matrix!r}, {form}, {writer.guard})")
    dtype = F64 if operation.type == "f64" else ACCUMULATED[operation.type] if matrix == "c" else U32
    targets = fragment(writer, matrix_operand, _count_wmma_registers(matrix, size, operation.type))
    distinct = fragment_of(matrix, size, operation.type).registers
    for first in range(0, len(targets), distinct):
        assign_all(writer, targets[first : first + distinct], name, dtype)


def line_length(matrix: str, size: Shape, by_columns: bool) -> int:
    """Return how many elements a matrix's row has, or with `by_columns` its column."""
    m, n, k = size
    rows, columns = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    return rows if by_columns else columns


def _multiply_wmma(writer: Writer, operation: Operation, shape: str) -> None:
    """Write wmma.mma. The types are of D, A, B and C, or only of D and C if A and B are of f16."""
    writer.refuse_if(len(operation.types) not in (2, 4) or len(operation.operands) != 4)
    d, a, b, c = (
        operation.types if len(operation.types) == 4 else (operation.types[0], "f16", "f16", operation.types[1])
    )
    is_product = all(shape in WARP_PRODUCTS.get((a, sums), ()) for sums in (c, d))
    layouts = [m for m in operation.modifiers if m in ("row", "col")]
    writer.refuse_if(
        a != b or not is_product or len(layouts) != 2 or (a == "b1" and layouts != ["row", "col"]),
        "this shape of these types",
    )
    writer.refuse_if((len(operation.types) == 2) != (a == "f16") or (operation.has("satfinite") and d != "s32"))
    size = size_of(shape)
    left, right = (_distinct(writer, x, m, size, a) for x, m in zip(operation.operands[1:3], "ab", strict=True))
    operands = ((left, "a", a), (right, "b", b), (operation.operands[3], "c", c))
    _write_product(
        writer, operation, size, [registers(writer, x, m, size, kind) for x, m, kind in operands], (d, a, b, c)
    )


def _distinct(writer: Writer, argument: Argument, matrix: str, size: Shape, kind: str) -> Argument:
    """Return a fragment of A or B without its repeated registers."""
    every = fragment(writer, argument, _count_wmma_registers(matrix, size, kind))
    return Group(every[: fragment_of(matrix, size, kind).registers])


ALL_N: Final = tuple(range(8, 257, 8))
INTEGER_N: Final = (8, 16, 24, *range(32, 257, 16))
GROUP_PRODUCTS: Final = {
    **dict.fromkeys(_HALVES, (16, ALL_N)),
    ("tf32", "f32"): (8, ALL_N),
    **dict.fromkeys(_SMALL, (32, ALL_N)),
    **dict.fromkeys(_BYTES, (32, INTEGER_N)),
}
"""K and all values of N of the shapes m64nNkK, by the types of A and D."""
_WGMMA_SHAPES: Final = {f"m64n{n}k{k}" for k, every in GROUP_PRODUCTS.values() for n in every}
_WGMMA_TYPES: Final = sorted({kind for types in GROUP_PRODUCTS for kind in types})
_WGMMA_OPERANDS: Final = {"mma_async": (4, 9), "fence": (0, 0), "commit_group": (0, 0), "wait_group": (1, 1)}


@emits(
    "wgmma",
    (0, 9),
    f"mma_async fence commit_group wait_group sync aligned satfinite {' '.join(_WGMMA_SHAPES)}",
    _WGMMA_TYPES,
)
def _group_instruction(writer: Writer, operation: Operation) -> None:
    action = operation.one_of(*_WGMMA_OPERANDS)
    writer.refuse_if(not (action and operation.has("sync") and operation.has("aligned")))
    low, high = _WGMMA_OPERANDS[action]
    writer.refuse_count_if(not low <= len(operation.operands) <= high)
    if action == "mma_async":
        _multiply_wgmma(writer, operation)


def _multiply_wgmma(writer: Writer, operation: Operation) -> None:
    """Write wgmma: D = A * B + D. The types are of D, A and B. A is a fragment or a descriptor, B a descriptor."""
    shape = operation.one_of(*_WGMMA_SHAPES)
    writer.refuse_if(len(operation.types) != 3 or not shape)
    d, a, b = operation.types
    size, alike = size_of(shape), a == b or {a, b} in MIXED
    k, every = GROUP_PRODUCTS.get((a, d), (0, ()))
    writer.refuse_if(
        not alike or size[2] != k or size[1] not in every or (operation.has("satfinite") and d != "s32"),
        "this shape of these types",
    )
    in_registers = isinstance(operation.operands[1], Group)
    signs, transposed = _choices(writer, operation.operands[4:], a, in_registers)
    rows = (16, size[1], k)
    left = registers(writer, operation.operands[1], "a", rows, a) if in_registers else f"({writer.input(1, U64)},)"
    right, sums = writer.input(2, U64), registers(writer, operation.operands[0], "d", rows, d)
    accumulate = writer.input(3, BOOL)
    name = writer.keep(
        f"multiply_in_groups(B, T, {size}, {(a, b, d)}, {operation.has('satfinite')}, {signs}, {transposed}, "
        f"{left}, {right}, {sums}, {accumulate}, {writer.guard})"
    )
    assign_all(
        writer, fragment(writer, operation.operands[0], fragment_of("d", rows, d).registers), name, ACCUMULATED[d]
    )


def _choices(
    writer: Writer, operands: tuple[Argument, ...], kind: str, in_registers: bool
) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """Return the signs of A and B, and whether each is MN-major. Raises InvalidPtx for operands that `kind` lacks."""
    halves = kind in ("f16", "bf16")
    count = 0 if kind in ("s8", "u8") else 2 + (2 - in_registers if halves else 0)
    values = [item.value for item in operands if isinstance(item, Immediate)]
    writer.refuse_if(
        len(values) != len(operands) or len(values) != count,
        f"{count} immediate operands are needed after the predicate",
    )
    signs, transposed = values[:2] or [1, 1], values[2:]
    writer.refuse_if(
        not {*signs} <= {1, -1} or not {*transposed} <= {0, 1},
        "a scale that is not 1 or -1, or a transposition that is not 0 or 1",
    )
    transposed = [0] * (2 - len(transposed)) + transposed
    return (signs[0], signs[1]), (bool(transposed[0]), bool(transposed[1]))
