"""Integer operations that NumPy lacks or defines otherwise, as PTX defines them.

All functions take NumPy scalars or one-dimensional arrays of unsigned or signed integers of the operand's width, and
return the same; a scalar stands for a value that all threads share. Shifts, divisions by zero, saturation and bit
fields have the results that the PTX ISA gives, or, if it leaves them open, those that were recorded on a GPU.
"""

import numpy as np

from pympsd_server.ptx.isa.datatypes import U32, DType, Value, unsigned_of


def select(condition: Value, yes: Value, no: Value) -> Value:
    """Return per thread `yes` or `no`; a uniform condition keeps uniform values uniform."""
    if condition.ndim == 0:
        return yes if condition else no
    return np.where(condition, yes, no)


def divide(a: Value, b: Value) -> Value:
    """Return the quotient truncated towards zero. By zero, all bits are one, as on the hardware."""
    dtype = a.dtype
    if dtype.kind == "u":
        quotient = a // b
    elif dtype.itemsize <= 4:
        # The quotient of 32-bit integers in double precision never rounds up to the next integer.
        quotient = (a.astype(np.float64) / b).astype(np.int64).astype(dtype)
    else:
        quotient = (a - np.fmod(a, b)) // b
    return select(b == 0, (~dtype.type(0)).astype(dtype), quotient)


def remainder(a: Value, b: Value) -> Value:
    """Return the remainder with the sign of `a`. By zero, all bits are one, as on the hardware."""
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
        # Two's complement: subtract the other operand for each negative one.
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
    """mul24: the product of the low 24 bits; .lo its low 32 bits, .hi its bits 16 to 47."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    up = a.dtype.type(8)
    product = ((a << up) >> up).astype(wide) * ((b << up) >> up).astype(wide)
    if high:
        product = product >> wide(16)
    return product.astype(unsigned_of(a.dtype)).view(a.dtype)


def add_saturating(a: Value, b: Value, negate: bool = False) -> Value:
    """add.sat.s32 and, with `negate`, sub.sat.s32."""
    wide = a.astype(np.int64) - b if negate else a.astype(np.int64) + b
    return convert_integer(wide, np.dtype(np.int32), saturate=True)


def absolute_difference(a: Value, b: Value) -> Value:
    """Return |a - b| without overflow, as sad needs it."""
    return select(a < b, b - a, a - b)


def dot(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool) -> Value:
    """dp4a: the sum of four byte products and c, wrapping."""
    result = c.view(np.uint32) if c.dtype != np.uint32 else c
    for byte in range(4):
        result = result + _byte(a, byte, a_signed) * _byte(b, byte, b_signed)
    return result


def dot_pairs(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, high: bool) -> Value:
    """dp2a: two 16-bit by 8-bit products (bytes 2 and 3 of b with .hi) and c."""
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
    """shl: amounts of the width or more give 0 (`amount` is uint32)."""
    bits = a.dtype.itemsize * 8
    return _clamp(a << np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype), amount, bits)


def shift_right(a: Value, amount: Value) -> Value:
    """shr: amounts beyond the width give 0, or the sign."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(amount, np.uint32(bits - 1)).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else _clamp(shifted, amount, bits)


def _clamp(shifted: Value, amount: Value, bits: int) -> Value:
    return select(amount >= np.uint32(bits), shifted.dtype.type(0), shifted)


def convert_integer(value: Value, dtype: DType, saturate: bool) -> Value:
    """Convert an integer to another type; with `saturate` it is clamped to the range of `dtype`."""
    if saturate:
        low, high = np.iinfo(value.dtype), np.iinfo(dtype)
        least, most = (value.dtype.type(x) for x in (max(low.min, high.min), min(low.max, high.max)))
        value = np.minimum(np.maximum(value, least), most)
    return value.astype(dtype)


def population(value: Value) -> Value:
    """popc: return the number of set bits (uint32)."""
    return np.bitwise_count(value).astype(np.uint32)


def _smear(value: Value) -> Value:
    """Return all bits below the highest set bit, and it, set. `value` is unsigned."""
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
    """Return a field's position or length. Beyond PTX's 0 to 255 the result is an H200's."""
    return value & np.uint32(255) if dtype.itemsize < 8 else np.minimum(value, np.uint32(255))


def extract(value: Value, position: Value, length: Value) -> Value:
    """bfe: `length` bits from `position`, sign-extended for signed types."""
    width = np.uint32(8 * value.dtype.itemsize)
    # Beyond the operand lie copies of its sign (0 for unsigned).
    shifted = shift_right(value, _field_operand(position, value.dtype))
    above = width - np.minimum(_field_operand(length, value.dtype), width)
    return shift_right(shift_left(shifted, above), above)


def insert(source: Value, target: Value, position: Value, length: Value) -> Value:
    """bfi: the low `length` bits of source into target at `position`."""
    position, length = (_field_operand(v, source.dtype) for v in (position, length))
    mask = _field(position, length, source.dtype)
    return (target & ~mask) | (shift_left(source, position) & mask)


def extend(value: Value, length: Value, wrap: bool) -> Value:
    """szext: the low `length` bits, sign-extended for signed types; clamped at 32, or mod 32 with wrap."""
    length = length & np.uint32(31) if wrap else np.minimum(length, np.uint32(32))
    return extract(value, np.uint32(0), length)


def field_mask(position: Value, length: Value, wrap: bool) -> Value:
    """bmsk: `length` ones from `position`; clamped at 32, or both mod 32 with wrap."""
    if wrap:
        position, length = position & np.uint32(31), length & np.uint32(31)
    return _field(position, length, U32)


def find_nth_set(mask: Value, base: Value, offset: Value) -> Value:
    """fns: the |offset|-th set bit of mask from bit base, upwards if offset > 0; 0xffffffff if none."""
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
    """shf: shift 64 bits of two registers, and return the upper or lower half."""
    amount = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    by = amount.astype(np.uint64)
    return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)


def permute(a: Value, b: Value, selector: Value) -> Value:
    """prmt, default mode: each nibble of the selector picks a byte, or its sign with bit 3."""
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
"""The selectors of prmt's modes, by the two lowest bits of the third operand."""


def permute_mode(a: Value, b: Value, selector: Value, mode: str) -> Value:
    """prmt.f4e and its kin: the low two bits of the selector choose a fixed pattern."""
    row, pattern = selector & np.uint32(3), np.uint32(PERMUTE_MODES[mode][3])
    for number, selectors in enumerate(PERMUTE_MODES[mode][:3]):
        pattern = select(row == number, np.uint32(selectors), pattern)
    return permute(a, b, pattern)
