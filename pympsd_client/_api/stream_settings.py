"""Identifiers and attributes of streams (CUDA driver API, Stream Management)."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.launch_attributes import STREAM_DEFAULTS, VALUE_BYTES, name_of
from pympsd_client._arguments.values import InMemory
from pympsd_client._objects.stream import Stream, properties, resolve

_HANDLE_COUNT: Final = (1 << 40) - 1


def stream_id(handle: int) -> int:
    """Return a number that no other stream of this process has had; the legacy stream has one in each context."""
    context, stream = resolve(handle)
    context.usable()
    return (stream or context.handle) & _HANDLE_COUNT


def device(handle: int) -> int:
    """Return the device of a stream's context."""
    return properties(handle).context.device.number


def attribute(handle: int, number: int) -> bytes:
    """Return the value of an attribute as a CUstreamAttrValue; INVALID_VALUE for what no stream has."""
    stream = properties(handle)
    name = _name(number)
    if name == "PRIORITY":
        return struct.pack("=i", stream.priority).ljust(VALUE_BYTES, b"\0")
    return _held(stream).get(name, STREAM_DEFAULTS[name]).ljust(VALUE_BYTES, b"\0")


def set_attribute(handle: int, number: int, value: Any) -> None:
    """Set an attribute, which is a hint and changes nothing; NOT_SUPPORTED for the priority."""
    stream = properties(handle)
    name = _name(number)
    if name == "PRIORITY":
        reason = "the priority of a stream is set when it is made, by cuStreamCreateWithPriority"
        raise CudaError(Result.ERROR_NOT_SUPPORTED, reason)
    if value is None:
        raise invalid_value("the value of the attribute is NULL")
    if not isinstance(value, InMemory | bindings.CUlaunchAttributeValue):
        raise TypeError(f"a CUstreamAttrValue is required, not {type(value).__name__}")
    _held(stream)[name] = ctypes.string_at(int(value if isinstance(value, InMemory) else value.getPtr()), VALUE_BYTES)


def copy_attributes(destination: int, source: int) -> None:
    """Give a stream the attributes of another; INVALID_VALUE if they are of different contexts."""
    to, of = properties(destination), properties(source)
    if to.context is not of.context:
        raise invalid_value("the streams are of different contexts")
    _held(to).update(_held(of))


def _name(number: int) -> str:
    name = name_of(number)
    if name not in STREAM_DEFAULTS and name != "PRIORITY":
        raise invalid_value(f"{name} is no attribute of a stream")
    return name


def _held(stream: Stream) -> dict[str, bytes]:
    return stream.context.stream_attributes.setdefault(stream.handle, {})
