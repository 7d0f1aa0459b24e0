"""Write comparison and selection instructions."""

from pympsd_server.ptx.isa.datatypes import BOOL, DTYPES, U16, U32, DType
from pympsd_server.ptx.lowering.ir import Argument, Both, Operation
from pympsd_server.ptx.numpy_tier.instruction_table import ANY, BITS, FLOATS, INTEGERS, dtype_of, emits
from pympsd_server.ptx.numpy_tier.writer import Writer

_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_RELATIONS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_COMBINES = {"and": "&", "or": "|", "xor": "^"}
_COMPARISONS = " ".join([*_RELATIONS, *_UNORDERED, "num", "nan"])
_MODIFIERS = _COMPARISONS + " and or xor ftz"
_TYPES = (*BITS, *INTEGERS, *FLOATS, "bf16", "f16x2", "bf16x2")


def _comparison(writer: Writer, operation: Operation, a: str, b: str, is_float: bool) -> str:
    """Return a boolean expression that compares two values as the operation does."""
    which = operation.modifiers[0]
    if which in ("num", "nan"):
        return f"~is_unordered({a}, {b})" if which == "num" else f"is_unordered({a}, {b})"
    if which in _UNORDERED:
        sign = _UNORDERED[which]
        # NumPy's != is true for NaN.
        return f"({a} != {b})" if which == "neu" else f"(({a} {sign} {b}) | is_unordered({a}, {b}))"
    writer.refuse_if(which not in _RELATIONS, "no comparison")
    if which == "ne" and is_float:
        return f"(({a} < {b}) | ({a} > {b}))"
    return f"({a} {_RELATIONS[which]} {b})"


def _operands(writer: Writer, operation: Operation, type_name: str) -> tuple[str, str, bool]:
    if type_name == "bf16":
        a, b = (writer.keep(f"float_from_bfloat({writer.value(x, U16)})") for x in operation.operands[1:3])
        return a, b, True
    dtype = DTYPES[type_name]
    a, b = writer.values(operation.operands[1:3], dtype)
    if operation.has("ftz"):
        a, b = writer.keep(f"flush({a})"), writer.keep(f"flush({b})")
    return a, b, dtype.kind == "f"


@emits("setp", (3, 4), _MODIFIERS, _TYPES)
def _set_predicate(writer: Writer, operation: Operation) -> None:
    if operation.type.endswith("x2"):
        return _set_pair(writer, operation)
    expression = _comparison(writer, operation, *_operands(writer, operation, operation.type))
    first, second = _targets(operation.operands[0])
    result = writer.keep(expression)
    opposite = writer.keep(f"~{result}") if second is not None else ""
    return _combine_and_assign(writer, operation, ((first, result), (second, opposite)))


def _combine(writer: Writer, operation: Operation, result: str) -> str:
    """Return a result, combined with the operation's fourth operand (a predicate) if it has .and, .or or .xor."""
    combine = operation.one_of(*_COMBINES)
    writer.refuse_count_if(bool(combine) != (len(operation.operands) == 4))
    return writer.keep(f"{result} {_COMBINES[combine]} {writer.input(3, BOOL)}") if combine else result


def _combine_and_assign(
    writer: Writer, operation: Operation, results: tuple[tuple[Argument | None, str], ...]
) -> None:
    # Compute all results before the first assignment, because a target may also be an operand.
    for target, result in [(t, _combine(writer, operation, r)) for t, r in results if r]:
        if target is not None:
            writer.assign(target, result, BOOL)


def _targets(operand: Argument) -> tuple[Argument, Argument | None]:
    return (operand.first, operand.second) if isinstance(operand, Both) else (operand, None)


def _halves(writer: Writer, operation: Operation) -> list[str]:
    """Return the names of the comparison's results for the lower and upper halves of packed operands."""
    packed = [writer.value(x, U32) for x in operation.operands[1:3]]
    results = []
    for part in ("low_half", "high_half"):
        names = [writer.keep(f"{part}({p})") for p in packed]
        wrap = "float_from_bfloat({})" if operation.type == "bf16x2" else "{}.view(d_f2)"
        a, b = (writer.keep(wrap.format(n)) for n in names)
        results.append(writer.keep(_comparison(writer, operation, a, b, is_float=True)))
    return results


def _set_pair(writer: Writer, operation: Operation) -> None:
    low, high = _halves(writer, operation)
    first, second = _targets(operation.operands[0])
    if second is None:
        raise writer.refuse("two results are needed")
    _combine_and_assign(writer, operation, ((first, low), (second, high)))


@emits("set", (3, 4), _MODIFIERS, _TYPES)
def _set(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(len(operation.types) != 2)
    if operation.types[1].endswith("x2"):
        return _set_packed(writer, operation)
    result = writer.keep(_comparison(writer, operation, *_operands(writer, operation, operation.types[1])))
    result = _combine(writer, operation, result)
    dtype = DTYPES[operation.types[0]]
    if operation.types[0] == "bf16":
        true = writer.scalar(0x3F80, U16)
    else:
        true = writer.scalar(1.0, dtype) if dtype.kind == "f" else _all_ones(writer, dtype)
    return writer.set_result(f"select({result}, {true}, {writer.scalar(0, dtype)})", dtype)


def _all_ones(writer: Writer, dtype: DType) -> str:
    return writer.scalar(-1 if dtype.kind == "i" else 2 ** (8 * dtype.itemsize) - 1, dtype)


def _set_packed(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(operation.types[0] not in ("f16x2", "bf16x2", "u32", "b32") or operation.one_of(*_COMBINES))
    true = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(operation.types[0], 0xFFFF)
    low, high = (
        writer.keep(f"select({r}, {writer.scalar(true, U16)}, {writer.scalar(0, U16)})")
        for r in _halves(writer, operation)
    )
    writer.set_result(f"pack_halves({high}, {low})", U32)


@emits("selp", 4, "", (*BITS, *INTEGERS, *FLOATS))
def _select(writer: Writer, operation: Operation) -> None:
    dtype = dtype_of(writer, operation)
    a, b = writer.values(operation.operands[1:3], dtype)
    writer.set_result(f"select({writer.input(3, BOOL)}, {a}, {b})", dtype)


@emits("slct", 4, "ftz", ANY)
def _select_by_sign(writer: Writer, operation: Operation) -> None:
    writer.refuse_if(len(operation.types) != 2 or operation.types[1] not in ("s32", "f32"))
    dtype, by = DTYPES[operation.types[0]], DTYPES[operation.types[1]]
    a, b = writer.values(operation.operands[1:3], dtype)
    c = writer.input(3, by)
    if operation.has("ftz"):
        c = writer.keep(f"flush({c})")
    writer.set_result(f"select({c} >= {writer.scalar(0, by)}, {a}, {b})", dtype)
