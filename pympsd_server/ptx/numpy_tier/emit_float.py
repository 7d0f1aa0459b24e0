"""Write arithmetic of floats: all widths, roundings, .ftz, .sat and .relu.

- Rounding to nearest, the common case, is NumPy's own operator.
- `fma` rounds once (ptx/math/floats.py). Directed roundings correct the nearest result by its error.
- bf16 is computed in a wider type and rounded once; pairs are computed half by half.
- NaN results of 16 and 32 bits are canonical, as on a GPU. NaN of doubles keep the bits of an operand.
- For functions that PTX calls approximate see ptx/math/functions.py. Their results are more exact than a GPU's.
"""

from pympsd_server.ptx.isa.datatypes import DTYPES, F16, F32, F64, NEEDS_BLACKWELL, U16, U32, DType
from pympsd_server.ptx.lowering.ir import Argument, Operation
from pympsd_server.ptx.math.functions import FUNCTIONS
from pympsd_server.ptx.numpy_tier.instruction_table import dtype_of, emits
from pympsd_server.ptx.numpy_tier.writer import Writer

FLOAT_TYPES = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2"})
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


@emits("fma", 4, "rn rz rm rp ftz sat relu", FLOAT_TYPES)
def emit_float(writer: Writer, operation: Operation) -> None:
    """Write any arithmetic instruction whose type is a float."""
    writer.refuse_if(operation.has("lo") or operation.has("hi") or operation.has("wide") or operation.has("cc"))
    writer.refuse_if(len(operation.types) != 1, f"operands of two types: {NEEDS_BLACKWELL}")
    inputs = operation.inputs
    if operation.type.endswith("x2"):
        return _pair(writer, operation, inputs)
    if operation.type == "bf16":
        names = [writer.keep(f"float_from_bfloat({writer.value(x, U16)})") for x in inputs]
        return writer.set_result(_bfloat(writer, operation, names), U16)
    dtype = dtype_of(writer, operation)
    names = [writer.value(x, dtype) for x in inputs]
    return writer.set_result(expression(writer, operation, names, dtype), dtype)


def _bfloat(writer: Writer, operation: Operation, names: list[str]) -> str:
    """Return an expression for a bfloat16 operation: computed in float32 or double, rounded once."""
    if operation.name not in ("add", "sub", "mul", "fma", "mad"):
        return f"bfloat_from_float({expression(writer, operation, names, F32)})"
    a, b, *c = (writer.keep(f"{n}.astype(d_f8)") for n in names)
    if operation.name == "mul":
        result = f"({a} * {b})"
    elif c:
        result = f"add_to_odd_float({a} * {b}, {c[0]})"
    else:
        result = f"add_to_odd_float({a}, {'-' if operation.name == 'sub' else ''}{b})"
    return f"bfloat_from_float({finish(operation, result)})"


def _pair(writer: Writer, operation: Operation, inputs: tuple[Argument, ...]) -> None:
    """Write an operation on both halves of packed operands, one after the other."""
    packed = [writer.value(x, U32) for x in inputs]
    halves = []
    for part in ("low_half", "high_half"):
        names = [writer.keep(f"{part}({p})") for p in packed]
        if operation.type == "bf16x2":
            names = [writer.keep(f"float_from_bfloat({n})") for n in names]
            result = _bfloat(writer, operation, names)
        else:
            names = [writer.keep(f"{n}.view(d_f2)") for n in names]
            result = expression(writer, operation, names, F16)
        halves.append(writer.keep(result))
    writer.set_result(f"pack_halves({halves[1]}, {halves[0]})", U32)


def expression(writer: Writer, operation: Operation, names: list[str], dtype: DType) -> str:
    """Return an expression for the operation on values (`names`) of `dtype`, with .ftz, rounding and .sat."""
    if operation.has("ftz"):
        names = [writer.keep(f"flush({n})") for n in names]
    result = _round(writer, operation, names, dtype)
    if operation.has("ftz") and operation.name not in ("abs", "neg", "min", "max"):
        result = f"flush({result})"
    return f"canonicalize({finish(operation, result)})"


def finish(operation: Operation, result: str) -> str:
    """Return an expression for a result with .sat and .relu."""
    if operation.has("sat"):
        result = f"saturate({result})"
    return f"rectify({result})" if operation.has("relu") else result


def _round(writer: Writer, operation: Operation, names: list[str], dtype: DType) -> str:
    rounding = operation.one_of("rz", "rm", "rp")
    if not rounding:
        return _nearest(writer, operation, names, dtype)
    name = "fma" if operation.name == "mad" else operation.name
    if dtype == F64:
        return f"round_directed_double({name!r}, {rounding!r}, {', '.join(names)})"
    writer.refuse_if(dtype != F32, f"modifier .{rounding}")
    return f"round_directed({name!r}, {rounding!r}, {operation.has('ftz')}, {', '.join(names)})"


