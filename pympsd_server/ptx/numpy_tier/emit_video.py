"""Write video instructions: on words and parts of words, and on two or four elements (SIMD).

math/video.py computes them. Operands may be parts of registers (`.b0`, `.h1`). SIMD instructions have selectors and
masks instead (`.h10`, `.b3210`).
"""

import itertools
import re

from pympsd_server.ptx.isa.datatypes import U32
from pympsd_server.ptx.lowering.ir import Argument, Negative, Operation, Part
from pympsd_server.ptx.numpy_tier.instruction_table import emits
from pympsd_server.ptx.numpy_tier.writer import Writer

_WIDTHS = {"b": 8, "h": 16}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_SECOND = ("add", "min", "max")
_WORDS = ("u32", "s32")
_SCALES = {"": 0, "shr7": 7, "shr15": 15}
_SELECTOR = re.compile(r"([bh])([0-7]+)")


def _place(writer: Writer, selector: str) -> tuple[int, int]:
    """Return the first bit and the number of bits of a part of a register; "" is the whole register."""
    if not selector:
        return 0, 32
    width = _WIDTHS[selector[0]]
    writer.refuse_if(
        len(selector) != 2 or int(selector[1]) * width >= 32,
        f"there is no part .{selector} of a register, only .b0 to .b3, .h0 and .h1",
    )
    return int(selector[1]) * width, width


def _whole(writer: Writer, argument: Argument) -> tuple[Argument, str]:
    """Return an operand without its selector, and the selector."""
    if isinstance(argument, Negative):
        raise writer.refuse("only the operands of vmad may be negated")
    return (argument.register, argument.selector) if isinstance(argument, Part) else (argument, "")


def _input(writer: Writer, argument: Argument, kind: str) -> str:
    """Return the name of an operand's value as int64; the operand may be a part of a register."""
    register, selector = _whole(writer, argument)
    low, width = _place(writer, selector)
    return writer.keep(f"video_part({writer.value(register, U32)}, {low}, {width}, {kind == 's32'})")


def _check_types(writer: Writer, operation: Operation, count: int) -> None:
    writer.refuse_if(len(operation.types) != count, f"{count} types are needed")


@emits("vadd vsub vabsdiff vmin vmax", (3, 4), "sat add min max", _WORDS)
def _arithmetic(writer: Writer, operation: Operation) -> None:
    _check_types(writer, operation, 3)
    result = _primary(writer, operation, operation.name)
    signed, width = operation.types[0] == "s32", _width_of_target(writer, operation)
    if operation.has("sat"):
        result = writer.keep(f"video_saturate({result}, {width}, {signed})")
    _finish(writer, operation, result, signed, cut=operation.name in ("vadd", "vsub"))


@emits("vset", (3, 4), f"add min max {' '.join(_COMPARISONS)}", _WORDS)
def _compare(writer: Writer, operation: Operation) -> None:
    _check_types(writer, operation, 2)
    # On a GPU, .min and .max compare as the type of a, although the PTX ISA says that the result is unsigned.
    result = _primary(writer, operation, _comparison(writer, operation))
    _finish(writer, operation, result, operation.types[0] == "s32", cut=False)


@emits("vshl vshr", (3, 4), "sat clamp wrap add min max", _WORDS)
def _shift(writer: Writer, operation: Operation) -> None:
    _check_types(writer, operation, 3)
    writer.refuse_if(
        operation.types[2] != "u32" or operation.has("clamp") == operation.has("wrap"),
        "the last type is .u32, and one of .clamp and .wrap is needed",
    )
    a, b = (_input(writer, x, kind) for x, kind in zip(operation.operands[1:3], operation.types[1:], strict=True))
    result = writer.keep(f"video_shift({operation.name!r}, {a}, {b}, {operation.has('wrap')})")
    signed = operation.types[0] == "s32"
    if operation.has("sat"):
        result = writer.keep(f"video_saturate_shift({result}, {signed})")
    _finish(writer, operation, result, signed, cut=operation.has("sat"))


def _primary(writer: Writer, operation: Operation, name: str) -> str:
    a, b = (_input(writer, x, kind) for x, kind in zip(operation.operands[1:3], operation.types[-2:], strict=True))
    return writer.keep(f"video_result({name!r}, {a}, {b})")


def _comparison(writer: Writer, operation: Operation) -> str:
    names = [m for m in operation.modifiers if m in _COMPARISONS]
    writer.refuse_if(len(names) != 1, "one of .eq, .ne, .lt, .le, .gt and .ge is needed")
    return names[0]


def _width_of_target(writer: Writer, operation: Operation) -> int:
    """Return the number of bits of the destination.

    Raises InvalidPtx if the third operand is missing, or if the destination is a part and there is a second
    operation.
    """
    selector = _whole(writer, operation.operands[0])[1]
    second = [m for m in operation.modifiers if m in _SECOND]
    writer.refuse_if(
        len(second) > 1 or (selector and second),
        "a part of a register as the destination, or one of .add, .min and .max",
    )
    writer.refuse_if(bool(selector or second) and len(operation.operands) != 4, "a third operand is needed")
    return _place(writer, selector)[1]


