"""Argument conversion as in cuda.bindings: handles, None for 0, and C's ranges."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> int:
    """Return the number of an int, a handle, an enum member or None (0); TypeError for anything else."""
    if value is None:
        return 0
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__int__"):
        raise TypeError(f"an integer is required, not {type(value).__name__}")
    return int(value)


def unsigned(value: Any, bits: int = 64) -> int:
    """Return a number that fits an unsigned C integer; OverflowError otherwise."""
    result = number(value)
    if not 0 <= result < 1 << bits:
        raise OverflowError(f"{result} is not between 0 and {(1 << bits) - 1}")
    return result


def text(value: Any) -> str:
    """Return a name passed as bytes, as cuda.bindings takes ``char *``; TypeError for anything else."""
    if not isinstance(value, bytes | bytearray):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return bytes(value).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
