"""Format strings of C's printf, as far as CUDA's device printf takes them."""

import ctypes
import re
from typing import Final

from attrs import frozen

_CONVERSION: Final = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?"
    rb"(?P<size>hh|h|ll|l|j|z|t|L)?(?P<type>[%cdiouxXpeEfFgGaAs])"
)
_WIDE: Final = frozenset((b"ll", b"l", b"j", b"z", b"t"))
_MAX_WIDTH: Final = 1 << 12
"""A longer field is cut to this: the format is the client's, and the executor's memory is shared by all clients."""
_MAX_STRING: Final = 1 << 16
_SHORT: Final = {b"h": 16, b"hh": 8}
_libc: Final = ctypes.CDLL(None)


@frozen
class Conversion:
    """One conversion: the kinds of the arguments it takes, "i4", "i8", "f8" or "s" (a string's address)."""

    flags: bytes
    width: bytes
    precision: bytes | None
    size: bytes
    type: bytes
    arguments: tuple[str, ...]

    def text(self, values: tuple[int | float | bytes, ...]) -> bytes:
        """Return the converted text of its arguments, a string's bytes in the place of its address."""
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
        field = flags + (b"%d" % min(int(width), _MAX_WIDTH) if width else b"")
        if precision is not None and not precision.startswith(b"-"):
            field += b".%d" % min(int(precision or b"0"), _MAX_WIDTH)
        return self._convert(field, value)

    def _convert(self, field: bytes, value: int | float | bytes) -> bytes:
        if isinstance(value, float):
            return _snprintf(b"%" + field + self.type, ctypes.c_double(value))
        if isinstance(value, bytes):
            return _snprintf(b"%" + field + b"s", ctypes.c_char_p(value[:_MAX_STRING]))
        if self.type == b"c":
            # A NUL is a character like others here, which C's strings cannot carry.
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


def _snprintf(form: bytes, value: object) -> bytes:
    buffer = ctypes.create_string_buffer(2 * _MAX_WIDTH + 512)
    length = _libc.snprintf(buffer, ctypes.c_size_t(len(buffer)), form, value)
    if length >= len(buffer):
        buffer = ctypes.create_string_buffer(length + 1)
        _libc.snprintf(buffer, ctypes.c_size_t(len(buffer)), form, value)
    return buffer.raw[:length]


def parse_format(text: bytes) -> list[bytes | Conversion]:
    """Return the literal texts and the conversions of a format, in order. Text that is not a conversion is
    literal.
    """
    parts: list[bytes | Conversion] = []
    at = 0
    for match in _CONVERSION.finditer(text):
        if match.start() > at:
            parts.append(text[at : match.start()])
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
        parts.append(Conversion(flags, width, precision, size or b"", kind, tuple(arguments) if kind != b"%" else ()))
        at = match.end()
    if at < len(text):
        parts.append(text[at:])
    return parts