def _finish(writer: Writer, operation: Operation, result: str, signed: bool, cut: bool) -> None:
    """Write the second operation with the third operand, or the merge into it, and the assignment.

    `signed` is how .min and .max compare, `cut` whether they compare only the low 32 bits of the result.
    """
    _width_of_target(writer, operation)
    target, selector = _whole(writer, operation.operands[0])
    second = operation.one_of(*_SECOND)
    c, unneeded = _whole(writer, operation.operands[-1]) if len(operation.operands) == 4 else (None, "")
    writer.refuse_if(unneeded, "the third operand is a whole register")
    if c is None or not (selector or second):
        return writer.assign(target, f"video_word({result})", U32)
    value = writer.value(c, U32)
    if selector:
        low, width = _place(writer, selector)
        return writer.assign(target, f"video_merge({result}, {value}, {low}, {width})", U32)
    if second == "add":
        return writer.assign(target, f"video_word({result}) + {value}", U32)
    compared = writer.keep(f"video_cut({result})") if cut else result
    return writer.assign(target, f"video_word(video_extreme({second!r}, {compared}, {value}, {signed}))", U32)


@emits("vmad", 4, "po sat shr7 shr15", _WORDS)
def _multiply_add(writer: Writer, operation: Operation) -> None:
    """Write vmad. Whether the result is signed depends on a, b and the negations, not on the first type."""
    _check_types(writer, operation, 3)
    negative = [isinstance(x, Negative) for x in operation.inputs]
    a, b, c = (x.argument if isinstance(x, Negative) else x for x in operation.inputs)
    product, scale = negative[0] != negative[1], _SCALES[operation.one_of("shr7", "shr15")]
    if isinstance(operation.operands[0], Part) or isinstance(c, Part):
        raise writer.refuse("only a and b may be parts of registers")
    writer.refuse_if(
        (product and negative[2])
        or (operation.has("po") and any(negative))
        or (operation.has("shr7") and operation.has("shr15")),
        "either the product or c may be negated, neither with .po, and there is one scale",
    )
    signed = "s32" in operation.types[1:] or product or negative[2]
    values = ", ".join(_input(writer, x, kind) for x, kind in zip((a, b), operation.types[1:], strict=True))
    options = f"({product}, {negative[2]}), {operation.has('po')}, {scale}, {signed}, {operation.has('sat')}"
    writer.set_result(f"video_multiply_add({values}, {writer.value(c, U32)}, {options})", U32)


def _names(elements: int) -> str:
    return " ".join(f"{name}{elements}" for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"))


@emits(f"{_names(2)} {_names(4)}", 4, "sat add", _WORDS)
def _simd(writer: Writer, operation: Operation) -> None:
    _check_types(writer, operation, 3)
    writer.refuse_if(operation.has("sat") and operation.has("add"), ".sat and .add exclude each other")
    _write_simd(writer, operation, operation.name[:-1], operation.types)


@emits("vset2 vset4", 4, f"add {' '.join(_COMPARISONS)}", _WORDS)
def _compare_simd(writer: Writer, operation: Operation) -> None:
    _check_types(writer, operation, 2)
    _write_simd(writer, operation, _comparison(writer, operation), ("u32", *operation.types))


def _write_simd(writer: Writer, operation: Operation, name: str, types: tuple[str, ...]) -> None:
    """Write a SIMD instruction, with the selectors and the mask as tuples of numbers of elements."""
    elements = int(operation.name[-1])
    (target, mask), *inputs = (_whole(writer, x) for x in operation.operands)
    writer.refuse_if(inputs[2][1], "the third operand is a whole register")
    digits = [_digits(writer, elements, selector) for selector in (mask, inputs[0][1], inputs[1][1])]
    written = digits[0] or tuple(range(elements))
    writer.refuse_if(
        any(a >= b for a, b in itertools.pairwise(written)) or written[-1] >= elements,
        f"a mask names each of {elements} elements once at most, the highest first",
    )
    selectors = tuple(
        selector or tuple(range(first, first + elements))
        for selector, first in zip(digits[1:], (0, elements), strict=True)
    )
    writer.refuse_if(
        any(len(selector) != elements or max(selector) >= 2 * elements for selector in selectors),
        f"a selector has {elements} digits below {2 * elements}",
    )
    values = ", ".join(writer.value(x, U32) for x, _ in inputs)
    signs = tuple(kind == "s32" for kind in types)
    options = f"{selectors}, {written}, {signs}, {operation.has('sat')}, {operation.has('add')}"
    writer.assign(target, f"video_simd({name!r}, {values}, {options})", U32)


def _digits(writer: Writer, elements: int, selector: str) -> tuple[int, ...]:
    """Return the digits of a selector or mask, from the lowest element's on, or () for an empty text."""
    if not selector:
        return ()
    match = _SELECTOR.fullmatch(selector)
    if match is None or match[1] != {2: "h", 4: "b"}[elements]:
        raise writer.refuse(f".{selector} is not a selector of {elements} elements")
    return tuple(int(digit) for digit in reversed(match[2]))
