"""Compute integer operations of PTX that NumPy lacks, or defines in another way.

All functions take and return NumPy scalars or one-dimensional arrays, of unsigned or signed integers that have the
operand's width. A scalar is a value that all threads share. Shifts, divisions by zero, saturation and bit fields have
the results of the PTX ISA or, if it leaves them undefined, the results recorded on a GPU.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import U32, DType, Value, unsigned_of


def select(condition: Value, yes: Value, no: Value) -> Value:
    """Return `yes` or `no` for each thread; if the condition is uniform, uniform values stay uniform."""
    if condition.ndim == 0:
        return yes if condition else no
    return np.where(condition, yes, no)


def divide(a: Value, b: Value) -> Value:
    """Return the quotient, truncated towards zero. Division by zero sets all bits, as on a GPU."""
    dtype = a.dtype
    if dtype.kind == "u":
        quotient = a // b
    elif dtype.itemsize <= 4:
        # In double precision, the quotient of 32-bit integers never rounds up to the next integer.
        quotient = (a.astype(np.float64) / b).astype(np.int64).astype(dtype)
    else:
        quotient = (a - np.fmod(a, b)) // b
    return select(b == 0, (~dtype.type(0)).astype(dtype), quotient)


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder, with the sign of `a`. Division by zero sets all bits, as on a GPU."""
    result = np.fmod(a, b)
    return select(b == 0, (~a.dtype.type(0)).astype(a.dtype), result)


def multiply_high(a: Value, b: Value) -> Value:
    """Return the upper half of the product."""
    dtype = a.dtype
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    high = _multiply_high_unsigned(a.view(np.uint64), b.view(np.uint64))
    if dtype.kind == "i":
        # In two's complement, the other operand must be subtracted for each negative operand.
        high = high - select(a < 0, b.view(np.uint64), np.uint64(0))
        high = high - select(b < 0, a.view(np.uint64), np.uint64(0))
    return high.view(dtype)


def _multiply_high_unsigned(a: Value, b: Value) -> Value:
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    carry = a_low * b_low >> half
    middle = a_high * b_low + carry
    second_middle = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (second_middle >> half)


def multiply_24(a: Value, b: Value, high: bool) -> Value:
    """mul24: return bits 0 to 31 (.lo) or 16 to 47 (.hi) of the product of the operands' low 24 bits."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    up = a.dtype.type(8)
    product = ((a << up) >> up).astype(wide) * ((b << up) >> up).astype(wide)
    if high:
        product = product >> wide(16)
    return product.astype(unsigned_of(a.dtype)).view(a.dtype)


def add_saturating(a: Value, b: Value, negate: bool = False) -> Value:
    """add.sat.s32, or with `negate` sub.sat.s32: return the sum or difference, clamped to 32 bits."""
    wide = a.astype(np.int64) - b if negate else a.astype(np.int64) + b
    return convert_integer(wide, np.dtype(np.int32))


def absolute_difference(a: Value, b: Value) -> Value:
    """sad: return |a - b|, without overflow."""
    return select(a < b, b - a, a - b)


def dot(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool) -> Value:
    """dp4a: return the wrapped sum of c and the products of four pairs of bytes."""
    result = c.view(np.uint32) if c.dtype != np.uint32 else c
    for byte in range(4):
        result = result + _byte(a, byte, a_signed) * _byte(b, byte, b_signed)
    return result


def dot_pairs(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, high: bool) -> Value:
    """dp2a: return the wrapped sum of c and two products of 16 by 8 bits; .hi takes bytes 2 and 3 of b."""
    result = c.view(np.uint32) if c.dtype != np.uint32 else c
    for half in range(2):
        x = _part(a, 16 * half, 16, a_signed)
        result = result + x * _byte(b, half + 2 * high, b_signed)
    return result


def _byte(value: Value, index: int, signed: bool) -> Value:
    return _part(value, 8 * index, 8, signed)


def _part(value: Value, low: int, width: int, signed: bool) -> Value:
    up = value.view(np.uint32) << np.uint32(32 - low - width)
    if signed:
        return (up.view(np.int32) >> np.int32(32 - width)).view(np.uint32)
    return up >> np.uint32(32 - width)


def shift_left(a: Value, amount: Value) -> Value:
    """shl: shift left; if the amount (uint32) is the width or more, the result is 0."""
    bits = a.dtype.itemsize * 8
    return _clamp(a << np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype), amount, bits)


def shift_right(a: Value, amount: Value) -> Value:
    """shr: shift right; an amount (uint32) of the width or more gives 0, or for signed types copies of the sign."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else _clamp(shifted, amount, bits)


def _clamp(shifted: Value, amount: Value, bits: int) -> Value:
    return select(amount >= np.uint32(bits), shifted.dtype.type(0), shifted)


def convert_integer(value: Value, dtype: DType) -> Value:
    """Convert an integer to another type, clamped to the range of `dtype`."""
    low, high = np.iinfo(value.dtype), np.iinfo(dtype)
    least, most = (value.dtype.type(x) for x in (max(low.min, high.min), min(low.max, high.max)))
    return np.minimum(np.maximum(value, least), most).astype(dtype)


def population(value: Value) -> Value:
    """popc: return the number of set bits (uint32)."""
    return np.bitwise_count(value).astype(np.uint32)


