"""Write products of the matrices in a warp's registers (mma, wmma), their loads and stores, and cp.async.

For each combination of shape and types, the kernel's module has a function that computes the product. Its arguments
are the fragments, as arrays of registers:

    A: register 0 of lanes 0 to 31, register 1 ...   |   B   |   C   |   D

The arrays are in the bank (fragment_bank.py), or copies are in %fragments. Absent lanes may have any values, because
PTX does not define the instruction with them.

A block of A has 8 rows of 4 * `packed` elements, one register of each lane; a block of B has 8 such columns
(matrices/fragments.py). The function converts both to doubles, B transposed, and adds the products in the order of k:

    for each block of 8 by 8 of D:  8 sums, each a vector of the 8 columns
        for each k:  sum[row] = fma(A[row, k], B[k, 0 to 7], sum[row])

Products of all types except f64 are exact in doubles. So sums are rounded once, at the end, as in the NumPy tier,
which adds in the same order. Fragments and products of bits (b1) escape.

In loads and stores of fragments each lane has an address, nearly always the same one. C functions copy the fragment
in pieces (kernel_memory.c), which a table describes in the order of the registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import numpy as np
from attrs import field, frozen

from pympsd_server.ptx.compiled_tier.ir_text import Shape as Lanes
from pympsd_server.ptx.compiled_tier.ir_text import Text, sequence
from pympsd_server.ptx.compiled_tier.native_runtime import SPACE_NUMBERS
from pympsd_server.ptx.compiled_tier.text.expressions import Expression
from pympsd_server.ptx.compiled_tier.text.instruction_table import writes
from pympsd_server.ptx.compiled_tier.text.lanes import BITS
from pympsd_server.ptx.compiled_tier.text.memory_text import FRAGMENT_BYTES, MemoryText
from pympsd_server.ptx.compiled_tier.text.warp_forms import arrive, count_arrivals
from pympsd_server.ptx.isa.datatypes import F16, F32, F64, U16, U32, Array, Value
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.lowering.ir import Argument, Memory, Not, Operation, Register, Sink, items_of, space_of
from pympsd_server.ptx.math.floats import canonicalize
from pympsd_server.ptx.matrices.fragments import Fragment, Shape, fragment_of
from pympsd_server.ptx.matrices.multiply import STORED
from pympsd_server.ptx.numpy_tier.emit_matrices import SHAPE, line_length, size_of
from pympsd_server.ptx.syntax.tree import Immediate

_AREA: Final = FRAGMENT_BYTES // 4
"""The maximum size of a fragment in all lanes together, in bytes."""
_REGISTER_TYPES: Final = {"f64": "f64", "f32": "f32", "s32": "s32"}
_ROW: Final = Lanes(8)
_CHUNK: Final = 16
_DOUBLE_BYTES: Final = 8
_TRANSPOSED: Final = "<64 x i32> <" + ", ".join(f"i32 {8 * (k % 8) + k // 8}" for k in range(64)) + ">"
_WORDS: Final = f"<{WARP} x i32>"
_HALVES: Final = f"<{2 * WARP} x i16>"


# --- products


def _size(operation: Operation) -> Shape:
    return size_of(next(m for m in operation.modifiers if SHAPE.fullmatch(m)))


def _register_type(matrix: str, kind: str) -> str:
    """Return the type of a fragment's registers."""
    return _REGISTER_TYPES.get(kind, "b32") if matrix in "cd" or kind == "f64" else "b32"


@writes("mma")
def _multiply(text: MemoryText, operation: Operation) -> None:
    """Write D = A * B + C. The types are of D, A, B and C, or for wmma of f16 only of D and C."""
    types = operation.types
    d, a, b, c = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    text.refuse_if(text.width != WARP, "width")
    text.refuse_if(a == "b1")
    size, kinds = _size(operation), (a, b, c, d)
    areas = [
        _put(text, operand, index * _AREA, fragment_of(matrix, size, kind), _register_type(matrix, kind))
        for index, (matrix, operand, kind) in enumerate(zip("abc", operation.operands[1:], kinds[:3], strict=True))
    ]
    name, function, declared = _product(size, kinds, operation.has("satfinite"))
    text.declared |= declared
    if function not in text.tables:
        text.tables.append(function)
    fragment = fragment_of("d", size, d)
    target, sums = (items_of(operand) for operand in operation.operands[::3])
    # The function writes blocks of D before it reads later blocks of C.
    overlaps = target != sums and not set(target).isdisjoint(sums)
    areas.append(_area_of(text, operation.operands[0], 3 * _AREA, fragment, can_use_bank=not overlaps))
    text.line(f"call void @{name}({', '.join(f'ptr {area}' for area in areas)})")
    _take(text, operation.operands[0], areas[3], fragment, _register_type("d", d))


