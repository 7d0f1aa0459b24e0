"""Floating-point instructions of f16, bf16, their pairs, f32 and f64."""

from __future__ import annotations

from pympsd_server.backends.emulated.ptx.isa.datatypes import DTYPES, F16, F32, F64, NEEDS_BLACKWELL, U16, U32, DType
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Operation
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import dtype_of, emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_FLOAT_TYPES = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2"})
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def is_float(operation: Operation) -> bool:
    return operation.type in _FLOAT_TYPES


def emit_float(w: Writer, o: Operation) -> None:
    """Write any arithmetic instruction whose type is a float."""
    if o.has("lo") or o.has("hi") or o.has("wide") or o.has("cc"):
        raise w.refuse()
    if len(o.types) != 1:
        raise w.refuse(f"operands of two types: {NEEDS_BLACKWELL}")
    inputs = o.operands[1:]
    if o.type.endswith("x2"):
        return _pair(w, o, inputs)
    if o.type == "bf16":
        names = [w.keep(f"float_from_bfloat({w.value(x, U16)})") for x in inputs]
        return w.assign(o.operands[0], _bfloat(w, o, names), U16)
    dtype = dtype_of(w, o)
    names = [w.value(x, dtype) for x in inputs]
    return w.assign(o.operands[0], expression(w, o, names, dtype), dtype)


def _bfloat(w: Writer, o: Operation, names: list[str]) -> str:
    """Return a bfloat16 operation, computed in float32 (fma in double), rounded once."""
    if o.name in ("fma", "mad"):
        a, b, c = (w.keep(f"{n}.astype(d_f8)") for n in names)
        result = f"add_to_odd({a} * {b}, {c})"
        return f"bfloat_from_float({_finished(w, o, result)})"
    if o.name in ("add", "sub"):
        a, b = (w.keep(f"{n}.astype(d_f8)") for n in names)
        result = f"add_to_odd({a}, {'-' if o.name == 'sub' else ''}{b})"
        return f"bfloat_from_float({_finished(w, o, result)})"
    if o.name in ("abs", "neg"):
        return _bfloat_sign(o, names[0])
    if o.name == "mul":
        a, b = (w.keep(f"{n}.astype(d_f8)") for n in names)
        return f"bfloat_from_float({_finished(w, o, f'({a} * {b})')})"
    return f"bfloat_from_float({expression(w, o, names, F32)})"


def _bfloat_sign(o: Operation, name: str) -> str:
    function = "np.absolute" if o.name == "abs" else "np.negative"
    return f"({function}({name}).view(d_u4) >> d_u4(16)).astype(d_u2)"


def _pair(w: Writer, o: Operation, inputs: tuple[Argument, ...]) -> None:
    """Both halves of packed operands, one after the other."""
    packed = [w.value(x, U32) for x in inputs]
    halves = []
    for part in ("low_half", "high_half"):
        names = [w.keep(f"{part}({p})") for p in packed]
        if o.type == "bf16x2":
            halves.append(w.keep(_bfloat(w, o, [w.keep(f"float_from_bfloat({n})") for n in names])))
        else:
            names = [w.keep(f"{n}.view(d_f2)") for n in names]
            halves.append(w.keep(expression(w, o, names, F16)))
    w.assign(o.operands[0], f"pack_halves({halves[1]}, {halves[0]})", U32)


def expression(w: Writer, o: Operation, names: list[str], dtype: DType) -> str:
    """Return the operation on `names` (of `dtype`), with .ftz, rounding and .sat."""
    if o.has("ftz"):
        names = [w.keep(f"flush({n})") for n in names]
    result = _rounded(w, o, names, dtype)
    if o.has("ftz") and o.name not in ("abs", "neg", "min", "max"):
        result = f"flush({result})"
    return _finished(w, o, result)


def _finished(w: Writer, o: Operation, result: str) -> str:
    if o.has("sat"):
        return f"saturate({result})"
    return f"rectify({result})" if o.has("relu") else result


def _rounded(w: Writer, o: Operation, names: list[str], dtype: DType) -> str:
    rounding = o.one_of("rz", "rm", "rp")
    if rounding and dtype == F64:
        name = "fma" if o.name == "mad" else o.name
        return f"directed_double({name!r}, {rounding!r}, {', '.join(names)})"
    if rounding and dtype != F32:
        raise w.refuse(f"modifier .{rounding}")
    name = "fma" if o.name == "mad" else o.name
    if rounding:
        return f"directed({name!r}, {rounding!r}, {o.has('ftz')}, {', '.join(names)})"
    return _nearest(w, o, names, dtype)


