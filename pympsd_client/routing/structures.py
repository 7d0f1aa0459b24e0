"""Structures, arrays and texts at C's addresses."""

import ctypes
from types import SimpleNamespace
from typing import Any, Final

from pympsd_client._api.entry_point import output_wrapper, structure_reader
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.values import AttributeValue, InMemory
from pympsd_client.routing import c_types

_texts: Final[dict[bytes, Any]] = {}


def intern(text: bytes | None) -> int:
    """Return the address of a text, which is never freed; 0 for None."""
    if text is None:
        return 0
    return ctypes.addressof(_texts.setdefault(text, ctypes.create_string_buffer(text)))


def read(type: str, argument: Any) -> Any:
    """Return a structure as a core takes it, from its address, or from its bytes if C passes it by value."""
    if isinstance(argument, bytes):
        structure = getattr(bindings, type)()
        ctypes.memmove(structure.getPtr(), argument, len(argument))
        return structure
    if not argument:
        return None
    special = _SPECIAL.get(type)
    if special is not None:
        return special(argument)
    structure = c_types.structure(type)(_ptr=argument)
    reader = structure_reader(type)
    return structure if reader is None else reader(structure)


def read_later(type: str, address: int) -> Any:
    """Return the argument of a core that reads values itself: their address, or an object of this module."""
    special = _SPECIAL.get(type)
    if special is not None:
        return special(address) if address else None
    return InMemory(address) if address else None


def pack(value: Any) -> Any:
    """Return the bytes of an attribute's value."""
    return value.packed if isinstance(value, AttributeValue) else value


def write(type: str, value: Any) -> Any:
    """Return the bytes of a structure that a core returned as bytes, as an object, or as its value."""
    if value is None or isinstance(value, bytes):
        return value
    wrap = output_wrapper(type)
    structure = value if wrap is None or hasattr(value, "getPtr") else wrap(value)
    return ctypes.string_at(structure.getPtr(), c_types.STRUCTURES[type])


class _ContextParameters(ctypes.Structure):
    _fields_ = (("affinities", ctypes.c_void_p), ("count", ctypes.c_int), ("cig", ctypes.c_void_p))


def _context_parameters(address: int) -> Any:
    """Return a CUctxCreateParams; the class of cuda.bindings does not have the length of its array."""
    raw = _ContextParameters.from_address(address)
    affinities = [
        bindings.CUexecAffinityParam(_ptr=raw.affinities + 8 * index)
        for index in range(raw.count if raw.affinities else 0)
    ]
    return SimpleNamespace(execAffinityParams=affinities, numExecAffinityParams=raw.count, cigParams=raw.cig)


_SPECIAL: Final = {"CUctxCreateParams *": _context_parameters}
