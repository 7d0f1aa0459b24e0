"""Video instructions: arithmetic on bytes, half-words and words of 32-bit registers.

The PTX ISA describes the scalar instructions by an intermediate result of 34 bits. A GPU since Maxwell has no such
unit: the driver's assembler writes other instructions, and these differ from the ISA where that result does not fit
its destination. These functions follow the GPU, as recorded on an H100 (tests/data/corpus, ``video_*``):

- A sum or difference of whole words is saturated to ``.u32`` from below only.
- ``.sat`` to a part of a register takes the greatest value for everything out of range, also for lower values.
- A result that is merged into ``.h1`` leaves its upper half there, not its lower one.
- ``.min`` and ``.max`` with a third operand compare 64 bits: a sum counts as signed, the third operand as its dtype.
- ``vmad`` takes whole words and its third operand as signed.

The SIMD instructions, of two and four parts, follow the ISA. All intermediate results here are int64.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import Value
from pympsd_server.ptx.math.integers import select

_WORD = 32
_UPPER = np.uint32(0xFFFF0000)


def video_part(value: Value, low: int, width: int, signed: bool) -> Value:
    """Return `width` bits of a 32-bit value from bit `low` as int64, sign-extended or not."""
    return _extend(value.astype(np.int64) >> np.int64(low), width, signed)


def _extend(value: Value, width: int, signed: bool) -> Value:
    up = np.int64(64 - width)
    if signed:
        return (value << up) >> up
    return ((value << up).view(np.uint64) >> up.view(np.uint64)).view(np.int64)


def _clamp(value: Value, width: int, signed: bool) -> Value:
    least = -(1 << (width - 1)) if signed else 0
    return np.minimum(np.maximum(value, np.int64(least)), np.int64(least + (1 << width) - 1))


def video_result(name: str, a: Value, b: Value) -> Value:
    """Return the primary result: of vadd, vsub, vavrg, vabsdiff, vmin and vmax, or (1 or 0) of a comparison."""
    if name == "vadd":
        return a + b
    if name == "vsub":
        return a - b
    if name == "vavrg":
        total = a + b
        return (total + (total >= 0)) >> np.int64(1)
    if name == "vabsdiff":
        return np.absolute(a - b)
    if name in ("vmin", "vmax"):
        return np.minimum(a, b) if name == "vmin" else np.maximum(a, b)
    compared = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[name]
    return compared.astype(np.int64)


def video_shift(name: str, a: Value, b: Value, wrap: bool) -> Value:
    """Return the primary result of vshl and vshr; amounts wrap at 32, or end there."""
    amount = b & np.int64(31) if wrap else np.minimum(b, np.int64(_WORD))
    return a << amount if name == "vshl" else a >> amount


def video_saturate(result: Value, width: int, signed: bool) -> Value:
    """Return a result, of other than a shift, with .sat for a destination of `width` bits."""
    if width < _WORD:
        most = np.int64((1 << (width - signed)) - 1)
        return select((result < 0) | (result > most), most, result)
    return _clamp(result, width, signed=True) if signed else np.maximum(result, np.int64(0))


def video_saturate_shift(result: Value, signed: bool) -> Value:
    """Return the result of a shift, of which 34 bits count, with .sat; the destination counts as a whole."""
    return _clamp(_extend(result, 34, signed=True), _WORD, signed)


def video_extreme(name: str, result: Value, c: Value, signed: bool) -> Value:
    """Return the result of .min or .max with the third operand, a uint32."""
    third = video_part(c, 0, _WORD, signed)
    if not signed:
        result, third = result.view(np.uint64), third.view(np.uint64)
    extreme = np.minimum if name == "min" else np.maximum
    return extreme(result, third).view(np.int64)


def video_cut(result: Value) -> Value:
    """Return the low 32 bits of a result, sign-extended."""
    return _extend(result, _WORD, signed=True)


def video_word(result: Value) -> Value:
    """Return the low 32 bits of a result as uint32."""
    return result.astype(np.uint64).astype(np.uint32)


def video_merge(result: Value, c: Value, low: int, width: int) -> Value:
    """Return c (a uint32) with the result in `width` of its bits from `low`."""
    word = video_word(result)
    if (low, width) == (16, 16):
        return (word & _UPPER) | (c & ~_UPPER)
    mask = np.uint32((1 << width) - 1)
    at = np.uint32(low)
    return ((word & mask) << at) | (c & ~(mask << at))


def video_multiply_add(
    a: Value, b: Value, c: Value, negated: tuple[bool, bool], plus_one: bool, scale: int, signed: bool, saturate: bool
) -> Value:
    """vmad: return a * b + c as uint32. `negated` is of the product and of c, `scale` the bits to shift right."""
    product, addend = video_cut(a) * video_cut(b), video_part(c, 0, _WORD, signed=True)
    if negated[0]:
        product = -product
    if negated[1]:
        # The complement and 1: the negative of the least number is that number.
        addend = video_part(~c, 0, _WORD, signed=True) + np.int64(1)
    total = product + addend + np.int64(plus_one)
    by = np.int64(scale)
    total = total >> by if signed else (total.view(np.uint64) >> by.view(np.uint64)).view(np.int64)
    return video_word(_clamp(total, _WORD, signed) if saturate else total)


def video_simd(
    name: str,
    a: Value,
    b: Value,
    c: Value,
    selectors: tuple[tuple[int, ...], tuple[int, ...]],
    mask: tuple[int, ...],
    signs: tuple[bool, bool, bool],
    saturate: bool,
    accumulate: bool,
) -> Value:
    """Return the result of an instruction of two or four elements (SIMD), of uint32 values.

    `selectors` are, for each operand and element from the lowest, a part of a and b together; `mask` the elements
    that are written, of others c is kept; `signs` whether d, a and b are signed. `accumulate`: the sum of c and all
    elements.
    """
    width = _WORD // len(selectors[0])
    result = c
    for element in mask:
        x, y = (
            video_part(a if part * width < _WORD else b, part * width % _WORD, width, signed)
            for part, signed in zip((selectors[0][element], selectors[1][element]), signs[1:], strict=True)
        )
        part = video_result(name, x, y)
        if saturate:
            part = _clamp(part, width, signs[0])
        if accumulate:
            result = result + video_word(part)
            continue
        ones, at = np.uint32((1 << width) - 1), np.uint32(element * width)
        result = (result & ~(ones << at)) | ((video_word(part) & ones) << at)
    return result
