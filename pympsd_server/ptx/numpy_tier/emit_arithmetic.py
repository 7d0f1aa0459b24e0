"""Write integer arithmetic instructions, including carry chains.

Integers wrap, as NumPy's do. If `add`, `mul` and others have a float type, emit_float.py writes them (`_emits`).
Packed 16-bit integers (u16x2, s16x2) are computed half by half. The carry flag is a register of the kernel, with the
value 0 or 1 (`_carry_chain`).
"""

from collections.abc import Callable

from pympsd_server.ptx.isa.datatypes import DTYPES, S16, S32, U16, U32, DType, double_width, dtype_name, unsigned_of
from pympsd_server.ptx.lowering.ir import Operation
from pympsd_server.ptx.numpy_tier.emit_float import FLOAT_TYPES, emit_float
from pympsd_server.ptx.numpy_tier.instruction_table import INTEGERS, Emit, dtype_of, emits
from pympsd_server.ptx.numpy_tier.writer import Writer

_TYPES = (*INTEGERS, "f16", "f32", "f64", "bf16", "f16x2", "bf16x2", "u16x2", "s16x2")
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
_FLOAT_MODIFIERS = "rn rz rm rp ftz sat"


_PAIRS = {"u16x2": U16, "s16x2": S16}


def _emits(
    names: str, operands: int | tuple[int, int], modifiers: str, types: tuple[str, ...]
) -> Callable[[Emit], Emit]:
    """Register an emitter for integers, and `emit_float` for the same instructions if their type is a float."""

    def register(emit: Emit) -> Emit:
        def choose(writer: Writer, operation: Operation) -> None:
            (emit_float if operation.type in FLOAT_TYPES else emit)(writer, operation)

        return emits(names, operands, modifiers, types)(choose)

    return register


def _emit_pairs(writer: Writer, operation: Operation) -> None:
    """Write add, min or max of packed 16-bit integers."""
    writer.refuse_if(operation.has("cc") or operation.has("sat") or operation.name == "sub")
    dtype = _PAIRS[operation.type]
    names = [writer.keep(f"{writer.value(x, U32)}.view(d_u4)") for x in operation.inputs]
    halves = []
    for part in ("low_half", "high_half"):
        a, b = (writer.keep(f"{part}({n}).view({dtype_name(dtype)})") for n in names)
        result = f"{a} + {b}" if operation.name == "add" else _limit(writer, operation, a, b, dtype)
        halves.append(writer.keep(result))
    writer.set_result(f"pack_halves({halves[1]}, {halves[0]})", U32)


def _limit(writer: Writer, operation: Operation, a: str, b: str, dtype: DType) -> str:
    """Return an expression for min or max, with .relu."""
    result = f"np.{operation.name}imum({a}, {b})"
    return f"np.maximum({result}, {writer.scalar(0, dtype)})" if operation.has("relu") else result


@_emits("add sub", 3, _FLOAT_MODIFIERS + " cc", _TYPES)
def _add(writer: Writer, operation: Operation) -> None:
    if operation.has("cc"):
        return _carry_add(writer, operation)
    if operation.type in _PAIRS:
        return _emit_pairs(writer, operation)
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.inputs, dtype)
    if operation.has("sat"):
        writer.refuse_if(dtype != S32, "modifier .sat")
        return writer.set_result(f"add_saturating({a}, {b}, {operation.name == 'sub'})", dtype)
    return writer.set_result(f"{a} {_SIGNS[operation.name]} {b}", dtype)


@emits("addc subc", 3, "cc", ("u32", "s32", "u64", "s64"))
def _carry_add(writer: Writer, operation: Operation) -> None:
    dtype = unsigned_of(dtype_of(writer, operation))
    a, b = writer.values(operation.inputs, dtype)
    _carry_chain(writer, operation, a, b, operation.name.startswith("sub"))


def _carry_chain(writer: Writer, operation: Operation, a: str, b: str, subtract: bool) -> None:
    """Write a + b, or a - b, with the carry flag.

    A difference is the sum of a, the complement of b, and 1 or the flag, so the flag is 1 if nothing was borrowed.
    (PTX describes a borrow flag with the opposite meaning. But a GPU has one flag for both: ``addc`` can read it
    after ``sub.cc``.)
    """
    dtype = unsigned_of(dtype_of(writer, operation))
    if subtract and not operation.name.endswith("c"):
        total, flag = writer.keep(f"{a} - {b}"), f"({a} >= {b})"
    else:
        total = writer.keep(f"{a} + ~{b}" if subtract else f"{a} + {b}")
        flag = f"({total} < {a})"
    if operation.name.endswith("c"):
        carry = writer.value(writer.code.carry, U32)
        wide = carry if dtype == U32 else f"{carry}.astype({dtype_name(dtype)})"
        with_carry = writer.keep(f"{total} + {wide}")
        flag = f"({flag} | ({with_carry} < {total}))"
        total = with_carry
    flag = writer.keep(f"{flag}.astype(d_u4)") if operation.has("cc") else ""
    writer.set_result(total, dtype)
    if flag:
        writer.assign(writer.code.carry, flag, U32)


