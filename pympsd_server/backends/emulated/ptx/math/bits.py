"""Operations on the bits of integers."""

from __future__ import annotations

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Value, unsigned
from pympsd_server.backends.emulated.ptx.math.integers import select


def population(value: Value) -> Value:
    return np.bitwise_count(value).astype(np.uint32)


def _smear(value: Value) -> Value:
    """Return all bits below the highest set bit, and it, set. `value` is unsigned."""
    step = 1
    while step < value.dtype.itemsize * 8:
        value = value | (value >> value.dtype.type(step))
        step *= 2
    return value


def leading_zeros(value: Value) -> Value:
    width = value.dtype.itemsize * 8
    return np.uint32(width) - population(_smear(value.view(unsigned(value.dtype))))


def find_highest(value: Value, shift_amount: bool) -> Value:
    """bfind: the highest bit that differs from the sign, 0xffffffff if none."""
    plain = value.view(unsigned(value.dtype))
    if value.dtype.kind == "i":
        plain = select(value < 0, ~plain, plain)
    found = population(_smear(plain)) - np.uint32(1)
    if shift_amount:
        found = select(plain != 0, np.uint32(value.dtype.itemsize * 8 - 1) - found, found)
    return found


def reverse(value: Value) -> Value:
    width = value.dtype.itemsize * 8
    step, mask = width // 2, (1 << width) - 1
    while step:
        mask ^= (mask << step) & ((1 << width) - 1)
        keep, by = value.dtype.type(mask), value.dtype.type(step)
        value = ((value >> by) & keep) | ((value & keep) << by)
        step //= 2
    return value


def _ones(length: Value) -> Value:
    """2**length - 1 for lengths up to 64, as uint64."""
    return select(
        length >= np.uint64(64), ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1)
    )


def _field_operand(value: Value, width: int) -> Value:
    """Return a field's position or length, as uint64. Beyond PTX's 0 to 255 it is what an H200 makes of it."""
    return (value & np.uint32(255) if width < 64 else np.minimum(value, np.uint32(255))).astype(np.uint64)


def extract(value: Value, position: Value, length: Value) -> Value:
    """bfe: `length` bits from `position`, sign-extended for signed types."""
    width = value.dtype.itemsize * 8
    position, length = _field_operand(position, width), _field_operand(length, width)
    wide = value.astype(np.int64 if value.dtype.kind == "i" else np.uint64)
    shifted = (wide >> np.minimum(position, np.uint64(63)).astype(wide.dtype)).view(np.uint64)
    # Beyond the operand lie copies of its sign (0 for unsigned), which the wide value has.
    if value.dtype.kind == "u":
        shifted = select(position >= np.uint64(width), np.uint64(0), shifted)
        return (shifted & _ones(length)).astype(value.dtype)
    field = shifted & _ones(length)
    top = select(length == 0, np.uint64(0), np.uint64(1) << np.minimum(length - np.uint64(1), np.uint64(63)))
    return ((field ^ top) - top).astype(unsigned(value.dtype)).view(value.dtype)


def insert(source: Value, target: Value, position: Value, length: Value) -> Value:
    """bfi: the low `length` bits of source into target at `position`."""
    width = source.dtype.itemsize * 8
    position, length = _field_operand(position, width), _field_operand(length, width)
    by = np.minimum(position, np.uint64(63))
    mask = select(position >= np.uint64(64), np.uint64(0), _ones(length) << by)
    wide = (target.astype(np.uint64) & ~mask) | ((source.astype(np.uint64) << by) & mask)
    return wide.astype(source.dtype)


def field_mask(position: Value, length: Value, wrap: bool) -> Value:
    """bmsk: `length` ones from `position`; clamped at 32, or both mod 32 with wrap."""
    if wrap:
        position, length = position & np.uint32(31), length & np.uint32(31)
    by, count = (np.minimum(v, np.uint32(32)).astype(np.uint64) for v in (position, length))
    return (_ones(count) << by).astype(np.uint32)


def find_nth_set(mask: Value, base: Value, offset: Value) -> Value:
    """fns: the |offset|-th set bit of mask from bit base, upwards if offset > 0; 0xffffffff if none."""
    if offset.ndim == 0 and offset == 0:
        hit = (mask >> np.minimum(base, np.uint32(31))) & np.uint32(1)
        return select(hit != 0, base, np.uint32(0xFFFFFFFF))
    result = np.full(np.broadcast_shapes(mask.shape, base.shape, offset.shape), 0xFFFFFFFF, np.uint32)
    start, wanted = base.astype(np.int64), np.abs(offset.astype(np.int64))
    step = select(offset < 0, np.int64(-1), np.int64(1))
    seen = np.zeros(result.shape, np.int64)
    for distance in range(32):
        at = start + step * distance
        inside = (at >= 0) & (at < 32)
        bit = inside & ((mask >> np.clip(at, 0, 31).astype(np.uint32)) & np.uint32(1) != 0)
        seen = seen + bit
        hit = bit & (seen == np.maximum(wanted, 1)) & ((wanted > 0) | (distance == 0))
        result = np.where(hit, at, result).astype(np.uint32)
    return result if result.ndim else result[()]


def funnel_shift(low: Value, high: Value, amount: Value, left: bool, wrap: bool) -> Value:
    amount = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    by = amount.astype(np.uint64)
    return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)


def permute(a: Value, b: Value, selector: Value) -> Value:
    """prmt, default mode: each nibble of the selector picks a byte, or its sign with bit 3."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.uint32(0)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte)).astype(np.uint64)
        picked = (both >> ((nibble & np.uint64(7)) << np.uint64(3))) & np.uint64(255)
        sign = select(picked >> np.uint64(7) != 0, np.uint64(255), np.uint64(0))
        picked = select(nibble & np.uint64(8) != 0, sign, picked)
        result = result | (picked.astype(np.uint32) << np.uint32(8 * byte))
    return result


_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def permute_mode(a: Value, b: Value, selector: Value, mode: str) -> Value:
    """prmt.f4e and its kin: the low two bits of the selector choose a fixed pattern."""
    patterns = np.array(_MODES[mode], np.uint32)
    return permute(a, b, patterns[(selector & np.uint32(3)).astype(np.int64)])
