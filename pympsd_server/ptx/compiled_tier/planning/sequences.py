"""Find registers whose values follow each other from lane to lane: first, first + stride, first + 2 * stride, ...

Most addresses are sequences, because threads access neighbouring elements. An access can take the quick way if the
lanes' addresses are consecutive and the first address is known.

`_find_strides` guesses by how much a register grows from lane to lane. A guess determines the code that is written,
but not its result: an access that relies on a guess tests all lanes' addresses at run time.

A guess is *certain* if every definition of the register is one of a few instructions, is executed for all lanes that
matter, and has inputs that are uniform or certain. The kernel then computes lane 0's value a second time, as a scalar
(the same form, written for one lane), and needs no test:

    %r1 = mov %tid.x               first 64, stride 1
    %r2 = mad.lo ctaid, ntid, %r1  first 832, stride 1
    %rd3 = mul.wide.s32 %r2, 4     first 3328, stride 4        if 832 ... 863 do not wrap: a *flag*, one scalar test

Values are modulo the register's width, so a sequence that wraps is still a sequence, except if it is extended
afterwards. For this case there are flags: they are computed with the first lane's value, and an access takes the
quick way only if the flag of its address is true. When a warp continues at a stop, the first lane's value and the
flag are computed from the lanes in its frame. Lanes that the stop does not need may have any value there
(continuation.py).
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from pympsd_server.ptx.compiled_tier.planning.analysis import WarpPlan, is_varying_special
from pympsd_server.ptx.isa.datatypes import DTYPES
from pympsd_server.ptx.lowering.ir import Argument, Code, Operation, Register, Special, has_result, registers_written
from pympsd_server.ptx.syntax.tree import Immediate

_CERTAIN: Final = frozenset({"mov", "cvt", "cvta", "add", "sub", "shl", "mul", "mad"})
_MODIFIERS: Final = frozenset({"lo", "wide", "to", "global", "shared", "local", "const", "cta"})
_INTEGERS: Final = frozenset(f"{letter}{bits}" for letter in "bus" for bits in (32, 64))
_ROUNDS: Final = 4


@define
class Sequences:
    """The varying registers of a kernel that grow by a constant from lane to lane."""

    strides: dict[int, int | None] = field(factory=dict)
    """The constant by which each register seems to grow; None or missing if it does not grow steadily."""
    certain: set[int] = field(factory=set)
    """The registers that are known to grow by their constants; those in ``flagged`` only if their flags are true."""
    flagged: set[int] = field(factory=set)
    """The registers in ``certain`` that have a flag."""


def find_extended_input(operation: Operation, plan: WarpPlan) -> tuple[Argument, str] | None:
    """Return the varying operand that an operation extends, and its type, or None without one."""
    is_wide = operation.has("wide") and operation.name in ("mul", "mad")
    if is_wide or (operation.name == "cvt" and _nbytes(operation.types[0]) > _nbytes(operation.types[-1])):
        return next(((x, operation.type) for x in operation.inputs[:2] if plan.is_varying(x)), None)
    return None


def find_sequences(code: Code, plan: WarpPlan, *, linear: bool) -> Sequences:
    """Return the sequences of a kernel. `linear` is whether a block's threads are one row."""
    sequences = Sequences(_find_strides(plan, linear=linear))
    sequences.certain = {n for n in plan.varying if sequences.strides.get(n)} - plan.segments[0].live_in
    definitions = [
        (operation, {r.number for r in registers_written(operation, code.carry)}, segment.escapes, plan.blend[at])
        for at, segment in enumerate(plan.segments)
        for operation in [*segment.operations, *([segment.terminator] if segment.terminator else [])]
    ]
    before = -1
    while before != len(sequences.certain):
        before = len(sequences.certain)
        for operation, results, escapes, preserved in definitions:
            is_partial = escapes or operation.guard is not None or results & preserved
            if results & sequences.certain and (
                is_partial or not _is_certain(operation, code, plan, sequences, linear)
            ):
                sequences.certain -= results
    before = -1
    while before != len(sequences.flagged):
        before = len(sequences.flagged)
        for operation, results, _, _ in definitions:
            inputs = {x.number for x in operation.inputs if isinstance(x, Register)}
            if results & sequences.certain and (inputs & sequences.flagged or find_extended_input(operation, plan)):
                sequences.flagged |= results
    return sequences