def _product(writer: Writer, operation: Operation) -> tuple[str, DType]:
    """Return an expression for the product (.lo, .hi or .wide) of operands 1 and 2, and its dtype."""
    dtype = dtype_of(writer, operation)
    writer.refuse_if(operation.type in _PAIRS or operation.one_of("rn", "rz", "rm", "rp", "ftz"))
    a, b = writer.values(operation.operands[1:3], dtype)
    if operation.has("hi"):
        return f"multiply_high({a}, {b})", dtype
    if operation.has("wide"):
        writer.refuse_if(dtype.itemsize == 8)
        wide = DTYPES[double_width(operation.type)]
        return f"{a}.astype({dtype_name(wide)}) * {b}.astype({dtype_name(wide)})", wide
    writer.refuse_if(not operation.has("lo"), "one of .lo, .hi and .wide is needed")
    return f"{a} * {b}", dtype


@_emits("mul", 3, _FLOAT_MODIFIERS + " lo hi wide", _TYPES)
def _multiply(writer: Writer, operation: Operation) -> None:
    return writer.set_result(*_product(writer, operation))


@_emits("mad", 4, _FLOAT_MODIFIERS + " lo hi wide cc", _TYPES)
def _multiply_add(writer: Writer, operation: Operation) -> None:
    if operation.has("cc"):
        return _carry_multiply(writer, operation)
    product, dtype = _product(writer, operation)
    c = writer.input(3, dtype)
    # mad.hi.sat.s32 wraps instead of saturating, as recorded on an H200 and contrary to the PTX ISA.
    writer.refuse_if(operation.has("sat") and (dtype != S32 or not operation.has("hi")), "modifier .sat")
    return writer.set_result(f"{product} + {c}", dtype)


@emits("madc", 4, "lo hi cc", ("u32", "s32", "u64", "s64"))
def _carry_multiply(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(operation.has("wide"))
    product, dtype = _product(writer, operation)
    name = writer.keep(product)
    plain = unsigned_of(dtype)
    if plain != dtype:
        name = writer.keep(f"{name}.view({dtype_name(plain)})")
    _carry_chain(writer, operation, writer.input(3, plain), name, subtract=False)


@emits("mul24 mad24", (3, 4), "lo hi sat", ("u32", "s32"))
def _multiply_24(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.operands[1:3], dtype)
    product = f"multiply_24({a}, {b}, {operation.has('hi')})"
    writer.refuse_count_if(len(operation.operands) != (4 if operation.name == "mad24" else 3))
    if operation.name == "mul24":
        return writer.set_result(product, dtype)
    c = writer.input(3, dtype)
    total = f"add_saturating({product}, {c})" if operation.has("sat") else f"{product} + {c}"
    return writer.set_result(total, dtype)


@_emits("div rem", 3, "rn rz rm rp ftz approx full", (*INTEGERS, "f32", "f64"))
def _divide(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.inputs, dtype)
    return writer.set_result(f"{'divide' if operation.name == 'div' else 'remainder'}({a}, {b})", dtype)


@_emits("min max", (3, 4), "ftz NaN xorsign abs relu", _TYPES)
def _extreme(writer: Writer, operation: Operation) -> None:
    relu = operation.modifiers == ("relu",) and operation.type in ("s32", "s16x2")
    writer.refuse_if((operation.modifiers and not relu) or len(operation.operands) != 3)
    if operation.type in _PAIRS:
        return _emit_pairs(writer, operation)
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.inputs, dtype)
    return writer.set_result(_limit(writer, operation, a, b, dtype), dtype)


@_emits("abs neg", 2, "ftz", (*INTEGERS, "f16", "f32", "f64", "bf16", "f16x2", "bf16x2"))
def _sign(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    function = "np.absolute" if operation.name == "abs" else "np.negative"
    return writer.set_result(f"{function}({writer.input(1, dtype)})", dtype)


@emits("sad", 4, "", INTEGERS)
def _sum_of_differences(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, b, c = writer.values(operation.inputs, dtype)
    writer.set_result(f"{c} + absolute_difference({a}, {b})", dtype)


@emits("dp4a dp2a", 4, "lo hi", ("u32", "s32"))
def _dot(writer: Writer, operation: Operation) -> None:
    a, b, c = writer.values(operation.inputs, U32)
    signs = ", ".join(str(t == "s32") for t in operation.types)
    writer.refuse_if(len(operation.types) != 2 or (operation.name == "dp2a") != bool(operation.modifiers))
    if operation.name == "dp4a":
        return writer.set_result(f"dot({a}, {b}, {c}, {signs})", U32)
    return writer.set_result(f"dot_pairs({a}, {b}, {c}, {signs}, {operation.has('hi')})", U32)
