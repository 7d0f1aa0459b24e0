"""Compute video instructions: arithmetic on bytes, half-words and words of 32-bit registers.

The PTX ISA describes the scalar instructions by an intermediate result of 34 bits. GPUs since Maxwell do not have
this unit, so the driver's assembler writes other instructions. Their results differ from the ISA's if the
intermediate result does not fit its destination. These functions do what an H100 was recorded to do
(tests/data/corpus, ``video_*``):

- A sum or difference of whole words is saturated to ``.u32`` from below only.
- ``.sat`` to a part of a register replaces every value out of range by the greatest value, even a value below the
  range.
- A result that is merged into ``.h1`` leaves its upper half there, not its lower half.
- ``.min`` and ``.max`` with a third operand compare 64 bits: the sum as signed, the third operand as its dtype.
- ``vmad`` treats whole words, and its third operand, as signed.

The SIMD instructions, of two and four parts, follow the ISA. All intermediate results here are int64.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import Value
from pympsd_server.ptx.math.integers import select

_WORD = 32
_UPPER = np.uint32(0xFFFF0000)


def video_part(value: Value, low: int, width: int, signed: bool) -> Value:
    """Return `width` bits of a 32-bit value, from bit `low` up, as int64; sign-extend them if they are `signed`."""
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
    """Return the primary result of vadd, vsub, vavrg, vabsdiff, vmin or vmax, or of a comparison (1 or 0)."""
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
    """Return the primary result of vshl or vshr. The amount wraps at 32 with `wrap`, else it is clamped to 32."""
    amount = b & np.int64(31) if wrap else np.minimum(b, np.int64(_WORD))
    return a << amount if name == "vshl" else a >> amount


def video_saturate(result: Value, width: int, signed: bool) -> Value:
    """Apply .sat to a result that is not a shift's, for a destination of `width` bits."""
    if width < _WORD:
        most = np.int64((1 << (width - signed)) - 1)
        return select((result < 0) | (result > most), most, result)
    return _clamp(result, width, signed=True) if signed else np.maximum(result, np.int64(0))


def video_saturate_shift(result: Value, signed: bool) -> Value:
    """Apply .sat to the low 34 bits of a shift's result, for the range of a whole word."""
    return _clamp(_extend(result, 34, signed=True), _WORD, signed)


def video_extreme(name: str, result: Value, c: Value, signed: bool) -> Value:
    """Return the result of .min or .max with the third operand `c`, a uint32."""
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
    """Return `c` (a uint32) with the result in `width` of its bits, from bit `low` up."""
    word = video_word(result)
    if (low, width) == (16, 16):
        return (word & _UPPER) | (c & ~_UPPER)
    mask = np.uint32((1 << width) - 1)
    at = np.uint32(low)
    return ((word & mask) << at) | (c & ~(mask << at))


def video_multiply_add(
    a: Value, b: Value, c: Value, negated: tuple[bool, bool], plus_one: bool, scale: int, signed: bool, saturate: bool
) -> Value:
    """vmad: return a * b + c as uint32, shifted right by `scale` bits.

    `negated` is whether the product and whether `c` are negated; with `plus_one`, 1 is added.
    """
    product, addend = video_cut(a) * video_cut(b), video_part(c, 0, _WORD, signed=True)
    if negated[0]:
        product = -product
    if negated[1]:
        # Negate by complementing and adding 1, so that the least number stays the same.
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
    """Return the result of a SIMD instruction on the two or four elements of uint32 values.

    - `selectors` has a row for each operand with the part that each element takes, lowest element first. The parts of
      a and b are numbered together, a's first.
    - `mask` has the elements that are written; the others keep c's bits.
    - `signs` is whether d, a and b are signed.
    - With `accumulate`, the result is the sum of c and all elements in `mask`.
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