def _is_certain(operation: Operation, code: Code, plan: WarpPlan, sequences: Sequences, linear: bool) -> bool:
    """Return whether the result of an operation is a sequence if its inputs are."""
    modifiers = {modifier for modifier in operation.modifiers if modifier not in operation.types}
    is_known = operation.name in _CERTAIN and operation.types and _INTEGERS.issuperset(operation.types)
    if not is_known or not modifiers <= _MODIFIERS:
        return False
    source, is_wide = _nbytes(operation.type), operation.has("wide")
    result = 2 * source if is_wide else _nbytes(operation.types[0])
    limit = 1 << 31 if is_wide else 32 if operation.name == "shl" else None
    for argument, nbytes in zip(operation.operands, (result, source, source, result), strict=False):
        if isinstance(argument, Register) and argument.number in plan.varying:
            if argument.number not in sequences.certain or _nbytes(code.register_types[argument.number]) != nbytes:
                return False
        elif isinstance(argument, Immediate) and limit is not None and not 0 <= argument.value < limit:
            return False
    strides = [_stride_of(x, plan, sequences.strides, linear=linear) for x in operation.inputs]
    target = operation.operands[0]
    return isinstance(target, Register) and _stride(operation, strides) == sequences.strides[target.number]


def _nbytes(type_name: str) -> int:
    return DTYPES[type_name].itemsize


def _find_strides(plan: WarpPlan, *, linear: bool) -> dict[int, int | None]:
    strides: dict[int, int | None] = {}
    for _ in range(_ROUNDS):
        for segment in plan.segments:
            for operation in segment.operations:
                if has_result(operation) and operation.operands and isinstance(operation.operands[0], Register):
                    number = operation.operands[0].number
                    inputs = [_stride_of(x, plan, strides, linear=linear) for x in operation.inputs]
                    value = _stride(operation, inputs)
                    strides[number] = value if strides.get(number, value) == value else None
    return strides


def _stride_of(argument: Argument, plan: WarpPlan, strides: dict[int, int | None], *, linear: bool) -> int | None:
    if isinstance(argument, Register):
        return strides.get(argument.number) if argument.number in plan.varying else 0
    if isinstance(argument, Special) and is_varying_special(argument.name, rows=plan.rows):
        follows = argument.name == "%laneid" or (argument.name == "%tid.x" and (plan.rows or linear))
        return 1 if follows else None
    return 0


def _stride(operation: Operation, strides: list[int | None]) -> int | None:
    """Return how much an operation's result grows from lane to lane if its inputs grow by `strides`.

    Return None if it does not grow steadily, or if that is unknown.
    """
    name, inputs = operation.name, operation.inputs
    if name in ("mov", "cvt", "cvta"):
        return strides[0]
    if name == "shl" and strides[0] is not None and isinstance(inputs[1], Immediate):
        return strides[0] << min(inputs[1].value, 63)
    if None in strides or name not in ("add", "sub", "or", "mul", "mad"):
        return None
    addends = [s or 0 for s in strides]
    if name in ("add", "or"):
        return addends[0] + addends[1]
    if name == "sub":
        return addends[0] - addends[1]
    factors = [x.value if isinstance(x, Immediate) else None for x in inputs[:2]]
    total = addends[2] if name == "mad" else 0
    for stride, factor in ((addends[0], factors[1]), (addends[1], factors[0])):
        if stride and factor is None:
            return None
        total += stride * (factor or 0)
    return total
