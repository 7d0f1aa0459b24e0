"""Video instructions of words and parts of them, and of two and four lanes; math/video.py computes them."""

from __future__ import annotations

import itertools
import re

from pympsd_server.backends.emulated.ptx.isa.datatypes import U32
from pympsd_server.backends.emulated.ptx.lowering.ir import Argument, Negative, Operation, Part
from pympsd_server.backends.emulated.ptx.numpy_tier.instruction_table import emits
from pympsd_server.backends.emulated.ptx.numpy_tier.writer import Writer

_WIDTHS = {"b": 8, "h": 16}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SECOND = ("add", "min", "max")
_WORDS = ("u32", "s32")
_SCALES = {"": 0, "shr7": 7, "shr15": 15}
_SELECTOR = re.compile(r"([bh])([0-7]+)")


def _place(w: Writer, selector: str) -> tuple[int, int]:
    """Return the first bit and the width of a part of a register; "" is the whole."""
    if not selector:
        return 0, 32
    width = _WIDTHS[selector[0]]
    if len(selector) != 2 or int(selector[1]) * width >= 32:
        raise w.refuse(f"there is no part .{selector} of a register, only .b0 to .b3, .h0 and .h1")
    return int(selector[1]) * width, width


def _whole(w: Writer, argument: Argument) -> tuple[Argument, str]:
    """Return an operand without its selector, and the selector."""
    if isinstance(argument, Negative):
        raise w.refuse("only the operands of vmad may be negated")
    return (argument.register, argument.selector) if isinstance(argument, Part) else (argument, "")


def _input(w: Writer, argument: Argument, kind: str) -> str:
    """Write an operand's value, or that of its part, as int64."""
    register, selector = _whole(w, argument)
    low, width = _place(w, selector)
    return w.keep(f"video_part({w.value(register, U32)}, {low}, {width}, {kind == 's32'})")


def _check_types(w: Writer, o: Operation, count: int) -> None:
    if len(o.types) != count:
        raise w.refuse(f"{count} types are needed")


@emits("vadd vsub vabsdiff vmin vmax", (3, 4), "sat add min max", _WORDS)
def _arithmetic(w: Writer, o: Operation) -> None:
    _check_types(w, o, 3)
    result = _primary(w, o, o.name)
    signed, width = o.types[0] == "s32", _width_of_target(w, o)
    if o.has("sat"):
        result = w.keep(f"video_saturate({result}, {width}, {signed})")
    _finish(w, o, result, signed, cut=o.name in ("vadd", "vsub"))


@emits("vset", (3, 4), f"add min max {' '.join(_COMPARISONS)}", _WORDS)
def _compare(w: Writer, o: Operation) -> None:
    _check_types(w, o, 2)
    # On a GPU the type of a says how .min and .max compare; PTX calls the result unsigned.
    _finish(w, o, _primary(w, o, _comparison(w, o)), o.types[0] == "s32", cut=False)


@emits("vshl vshr", (3, 4), "sat clamp wrap add min max", _WORDS)
def _shift(w: Writer, o: Operation) -> None:
    _check_types(w, o, 3)
    if o.types[2] != "u32" or o.has("clamp") == o.has("wrap"):
        raise w.refuse("the last type is .u32, and one of .clamp and .wrap is needed")
    a, b = (_input(w, x, kind) for x, kind in zip(o.operands[1:3], o.types[1:], strict=True))
    result, signed = w.keep(f"video_shift({o.name!r}, {a}, {b}, {o.has('wrap')})"), o.types[0] == "s32"
    if o.has("sat"):
        result = w.keep(f"video_saturate_shift({result}, {signed})")
    _finish(w, o, result, signed, cut=o.has("sat"))


def _primary(w: Writer, o: Operation, name: str) -> str:
    a, b = (_input(w, x, kind) for x, kind in zip(o.operands[1:3], o.types[-2:], strict=True))
    return w.keep(f"video_result({name!r}, {a}, {b})")


def _comparison(w: Writer, o: Operation) -> str:
    names = [m for m in o.modifiers if m in _COMPARISONS]
    if len(names) != 1:
        raise w.refuse("one of .eq, .ne, .lt, .le, .gt and .ge is needed")
    return names[0]


def _width_of_target(w: Writer, o: Operation) -> int:
    """Return the bits of the destination. Raises InvalidPtx if its part and the third operand do not go together."""
    selector = _whole(w, o.operands[0])[1]
    second = [m for m in o.modifiers if m in _SECOND]
    if len(second) > 1 or (selector and second):
        raise w.refuse("a part of a register as the destination, or one of .add, .min and .max")
    if bool(selector or second) and len(o.operands) != 4:
        raise w.refuse("a third operand is needed")
    return _place(w, selector)[1]