def _nearest(w: Writer, o: Operation, names: list[str], dtype: DType) -> str:
    if o.name in _INFIX:
        return f"{names[0]} {_INFIX[o.name]} {names[1]}"
    if o.name in ("fma", "mad"):
        if len(names) != 3:
            raise w.refuse(f"{len(names)} operands")
        return f"fma{8 * dtype.itemsize}({', '.join(names)})"
    if o.name in ("min", "max"):
        if o.has("xorsign") != o.has("abs") or len(names) != 2:
            raise w.refuse()
        function = f"float_{o.name}{'_nan' if o.has('NaN') else ''}"
        if o.has("xorsign"):
            return f"with_xor_of_signs({function}, {names[0]}, {names[1]})"
        return f"{function}({names[0]}, {names[1]})"
    if o.name in ("abs", "neg"):
        return f"np.{'absolute' if o.name == 'abs' else 'negative'}({names[0]})"
    raise w.refuse()


@emits("fma", 4, "rn rz rm rp ftz sat relu", _FLOAT_TYPES)
def _fused(w: Writer, o: Operation) -> None:
    emit_float(w, o)


_UNARY = {
    "rcp": "d_{t}(1) / {x}",
    "sqrt": "np.sqrt({x})",
    "rsqrt": "(d_{t}(1) / np.sqrt({x}))",
    "ex2": "np.exp2({x})",
    "lg2": "np.log2({x})",
    "sin": "np.sin({x})",
    "cos": "np.cos({x})",
    "tanh": "np.tanh({x})",
}


_HALF_FUNCTIONS = ("ex2", "tanh")


def _half_unary(w: Writer, o: Operation) -> None:
    """ex2 and tanh of bf16 and of pairs, computed in float32 and rounded once."""
    pair, kind = o.type.endswith("x2"), o.type.removesuffix("x2")
    packed = w.value(o.operands[1], U32 if pair else U16)
    results = []
    for part in ("low_half", "high_half") if pair else ("",):
        bits = w.keep(f"{part}({packed})" if part else packed)
        x = w.keep(f"float_from_bfloat({bits})" if kind == "bf16" else f"{bits}.view(d_f2).astype(d_f4)")
        result = _UNARY[o.name].format(x=f"flush({x})" if o.has("ftz") else x)
        results.append(
            w.keep(f"bfloat_from_float({result})" if kind == "bf16" else f"({result}).astype(d_f2).view(d_u2)")
        )
    if pair:
        return w.assign(o.operands[0], f"pack_halves({results[1]}, {results[0]})", U32)
    return w.assign(o.operands[0], results[0], U16)


@emits(
    "rcp sqrt rsqrt ex2 lg2 sin cos tanh",
    2,
    "approx rn rz rm rp ftz",
    ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2"),
)
def _unary(w: Writer, o: Operation) -> None:
    """Transcendental functions are computed to NumPy's accuracy, which is better than the hardware's."""
    if o.type in ("f16", "bf16", "f16x2", "bf16x2") and o.name not in _HALF_FUNCTIONS:
        raise w.refuse(f"type .{o.type}")
    if o.type in ("bf16", "f16x2", "bf16x2"):
        return _half_unary(w, o)
    dtype = dtype_of(w, o)
    if o.type == "f64" and o.name not in ("rcp", "sqrt", "rsqrt"):
        raise w.refuse("type .f64")
    x = w.value(o.operands[1], dtype)
    if o.has("ftz"):
        x = w.keep(f"flush({x})")
    rounding = o.one_of("rz", "rm", "rp")
    if rounding and o.type == "f64" and o.name in ("rcp", "sqrt"):
        result = f"directed_double({o.name!r}, {rounding!r}, {x})"
    elif rounding:
        if dtype != F32 or o.name not in ("rcp", "sqrt"):
            raise w.refuse(f"modifier .{rounding}")
        wide = w.keep(f"{x}.astype(d_f8)")
        result = f"narrow({_UNARY[o.name].format(t='f8', x=wide)}, d_f4_t, {rounding!r})"
    else:
        result = _UNARY[o.name].format(t=f"f{dtype.itemsize}", x=x)
    return w.assign(o.operands[0], f"flush({result})" if o.has("ftz") else result, dtype)


@emits("copysign", 3, "", ("f32", "f64"))
def _copysign(w: Writer, o: Operation) -> None:
    dtype = dtype_of(w, o)
    sign, size = (w.value(x, dtype) for x in o.operands[1:])
    w.assign(o.operands[0], f"np.copysign({size}, {sign})", dtype)


_TESTS = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]


@emits("testp", 2, " ".join(_TESTS), ("f32", "f64"))
def _test(w: Writer, o: Operation) -> None:
    if len(o.modifiers) != 1:
        raise w.refuse()
    x = w.value(o.operands[1], dtype_of(w, o))
    w.assign(o.operands[0], f"test_{o.modifiers[0]}({x})", DTYPES["pred"])
