"""Conversion of arguments to plain values: numbers, names, and values that C passes through ``void *``."""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from attrs import frozen

from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import CudaError, invalid_value

T = TypeVar("T")
MAX_COUNT: Final = 1 << 20
"""The maximum number of elements of an array in memory; a larger count can only be an error."""


def number(value: Any) -> int:
    """Return the number of an int, a handle, an enum member or None (0); raise TypeError for anything else."""
    if value is None:
        return 0
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__int__"):
        raise TypeError(f"an integer is required, not {type(value).__name__}")
    return int(value)


def read_unsigned(value: Any, bits: int = 64) -> int:
    """Return an argument as a number; raise OverflowError if it does not fit an unsigned C integer of this width."""
    result = number(value)
    if not 0 <= result < 1 << bits:
        raise OverflowError(f"{result} is not between 0 and {(1 << bits) - 1}")
    return result


def text(value: Any) -> str:
    """Return a name passed as bytes, as cuda.bindings takes ``char *``; raise TypeError for anything else."""
    if not isinstance(value, bytes | bytearray):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return bytes(value).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


class InMemory(int):
    """The address of one or more C values, for a caller that passes a pointer instead of the values."""


@frozen
class AttributeValue:
    """The value of an attribute. ``code`` is the struct code of its C type."""

    value: int | tuple[int, ...]
    code: str
    type: Callable[[int], Any] | None = None
    """The type of cuda.bindings in which Python callers get the value, if it is not int, bool or list."""

    @property
    def packed(self) -> bytes:
        """The bytes of the value in C."""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return struct.pack(f"={self.code}", *values)

    def plain(self) -> Any:
        """Return the value as cuda.bindings does."""
        if isinstance(self.value, tuple):
            return list(self.value)
        if self.code == "?":
            return bool(self.value)
        return self.value if self.type is None else self.type(self.value)


def to_python(value: Any) -> Any:
    """Return an output of type ``void``, or a list of them, as cuda.bindings does; addresses stay ints."""
    if isinstance(value, AttributeValue):
        return value.plain()
    return [element.plain() for element in value] if isinstance(value, list) else value


def read_value(argument: Any, code: str) -> int:
    """Return the number passed through a ``void *``: an int, or a value in memory with this struct code."""
    if isinstance(argument, InMemory):
        return int(struct.unpack(f"={code}", ctypes.string_at(int(argument), struct.calcsize(f"={code}")))[0])
    return number(argument)


def check_count(count: int, name: str) -> None:
    """Raise INVALID_VALUE for an array in memory with more than MAX_COUNT elements."""
    if count > MAX_COUNT:
        raise invalid_value(f"{count} elements of {name} are more than the {MAX_COUNT} that are allowed")


def read_numbers(argument: Any, count: int, code: str) -> list[int]:
    """Return the numbers of a list, or of a C array of ``count`` elements with this struct code."""
    if isinstance(argument, InMemory):
        check_count(count, "an array")
        data = ctypes.string_at(int(argument), count * struct.calcsize(f"={code}"))
        return list(struct.unpack(f"={count}{code}", data))
    if argument is None:
        return []
    if not isinstance(argument, Sequence) or isinstance(argument, str | bytes):
        raise TypeError(f"a list or tuple is required, not {type(argument).__name__}")
    return [number(element) for element in argument]


def find_by_handle(
    table: Mapping[int, T], handle: int, noun: str, error: Callable[[str], Exception] = invalid_value
) -> T:
    """Return the object of a handle in a table; raise ``error`` (INVALID_VALUE) if the table does not have it.

    ``noun`` completes the error's reason, for example "a graph of this process (destroyed, or never created)".
    """
    entry = table.get(handle)
    if entry is None:
        raise error(f"{handle:#x} is not {noun}")
    return entry


def check_not_null(name: str, *addresses: int) -> None:
    """Raise INVALID_VALUE if one of the addresses is 0; ``name`` describes what should be there."""
    if 0 in addresses:
        raise invalid_value(f"the address of {name} is NULL")


def null_argument(name: str, expected: str = "a handle") -> CudaError:
    """Return INVALID_VALUE for an argument that is NULL; ``expected`` names what to pass."""
    return invalid_value(f"{name} is NULL; pass {expected}")


@cache
def _classes(name: str) -> tuple[Any, ...]:
    """Return cuda.bindings' classes for a structure or a union, which may have several versions."""
    names = (name, *(f"{name}_{suffix}" for suffix in ("st", "v1", "v2", "union")))
    return tuple(getattr(bindings, variant) for variant in names if hasattr(bindings, variant))


def address_of(argument: Any, name: str) -> int:
    """Return the address of a structure, given as an object of cuda.bindings or by its address.

    Raise TypeError for anything else.
    """
    if isinstance(argument, InMemory):
        return int(argument)
    if not isinstance(argument, _classes(name)):
        raise TypeError(f"a {name} is required, not {type(argument).__name__}")
    return int(argument.getPtr())


def addresses_of(argument: Any, count: int, name: str, size: int) -> list[int]:
    """Return the addresses of ``count`` structures of ``size`` bytes in a list or a C array.

    Raise INVALID_VALUE if a list has fewer, TypeError if it has other objects.
    """
    if isinstance(argument, InMemory):
        check_count(count, name)
        return [int(argument) + index * size for index in range(count)]
    if argument is not None and (not isinstance(argument, Sequence) or isinstance(argument, str | bytes)):
        raise TypeError(f"a list or tuple of {name} is required, not {type(argument).__name__}")
    if count > len(argument or ()):
        raise invalid_value(f"count is {count}; there are {len(argument or ())} {name}")
    return [address_of(structure, name) for structure in (argument or ())[:count]]