def _nearest(writer: Writer, operation: Operation, names: list[str], dtype: DType) -> str:
    """Return an expression for an operation that is rounded to nearest or exact."""
    if operation.name == "div" and operation.has("approx"):
        return f"divide_approx({names[0]}, {names[1]})"
    if operation.name in _INFIX:
        return f"{names[0]} {_INFIX[operation.name]} {names[1]}"
    if operation.name in ("fma", "mad"):
        writer.refuse_if(len(names) != 3, f"{len(names)} operands")
        return f"fma{8 * dtype.itemsize}({', '.join(names)})"
    if operation.name in ("min", "max"):
        writer.refuse_if(operation.has("xorsign") != operation.has("abs") or len(names) != 2)
        function = f"float_{operation.name}{'_nan' if operation.has('NaN') else ''}"
        if operation.has("xorsign"):
            return f"with_xor_of_signs({function}, {names[0]}, {names[1]})"
        return f"{function}({names[0]}, {names[1]})"
    if operation.name in ("abs", "neg"):
        function = "absolute" if operation.name == "abs" else "negative"
        return f"{'' if dtype == F64 else 'np.'}{function}({names[0]})"
    raise writer.refuse()


_UNARY = {
    "rcp": "d_{t}(1) / {x}",
    "sqrt": "np.sqrt({x})",
    "rsqrt": "(d_{t}(1) / np.sqrt({x}))",
    **{name: f"approximate({name!r}, {{x}})" for name in FUNCTIONS},
}


_HALF_FUNCTIONS = ("ex2", "tanh")


def _half_unary(writer: Writer, operation: Operation) -> None:
    """Write ex2 or tanh of f16, bf16 or a pair: computed in float32, rounded once."""
    pair, kind = operation.type.endswith("x2"), operation.type.removesuffix("x2")
    narrow = "bfloat_from_float({})" if kind == "bf16" else "canonicalize(({}).astype(d_f2)).view(d_u2)"
    packed = writer.input(1, U32 if pair else U16)
    results = []
    for part in ("low_half", "high_half") if pair else ("",):
        bits = writer.keep(f"{part}({packed})" if part else packed)
        x = writer.keep(f"float_from_bfloat({bits})" if kind == "bf16" else f"{bits}.view(d_f2).astype(d_f4)")
        result = _UNARY[operation.name].format(x=f"flush({x})" if operation.has("ftz") else x)
        results.append(writer.keep(narrow.format(result)))
    if pair:
        return writer.set_result(f"pack_halves({results[1]}, {results[0]})", U32)
    return writer.set_result(results[0], U16)


@emits("rcp sqrt rsqrt ex2 lg2 sin cos tanh", 2, "approx rn rz rm rp ftz", FLOAT_TYPES)
def _unary(writer: Writer, operation: Operation) -> None:
    """Write a function of one float. Only rcp and sqrt have directed roundings."""
    if operation.type not in ("f32", "f64"):
        writer.refuse_if(operation.name not in _HALF_FUNCTIONS, f"type .{operation.type}")
        return _half_unary(writer, operation)
    dtype = dtype_of(writer, operation)
    writer.refuse_if(operation.type == "f64" and operation.name not in ("rcp", "sqrt", "rsqrt"), "type .f64")
    x = writer.input(1, dtype)
    only_upper = operation.type == "f64" and operation.has("ftz")
    if operation.has("ftz"):
        x = writer.keep(f"flush(upper_word({x}))" if only_upper else f"flush({x})")
    rounding = operation.one_of("rz", "rm", "rp")
    if rounding and operation.type == "f64" and operation.name in ("rcp", "sqrt"):
        result = f"round_directed_double({operation.name!r}, {rounding!r}, {x})"
    elif rounding:
        writer.refuse_if(dtype != F32 or operation.name not in ("rcp", "sqrt"), f"modifier .{rounding}")
        wide = writer.keep(f"{x}.astype(d_f8)")
        result = f"narrow({_UNARY[operation.name].format(t='f8', x=wide)}, d_f4_t, {rounding!r})"
    else:
        result = _UNARY[operation.name].format(t=f"f{dtype.itemsize}", x=x)
    result = f"flush({result})" if operation.has("ftz") else result
    return writer.set_result(f"upper_word({result})" if only_upper else f"canonicalize({result})", dtype)


@emits("copysign", 3, "", ("f32", "f64"))
def _copysign(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    sign, size = writer.values(operation.inputs, dtype)
    writer.set_result(f"np.copysign({size}, {sign})", dtype)


_TESTS = {
    "finite": "np.isfinite({x})",
    "infinite": "np.isinf({x})",
    "number": "~np.isnan({x})",
    "notanumber": "np.isnan({x})",
    "normal": "np.isfinite({x}) & ~is_subnormal({x})",
    "subnormal": "is_subnormal({x})",
}
"""The expression for each test of testp. Zero is a normal number."""


@emits("testp", 2, " ".join(_TESTS), ("f32", "f64"))
def _test(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(len(operation.modifiers) != 1)
    x = writer.input(1, dtype_of(writer, operation))
    writer.set_result(_TESTS[operation.modifiers[0]].format(x=x), DTYPES["pred"])