def _area_of(text: MemoryText, operand: Argument, area: int, fragment: Fragment, *, can_use_bank: bool = True) -> str:
    """Return a pointer to an operand's registers in the bank, or to the area to which they must be copied."""
    items = items_of(operand)[: fragment.registers]
    places = [text.bank.get(item.number) if isinstance(item, Register) else None for item in items]
    first = places[0] if can_use_bank else None
    if first is not None:
        nbytes = WARP * text.register_bits(_number_of(items[0])) // 8
        if places == list(range(first, first + nbytes * len(places), nbytes)):
            return f"%b{first}"
    text.needs_fragments = True
    return text.field("%fragments", area)


def _number_of(item: Argument) -> int:
    assert isinstance(item, Register)
    return item.number


def _put(text: MemoryText, operand: Argument, area: int, fragment: Fragment, type_name: str) -> str:
    """Return a pointer to an operand's registers in memory: in the bank, or in an area to which they are copied."""
    pointer = _area_of(text, operand, area, fragment)
    if pointer.startswith("%b"):
        return pointer
    bits = BITS[type_name]
    for index, item in enumerate(items_of(operand)[: fragment.registers]):
        value = text.use(item, type_name, text.vector)
        text.store(text.vector.of(f"i{bits}"), value, text.field(pointer, index * WARP * bits // 8))
    return pointer


def _take(text: MemoryText, operand: Argument, pointer: str, fragment: Fragment, type_name: str) -> None:
    """Load the registers of an operand from memory. If there are more than the fragment has, they repeat it."""
    is_there = pointer.startswith("%b")
    bits = BITS[type_name]
    for index, item in enumerate(items_of(operand)):
        if is_there and index < fragment.registers:
            continue
        place = text.field(pointer, index % fragment.registers * WARP * bits // 8)
        text.assign(item, text.load(text.vector.of(f"i{bits}"), place), type_name, text.vector)


@lru_cache(maxsize=64)
def _product(size: Shape, kinds: tuple[str, str, str, str], saturates: bool) -> tuple[str, str, frozenset[str]]:
    """Return the name and text of a product's function, and the declarations that it needs."""
    m, n, k = size
    name = f"product_{m}_{n}_{k}_{'_'.join(kinds)}" + "_saturated" * saturates
    writer = _ProductText(size, kinds, saturates)
    writer.write()
    head = f"define internal void @{name}(ptr %a, ptr %b, ptr %c, ptr %d) #1 {{"
    return name, "\n".join([head, "entry:", *writer.text.lines, "}"]), frozenset(writer.text.declared)


@frozen
class _ProductText:
    """The writer of a product's function."""

    size: Shape
    kinds: tuple[str, str, str, str]
    """The types of A, B, C and D."""
    saturates: bool
    text: Text = field(factory=Text, init=False)

    @property
    def _width(self) -> int:
        """The number of elements along k that a register has, in four lanes together."""
        return 4 * max(1, 4 // STORED[self.kinds[0]].itemsize)

    def write(self) -> None:
        """Write the function's body."""
        text, (m, n, k) = self.text, self.size
        for name, count in (("left", m * k), ("right", k * n)):
            text.line(f"%{name} = alloca [{count} x double], align 64")
        raw = f"i{8 * STORED[self.kinds[1]].itemsize}"
        self._convert("%a", "%left", m * k, self.kinds[0], per_block=False, raw=raw)
        self._convert("%b", "%right", k * n, self.kinds[1], per_block=True, raw=raw)
        self._write_blocks(m // 8, n // 8, k // self._width)
        text.line("ret void")

    def _convert(self, source: str, target: str, count: int, kind: str, *, per_block: bool, raw: str) -> None:
        """Write the conversion of the elements of A or B; `per_block` transposes each block, for B."""
        text, block = self.text, 8 * self._width
        nbytes = int(raw[1:]) // 8
        step = block if per_block else min(_CHUNK, count)
        shape = Lanes(step)
        with self._loop("convert", count, step) as (at, _, _):
            place = text.value(f"getelementptr i8, ptr {source}, i64 {text.op('mul', 'i64', at, str(nbytes))}")
            values = text.load(shape.of(raw), place, 1)
            if per_block:
                order = ", ".join(f"i32 {i * self._width + j}" for j in range(self._width) for i in range(8))
                values = text.value(
                    f"shufflevector {shape.of(raw)} {values}, {shape.of(raw)} poison, <{step} x i32> <{order}>"
                )
            for first in range(0, step, _CHUNK):
                part, count_now = values, min(_CHUNK, step)
                chunk = Lanes(count_now)
                if step > _CHUNK:
                    picked = sequence(_CHUNK, "i32", 1, first)
                    part = text.value(
                        f"shufflevector {shape.of(raw)} {values}, {shape.of(raw)} poison, {chunk.of('i32')} {picked}"
                    )
                number = self._number(part, raw, kind, chunk)
                where = text.op("mul", "i64", text.op("add", "i64", at, str(first)), str(_DOUBLE_BYTES))
                place = text.value(f"getelementptr i8, ptr {target}, i64 {where}")
                text.store(chunk.of("double"), number, place, 8)

    def _number(self, value: str, raw: str, kind: str, shape: Lanes) -> str:
        """Convert elements of A or B to doubles."""
        text = self.text
        if kind == "f64":
            return text.cast("bitcast", value, shape.of(raw), shape.of("double"))
        if kind in ("s8", "u8"):
            return text.cast(f"{kind[0]}itofp", value, shape.of(raw), shape.of("double"))
        bits = Expression(text, shape, np.dtype(f"u{int(raw[1:]) // 8}"), value)
        if kind in ("bf16", "tf32"):
            wide: Expression = bits.astype(U32) << 16 if kind == "bf16" else bits & 0xFFFFE000
            return wide.view(F32).astype(F64).name
        half: Expression = (bits if kind == "f16" else self._widen_to_half(bits, kind)).view(F16)
        double = half.astype(F32).astype(F64)
        double = double * 256.0 if kind == "e4m3" else double
        return double.name

    def _widen_to_half(self, bits: Expression, kind: str) -> Value:
        """Convert small floats to halves. e4m3 becomes 1/256 of its value, because a half has 8 more bias."""
        wide = bits.astype(U16)
        if kind == "e5m2":
            return wide << 8
        size, sign = wide & 0x7F, (wide & 0x80) << 8
        return (size == 0x7F).choose(0x7E00, size << 7) | sign

    def _write_blocks(self, down: int, across: int, steps: int) -> None:
        """Write the loop over the blocks of D, and in it the loop over k."""
        text, width, nbytes = self.text, self._width, _DOUBLE_BYTES
        kind, adds_last = _ROW.of("double"), self.kinds[0] != "f64"
        with self._loop("block", down * across) as (block, _, _):
            row, column = text.op("urem", "i64", block, str(down)), text.op("udiv", "i64", block, str(down))
            start = self._accumulators(block)
            ends = [f"%{text.label('sum')}" for _ in range(8)]
            with self._loop("sums", steps) as (step, before, last):
                sums = [
                    text.phi(kind, ("zeroinitializer" if adds_last else first, before), (end, last))
                    for first, end in zip(start, ends, strict=True)
                ]
                places = []
                for base, count, index in (("%left", down, row), ("%right", across, column)):
                    number = text.op("add", "i64", text.op("mul", "i64", step, str(count)), index)
                    number = text.op("mul", "i64", number, str(8 * width * nbytes))
                    places.append(text.value(f"getelementptr i8, ptr {base}, i64 {number}"))
                for j in range(width):
                    right = text.load(kind, text.field(places[1], 8 * j * nbytes), 8)
                    for i in range(8):
                        left = text.load("double", text.field(places[0], (i * width + j) * nbytes))
                        left = text.splat(left, "double", _ROW)
                        sums[i] = text.intrinsic("fma", "double", _ROW, left, right, sums[i])
                for end, value in zip(ends, sums, strict=True):
                    text.line(f"{end} = bitcast {kind} {value} to {kind}")
            if adds_last:
                ends = [text.op("fadd", kind, *pair) for pair in zip(ends, start, strict=True)]
            self._write_results(block, ends)

    @contextmanager
    def _loop(self, name: str, count: int, step: int = 1) -> Iterator[tuple[str, str, str]]:
        """Write a loop around the text written inside it. The index runs from 0 to `count` (at least 1), exclusive.

        Yields the index and the labels of the basic blocks before the loop and at its end, for phis at its beginning.
        """
        text = self.text
        before, loop, last, end = (text.label(part) for part in ("before", name, "last", "end"))
        text.continue_at(before)
        text.continue_at(loop)
        following = f"%{text.label('following')}"
        at = text.phi("i64", ("0", before), (following, last))
        yield at, before, last
        text.continue_at(last)
        text.line(f"{following} = add i64 {at}, {step}")
        text.branch(text.op("icmp ult", "i64", following, str(count)), loop, end)
        text.place(end)

    def _accumulators(self, block: str) -> list[str]:
        """Load the 8 rows of a block of C, in the type in which sums are added."""
        text, kind = self.text, self.kinds[2]
        nbytes = STORED[kind].itemsize
        place = text.value(f"getelementptr i8, ptr %c, i64 {text.op('mul', 'i64', block, str(64 * nbytes))}")
        element = {"f16": "half", "f32": "float", "f64": "double", "s32": "i32"}[kind]
        rows = []
        for i in range(8):
            if kind == "f16":
                row = text.load(_ROW.of(element), text.field(place, 8 * i * nbytes), 2)
                row = text.cast("fpext", row, _ROW.of("half"), _ROW.of("float"))
            else:  # lanes 4 * i to 4 * i + 3 of two registers
                quarter = Lanes(4).of(element)
                parts = [text.load(quarter, text.field(place, (32 * e + 4 * i) * nbytes), nbytes) for e in (0, 1)]
                order = "<8 x i32> <" + ", ".join(f"i32 {k // 2 + 4 * (k % 2)}" for k in range(8)) + ">"
                row = text.value(f"shufflevector {quarter} {parts[0]}, {quarter} {parts[1]}, {order}")
            if kind in ("f16", "f32"):
                row = text.cast("fpext", row, _ROW.of("float"), _ROW.of("double"))
            elif kind == "s32":
                row = text.cast("sitofp", row, _ROW.of("i32"), _ROW.of("double"))
            rows.append(row)
        return rows

    def _write_results(self, block: str, rows: list[str]) -> None:
        """Write the 8 rows of a block of D."""
        text, kind = self.text, self.kinds[3]
        nbytes = STORED[kind].itemsize
        place = text.value(f"getelementptr i8, ptr %d, i64 {text.op('mul', 'i64', block, str(64 * nbytes))}")
        results = [self._round_to_element(row) for row in rows]
        element = {"f16": "half", "f32": "float", "f64": "double", "s32": "i32"}[kind]
        row_type = _ROW.of(element)
        for i in range(8):
            if kind == "f16":
                text.store(row_type, results[i], text.field(place, 8 * i * nbytes), 2)
                continue
            for e in (0, 1):
                half = Lanes(4)
                picked = sequence(4, "i32", 2, e)
                part = text.value(
                    f"shufflevector {row_type} {results[i]}, {row_type} poison, {half.of('i32')} {picked}"
                )
                text.store(half.of(element), part, text.field(place, (32 * e + 4 * i) * nbytes), nbytes)

    def _round_to_element(self, row: str) -> str:
        """Round a row of sums to elements of D."""
        text, kind, double = self.text, self.kinds[3], _ROW.of("double")
        if kind == "f64":
            return row
        sums = Expression(text, _ROW, F64, row)
        if kind in ("f16", "f32"):
            rounded: Expression = canonicalize(sums.astype(F16 if kind == "f16" else F32))
            return rounded.name
        if self.saturates:
            low, high = sums.make(-(2.0**31)).name, sums.make(2.0**31 - 1).name
            row = text.intrinsic("maxnum", "double", _ROW, row, low)
            row = text.intrinsic("minnum", "double", _ROW, row, high)
            return text.cast("fptosi", row, double, _ROW.of("i32"))
        return text.cast("trunc", text.cast("fptosi", row, double, _ROW.of("i64")), _ROW.of("i64"), _ROW.of("i32"))


# --- loads and stores


def _put_addresses(text: MemoryText, memory: Argument, space: str, scratch: int = 0) -> int:
    """Store the lanes' addresses in a scratch area; return the number of a new site for the access."""
    if not isinstance(memory, Memory):
        raise text.refuse()
    text.store(text.vector.of("i64"), text.address(memory, text.vector, space), f"%scratch{scratch}")
    text.site_count += 1
    return text.site_count - 1


@writes("wmma")
def _transfer(text: MemoryText, operation: Operation) -> None:
    """Write wmma.load or wmma.store, whose fragment a C function copies. Other forms of wmma are products."""
    if operation.has("mma"):
        return _multiply(text, operation)
    text.refuse_if(text.width != WARP, "width")
    is_store, size, kind = operation.has("store"), _size(operation), operation.type
    text.refuse_if(kind == "b1")
    matrix, by_columns = operation.one_of("a", "b", "c", "d"), operation.has("col")
    operand, memory = operation.operands[:2][::-1] if is_store else operation.operands[:2]
    space, fragment = space_of(operation), fragment_of(matrix, size, kind)
    site = _put_addresses(text, memory, space)
    if len(operation.operands) == 3:
        strides = text.use(operation.operands[2], "u32", text.vector)
    else:
        strides = text.vector.constant("i32", line_length(matrix, size, by_columns))
    text.store(_WORDS, strides, "%scratch1")
    if is_store:
        area = _put(text, operand, 0, fragment, _register_type("d", kind))
    else:
        area = _area_of(text, operand, 0, fragment)
    table = _table(text, (SPACE_NUMBERS[space], *_pieces(fragment, kind, by_columns)))
    mask = text.as_word(text.active())
    bad = text.call(
        "kernels_move_fragment",
        "i32",
        *(("ptr", "%ctx"), ("i64", str(site)), ("ptr", "%scratch0"), ("ptr", "%scratch1"), ("i32", mask)),
        *(("ptr", table), ("ptr", area), ("i32", str(int(is_store)))),
    )
    text.fault_unless_zero(bad)
    if not is_store:
        _take(text, operand, area, fragment, _register_type(matrix, kind))
    return None


def _table(text: MemoryText, numbers: tuple[int, ...]) -> str:
    """Return the name of a constant table of words; add the table if it is new."""
    content = f"private constant [{len(numbers)} x i32] [{', '.join(f'i32 {n}' for n in numbers)}]"
    for line in text.tables:
        if line.endswith(content):
            return line.split(" = ", 1)[0]
    text.tables.append(f"@pieces{len(text.tables)} = {content}")
    return f"@pieces{len(text.tables) - 1}"


def _pieces(fragment: Fragment, kind: str, by_columns: bool) -> tuple[int, ...]:
    """Return the numbers of a `Pieces` (kernels.h) after the first: where a fragment's registers are in memory."""
    nbytes, packed, rows, columns = STORED[kind].itemsize, fragment.packed, fragment.rows, fragment.columns
    both = (columns, rows) if by_columns else (rows, columns)
    lines, places = (x.reshape(WARP, -1, packed).transpose(1, 0, 2).ravel() for x in both)
    count = _CHUNK // nbytes
    while not _are_pieces(lines.reshape(-1, count), places.reshape(-1, count)):
        count //= 2
    starts = np.stack([lines[::count], places[::count]], axis=1)
    sizes = nbytes, nbytes * packed, nbytes * count, len(starts), int(lines.max()) + 1, int(places.max()) + 1
    return (*sizes, *starts.ravel().tolist())


def _are_pieces(lines: Array, places: Array) -> bool:
    """Return whether the elements of each row are consecutive in memory."""
    return bool((lines == lines[:, :1]).all() and (places == places[:, :1] + np.arange(places.shape[1])).all())


@writes("ldmatrix stmatrix")
def _move_matrices(text: MemoryText, operation: Operation) -> None:
    """Write ldmatrix or stmatrix. Lane t has two elements of each matrix, of row (or column) t / 4."""
    text.refuse_if(text.width != WARP, "width")
    is_store = operation.name == "stmatrix"
    operand, memory = operation.operands[::-1] if is_store else operation.operands
    space, items = space_of(operation), items_of(operand)
    site = _put_addresses(text, memory, space)
    text.needs_fragments = True
    for index, item in enumerate(items if is_store else ()):
        value = text.use(item, "b32", text.vector)
        value = _transpose(text, value) if operation.has("trans") else value
        text.store(_WORDS, value, text.field("%fragments", 4 * WARP * index))
    bad = text.call(
        "kernels_move_rows",
        "i32",
        *(("ptr", "%ctx"), ("i64", str(site)), ("ptr", "%scratch0"), ("i32", text.as_word(text.current()))),
        *(("i32", str(SPACE_NUMBERS[space])), ("i32", str(8 * len(items))), ("ptr", "%fragments")),
        ("i32", str(int(is_store))),
    )
    text.fault_unless_zero(bad)
    for index, item in enumerate(() if is_store else items):
        value = text.load(_WORDS, text.field("%fragments", 4 * WARP * index))
        value = _transpose(text, value) if operation.has("trans") else value
        text.assign(item, value, "b32", text.vector)


@writes("movmatrix")
def _transpose_matrix(text: MemoryText, operation: Operation) -> None:
    text.refuse_if(text.width != WARP, "width")
    value = _transpose(text, text.use(operation.operands[1], "b32", text.vector))
    text.assign(operation.operands[0], value, "b32", text.vector)


def _transpose(text: MemoryText, words: str) -> str:
    halves = text.cast("bitcast", words, _WORDS, _HALVES)
    halves = text.value(f"shufflevector {_HALVES} {halves}, {_HALVES} poison, {_TRANSPOSED}")
    return text.cast("bitcast", halves, _HALVES, _WORDS)


# --- asynchronous copies


@writes("wgmma")
def _order_products(text: MemoryText, operation: Operation) -> None:
    """Write nothing for wgmma.fence, commit_group and wait_group, because products are made immediately."""
    text.refuse_if(operation.has("mma_async"))


@writes("cp")
def _copy(text: MemoryText, operation: Operation) -> None:
    """Write cp.async as a copy that is made immediately, so commits and waits write nothing."""
    if operation.one_of("commit_group", "wait_group", "wait_all"):
        return
    operands = operation.operands[: len(operation.operands) - operation.has("L2::cache_hint")]
    size = operands[2] if len(operands) > 2 else None
    if not isinstance(size, Immediate):
        arrive(text, operands[0], Sink(), count_arrivals(text, int(operation.has("noinc"))))
        return
    site = _put_addresses(text, operands[0], "shared", 0)
    _put_addresses(text, operands[1], "global", 1)
    available, words = text.vector.constant("i32", size.value), text.vector.of("i32")
    if len(operands) == 4:
        last = operands[3]
        if isinstance(last, Not) or (isinstance(last, Register) and text.register_bits(last.number) == 1):
            ignored = text.predicate(last, text.vector)
            available = text.choose(text.vector, ignored, words, "zeroinitializer", available)
        else:
            available = text.use(last, "u32", text.vector)
    text.store(words, available, "%scratch2")
    bad = text.call(
        "kernels_copy",
        "i32",
        *(("ptr", "%ctx"), ("i64", str(site)), ("ptr", "%scratch0"), ("ptr", "%scratch1"), ("ptr", "%scratch2")),
        *(("i32", text.as_word(text.active())), ("i32", str(size.value))),
    )
    text.fault_unless_zero(bad)