def _finish(w: Writer, o: Operation, result: str, signed: bool, cut: bool) -> None:
    """Write the operation with, or the merge into, the third operand, and the assignment.

    `signed`: how .min and .max compare; `cut`: whether they see the low 32 bits of the result only.
    """
    _width_of_target(w, o)
    target, selector = _whole(w, o.operands[0])
    second = o.one_of(*_SECOND)
    c, unneeded = _whole(w, o.operands[-1]) if len(o.operands) == 4 else (None, "")
    if unneeded:
        raise w.refuse("the third operand is a whole register")
    if c is None or not (selector or second):
        return w.assign(target, f"video_word({result})", U32)
    value = w.value(c, U32)
    if selector:
        low, width = _place(w, selector)
        return w.assign(target, f"video_merge({result}, {value}, {low}, {width})", U32)
    if second == "add":
        return w.assign(target, f"video_word({result}) + {value}", U32)
    compared = w.keep(f"video_cut({result})") if cut else result
    return w.assign(target, f"video_word(video_extreme({second!r}, {compared}, {value}, {signed}))", U32)


@emits("vmad", 4, "po sat shr7 shr15", _WORDS)
def _multiply_add(w: Writer, o: Operation) -> None:
    """Write vmad. Whether the result is signed depends on a, b and the signs, whatever the first type is."""
    _check_types(w, o, 3)
    negative = [isinstance(x, Negative) for x in o.operands[1:]]
    a, b, c = (x.argument if isinstance(x, Negative) else x for x in o.operands[1:])
    product, scale = negative[0] != negative[1], _SCALES[o.one_of("shr7", "shr15")]
    if isinstance(o.operands[0], Part) or isinstance(c, Part):
        raise w.refuse("only a and b may be parts of registers")
    if (product and negative[2]) or (o.has("po") and any(negative)) or (o.has("shr7") and o.has("shr15")):
        raise w.refuse("either the product or c may be negated, neither with .po, and there is one scale")
    signed = "s32" in o.types[1:] or product or negative[2]
    values = ", ".join(_input(w, x, kind) for x, kind in zip((a, b), o.types[1:], strict=True))
    options = f"({product}, {negative[2]}), {o.has('po')}, {scale}, {signed}, {o.has('sat')}"
    w.assign(o.operands[0], f"video_multiply_add({values}, {w.value(c, U32)}, {options})", U32)


def _names(lanes: int) -> str:
    return " ".join(f"{name}{lanes}" for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"))


@emits(f"{_names(2)} {_names(4)}", 4, "sat add", _WORDS)
def _lanes(w: Writer, o: Operation) -> None:
    _check_types(w, o, 3)
    if o.has("sat") and o.has("add"):
        raise w.refuse(".sat and .add exclude each other")
    _write_lanes(w, o, o.name[:-1], o.types)


@emits("vset2 vset4", 4, f"add {' '.join(_COMPARISONS)}", _WORDS)
def _compare_lanes(w: Writer, o: Operation) -> None:
    _check_types(w, o, 2)
    _write_lanes(w, o, _comparison(w, o), ("u32", *o.types))


def _write_lanes(w: Writer, o: Operation, name: str, types: tuple[str, ...]) -> None:
    lanes = int(o.name[-1])
    (target, mask), *inputs = (_whole(w, x) for x in o.operands)
    if inputs[2][1]:
        raise w.refuse("the third operand is a whole register")
    digits = [_digits(w, lanes, selector) for selector in (mask, inputs[0][1], inputs[1][1])]
    written = digits[0] or tuple(range(lanes))
    if any(a >= b for a, b in itertools.pairwise(written)) or written[-1] >= lanes:
        raise w.refuse(f"a mask names each of {lanes} lanes once at most, the highest first")
    selectors = tuple(
        chosen or tuple(range(first, first + lanes)) for chosen, first in zip(digits[1:], (0, lanes), strict=True)
    )
    if any(len(chosen) != lanes or max(chosen) >= 2 * lanes for chosen in selectors):
        raise w.refuse(f"a selector has {lanes} digits below {2 * lanes}")
    values = ", ".join(w.value(x, U32) for x, _ in inputs)
    signs = tuple(kind == "s32" for kind in types)
    options = f"{selectors}, {written}, {signs}, {o.has('sat')}, {o.has('add')}"
    w.assign(target, f"video_lanes({name!r}, {values}, {options})", U32)


def _digits(w: Writer, lanes: int, selector: str) -> tuple[int, ...]:
    """Return the digits of a selector or mask, that of the lowest lane first; none if there is no selector."""
    if not selector:
        return ()
    match = _SELECTOR.fullmatch(selector)
    if match is None or match[1] != {2: "h", 4: "b"}[lanes]:
        raise w.refuse(f".{selector} is not a selector of {lanes} lanes")
    return tuple(int(digit) for digit in reversed(match[2]))
