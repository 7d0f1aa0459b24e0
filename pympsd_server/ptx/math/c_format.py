"""Format values by format strings of C's printf, with the conversions that CUDA's device printf supports."""

import ctypes
import re
from typing import Final

from attrs import frozen

_CONVERSION: Final = re.compile(
    rb"%(?P<flags>[-+ #0]*+)(?P<width>\*|\d*+)(?:\.(?P<precision>\*|\d*+))?+"
    rb"(?P<size>hh|h|ll|l|j|z|t|L)?(?P<type>[%cdiouxXpeEfFgGaAs])"
)
"""Repetitions are possessive. Otherwise a client's long run of zeros, which fit flags and width, takes minutes."""
_WIDE: Final = frozenset((b"ll", b"l", b"j", b"z", b"t"))
_MAX_WIDTH: Final = 1 << 12
"""The maximum width of a field in characters: a client chooses it, but all clients share the executor's memory."""
_MAX_ARGUMENTS: Final = 32
"""The maximum number of arguments (CUDA C++ Programming Guide, Formatted Output, Limitations)."""
MAX_STRING: Final = 1 << 16
"""The maximum size of a format, and of a string that it prints, in bytes; the rest is not printed."""
_SHORT: Final = {b"h": 16, b"hh": 8}
_libc: Final = ctypes.CDLL(None)


@frozen
class Conversion:
    """One conversion of a format. `arguments` are the kinds that it takes: "i4", "u4", "i8", "u8", "f8" or "s"."""

    flags: bytes
    width: bytes
    precision: bytes | None
    size: bytes
    type: bytes
    arguments: tuple[str, ...]

    def text(self, values: tuple[int | float | bytes, ...]) -> bytes:
        """Return the text of the arguments' values. The value of an argument "s" is the string, not its address."""
        if self.type == b"%":
            return b"%"
        *stars, value = values
        width, precision = self.width, self.precision
        if width == b"*":
            width = str(stars.pop(0)).encode()
        if precision == b"*":
            precision = str(stars.pop(0)).encode()
        flags = self.flags
        if width.startswith(b"-"):
            flags, width = flags + b"-", width[1:]
        field = flags + (b"%d" % _read_width(width) if width else b"")
        if precision is not None and not precision.startswith(b"-"):
            field += b".%d" % _read_width(precision)
        return self._convert(field, value)

    def _convert(self, field: bytes, value: int | float | bytes) -> bytes:
        """Return the text of a value by C's snprintf; `field` has the flags, the width and the precision."""
        if isinstance(value, float):
            return _snprintf(b"%" + field + self.type, ctypes.c_double(value))
        if isinstance(value, bytes):
            return _snprintf(b"%" + field + b"s", ctypes.c_char_p(value))
        if self.type == b"c":
            # %c may print a NUL, which a C string cannot contain.
            text = _snprintf(b"%" + field + b"c", ctypes.c_int(value & 255 or 1))
            return text if value & 255 else text.replace(b"\1", b"\0")
        if self.type == b"p":
            return _snprintf(b"%" + field + b"p", ctypes.c_void_p(value))
        if self.size in _SHORT:
            bits = _SHORT[self.size]
            value &= (1 << bits) - 1
            if self.type in b"di" and value >> (bits - 1):
                value -= 1 << bits
        return _snprintf(b"%" + field + b"ll" + self.type, ctypes.c_longlong(value))


def _read_width(digits: bytes) -> int:
    """Return the number that digits represent, at most _MAX_WIDTH. Python refuses to read thousands of digits."""
    return min(int(digits.lstrip(b"0")[: len(str(_MAX_WIDTH)) + 1] or b"0"), _MAX_WIDTH)


def _snprintf(form: bytes, value: object) -> bytes:
    buffer = ctypes.create_string_buffer(2 * _MAX_WIDTH + 512)
    length = _libc.snprintf(buffer, ctypes.c_size_t(len(buffer)), form, value)
    if length >= len(buffer):
        buffer = ctypes.create_string_buffer(length + 1)
        _libc.snprintf(buffer, ctypes.c_size_t(len(buffer)), form, value)
    return buffer.raw[:length]


def parse_format(text: bytes) -> list[bytes | Conversion]:
    """Return the literal texts and the conversions of a format, in order.

    Invalid conversions, and those of arguments after the first _MAX_ARGUMENTS, are literal text.
    """
    parts: list[bytes | Conversion] = []
    at = taken = 0
    for match in _CONVERSION.finditer(text):
        flags, width, precision, size, kind = match.group("flags", "width", "precision", "size", "type")
        stars = [length for length in (width, precision) if length == b"*"]
        arguments = ["i4"] * len(stars)
        if kind == b"s":
            arguments.append("s")
        elif kind in b"eEfFgGaA":
            arguments.append("f8")
        elif kind == b"p" or (kind != b"c" and size in _WIDE):
            arguments.append("i8" if kind in b"di" else "u8")
        elif kind != b"%":
            arguments.append("i4" if kind in b"dic" else "u4")
        else:
            arguments = []
        if taken + len(arguments) > _MAX_ARGUMENTS:
            continue
        taken += len(arguments)
        if match.start() > at:
            parts.append(text[at : match.start()])
        parts.append(Conversion(flags, width, precision, size or b"", kind, tuple(arguments)))
        at = match.end()
    if at < len(text):
        parts.append(text[at:])
    return parts