def _smear(value: Value) -> Value:
    """Return an unsigned value with the highest set bit and all bits below it set."""
    step = 1
    while step < value.dtype.itemsize * 8:
        value = value | (value >> value.dtype.type(step))
        step *= 2
    return value


def leading_zeros(value: Value) -> Value:
    """clz: return the number of zeros above the highest set bit (uint32)."""
    width = value.dtype.itemsize * 8
    return np.uint32(width) - population(_smear(value.view(unsigned_of(value.dtype))))


def reverse(value: Value) -> Value:
    """brev: return the bits in reverse order."""
    width = value.dtype.itemsize * 8
    step, mask = width // 2, (1 << width) - 1
    while step:
        mask ^= (mask << step) & ((1 << width) - 1)
        keep, by = value.dtype.type(mask), value.dtype.type(step)
        value = ((value >> by) & keep) | ((value & keep) << by)
        step //= 2
    return value


def _field(position: Value, length: Value, dtype: DType) -> Value:
    """Return `length` ones from `position`, as an unsigned integer."""
    return shift_left(~shift_left(~dtype.type(0), length), position)


def _field_operand(value: Value, dtype: DType) -> Value:
    """Return a field's position or length. Values beyond PTX's range of 0 to 255 are treated as on an H200."""
    return value & np.uint32(255) if dtype.itemsize < 8 else np.minimum(value, np.uint32(255))


def extract(value: Value, position: Value, length: Value) -> Value:
    """bfe: return `length` bits from `position` up, sign-extended for signed types."""
    width = np.uint32(8 * value.dtype.itemsize)
    # Bits past the operand are copies of its sign, or 0 for unsigned types.
    shifted = shift_right(value, _field_operand(position, value.dtype))
    above = width - np.minimum(_field_operand(length, value.dtype), width)
    return shift_right(shift_left(shifted, above), above)


def insert(source: Value, target: Value, position: Value, length: Value) -> Value:
    """bfi: return the target with the low `length` bits of the source at `position`."""
    position, length = (_field_operand(v, source.dtype) for v in (position, length))
    mask = _field(position, length, source.dtype)
    return (target & ~mask) | (shift_left(source, position) & mask)


def extend(value: Value, length: Value, wrap: bool) -> Value:
    """szext: return the low `length` bits, sign-extended for signed types.

    With `wrap`, the length is taken modulo 32; otherwise a length above 32 counts as 32.
    """
    length = length & np.uint32(31) if wrap else np.minimum(length, np.uint32(32))
    return extract(value, np.uint32(0), length)


def field_mask(position: Value, length: Value, wrap: bool) -> Value:
    """bmsk: return `length` ones from `position` up.

    With `wrap`, both are taken modulo 32; otherwise values above 32 count as 32.
    """
    if wrap:
        position, length = position & np.uint32(31), length & np.uint32(31)
    return _field(position, length, U32)


def find_nth_set(mask: Value, base: Value, offset: Value) -> Value:
    """fns: return the position of the |offset|-th set bit of `mask`, counted from bit `base`; 0xffffffff without one.

    Count upwards if the offset is positive, downwards if it is negative. With offset 0 look only at bit `base`.
    """
    start, count = base.astype(np.int64), np.abs(offset.astype(np.int64))
    step = select(offset < 0, np.int64(-1), np.int64(1))
    result, set_bits = np.uint32(0xFFFFFFFF), np.int64(0)
    for distance in range(32):
        at = start + step * distance
        inside = (at >= 0) & (at < 32)
        bit = inside & ((mask >> np.minimum(np.maximum(at, 0), 31).astype(np.uint32)) & np.uint32(1) != 0)
        set_bits = set_bits + bit.astype(np.int64)
        hit = bit & (set_bits == np.maximum(count, 1)) & ((count > 0) | np.bool_(distance == 0))
        result = select(hit, at.astype(np.uint32), result)
    return result


def funnel_shift(low: Value, high: Value, amount: Value, left: bool, wrap: bool) -> Value:
    """shf: shift the 64 bits of two registers left or right; return the upper half if `left`, else the lower half."""
    amount = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    by = amount.astype(np.uint64)
    return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)


def permute(a: Value, b: Value, selector: Value) -> Value:
    """prmt in the default mode: each nibble of the selector picks a byte, or if its bit 3 is set the byte's sign."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.uint32(0)
    for byte in range(4):
        nibble = selector >> np.uint32(4 * byte)
        by = ((nibble & np.uint32(7)) << np.uint32(3)).astype(np.uint64)
        picked = (both >> by).astype(np.uint32) << np.uint32(24)
        sign = (picked.view(np.int32) >> np.int32(31)).view(np.uint32)
        picked = select((nibble & np.uint32(8)) != 0, sign, picked) & np.uint32(255 << 24)
        result = result | (picked >> np.uint32(24 - 8 * byte))
    return result


PERMUTE_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""The four patterns of each mode of prmt; the third operand's two lowest bits select one."""


def permute_mode(a: Value, b: Value, selector: Value, mode: str) -> Value:
    """prmt in another mode, such as f4e: the selector's two low bits choose one of the mode's patterns."""
    row, pattern = selector & np.uint32(3), np.uint32(PERMUTE_MODES[mode][3])
    for number, selectors in enumerate(PERMUTE_MODES[mode][:3]):
        pattern = select(row == number, np.uint32(selectors), pattern)
    return permute(a, b, pattern)
