"""Streams, their attributes, and events (CUDA driver API, Stream Management and Event Management)."""

import ctypes
import struct
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.bindings import bindings
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_value, not_supported
from pympsd_client._arguments.launch_attributes import STREAM_DEFAULTS, VALUE_BYTES, name_of
from pympsd_client._arguments.values import InMemory
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects import event, host_function, stream
from pympsd_client._objects.context import current
from pympsd_client._objects.stream import Stream, properties, resolve

_EXTERNAL: Final = 1
"""CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL."""


def create(flags: int, priority: int) -> int:
    """Return a new stream of the current context; ``flags``: CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING.

    The priority is clamped to cuCtxGetStreamPriorityRange.
    """
    return stream.create(current(), flags, priority).handle


def wait_event(stream_handle: int, event_handle: int, flags: int) -> None:
    """Make later work of the stream wait for the event.

    For another device's event, unless it is captured, this call itself waits. With CU_EVENT_WAIT_EXTERNAL a
    capturing stream gets a node that waits; raise ILLEGAL_STATE in other streams.
    """
    if not _is_taken(stream_handle, event_handle, flags, is_wait=True):
        event.make_stream_wait(stream_handle, event_handle)


def _is_taken(stream_handle: int, event_handle: int, flags: int, is_wait: bool) -> bool:
    """Let a capture take a call with the flag EXTERNAL, and return True; return False for 0.

    Raise INVALID_VALUE for other flags, ILLEGAL_STATE in a stream that does not capture.
    """
    if not flags:
        return False
    name = "CU_EVENT_WAIT" if is_wait else "CU_EVENT_RECORD"
    if flags != _EXTERNAL:
        raise invalid_value(f"the flags must be {name}_DEFAULT (0) or {name}_EXTERNAL (1), not {flags}")
    entry = event.events.find(event_handle)
    context, its_stream = stream.resolve(stream_handle)
    if (by := intercepted.by) is None or not by.take_external_event(context, its_stream, entry.handle, is_wait):
        raise CudaError(Result.ERROR_ILLEGAL_STATE, f"{name}_EXTERNAL is for streams that capture; this one does not")
    return True


def add_callback(stream_handle: int, callback: Any, data: Any, flags: int) -> None:
    """Run ``callback(hStream, status, userData)`` as cuLaunchHostFunc does; ``status`` is a CUresult.

    It runs even after an error in the context. Raise INVALID_VALUE if ``flags`` is not 0.
    """
    check_no_flags("cuStreamAddCallback", flags)
    host_function.add_callback(stream_handle, callback, data)


def priority(handle: int) -> int:
    """Return the stream's priority, which was clamped when the stream was created."""
    return stream.properties(handle).priority


def flags(handle: int) -> int:
    """Return the flags with which the stream was created."""
    return stream.properties(handle).flags


def context(handle: int) -> int:
    """Return the stream's context, which for the special streams is the current one."""
    return stream.properties(handle).context.handle


def record_event(event_handle: int, stream_handle: int, flags: int) -> None:
    """Record an event as cuEventRecord does.

    With CU_EVENT_RECORD_EXTERNAL a capturing stream gets a node for it; raise ILLEGAL_STATE in other streams.
    """
    if not _is_taken(stream_handle, event_handle, flags, is_wait=False):
        event.record(event_handle, stream_handle)


def create_event(flags: int) -> int:
    """Return a new event of the current context.

    Raise NOT_SUPPORTED for CU_EVENT_INTERPROCESS if the device attribute IPC_EVENT_SUPPORTED is 0.
    """
    return event.create(current(), flags).handle


_HANDLE_COUNT: Final = (1 << 40) - 1
_POLICIES: Final = range(1, 5)
"""CU_SYNC_POLICY_AUTO, SPIN, YIELD, BLOCKING_SYNC."""


def stream_id(handle: int) -> int:
    """Return a stream's id, which no other stream of this process has or had; each context has its legacy stream."""
    context, stream = resolve(handle)
    context.usable()
    return (stream or context.handle) & _HANDLE_COUNT


def device(handle: int) -> int:
    """Return the device of a stream's context."""
    return properties(handle).context.device.number


def attribute(handle: int, number: int) -> bytes:
    """Return the value of an attribute as a CUstreamAttrValue.

    Raise INVALID_VALUE for an attribute that streams do not have.
    """
    stream = properties(handle)
    name = _name(number)
    if name == "PRIORITY":
        return struct.pack("=i", stream.priority).ljust(VALUE_BYTES, b"\0")
    return _attributes(stream).get(name, STREAM_DEFAULTS[name]).ljust(VALUE_BYTES, b"\0")


def set_attribute(handle: int, number: int, value: Any) -> None:
    """Set an attribute, which is a hint without an effect; raise NOT_SUPPORTED for the priority."""
    stream = properties(handle)
    name = _name(number)
    if name == "PRIORITY":
        raise not_supported(
            "the priority of a stream must be set when the stream is created, with cuStreamCreateWithPriority"
        )
    if value is None:
        raise invalid_value("the value of the attribute is NULL")
    if not isinstance(value, InMemory | bindings.CUlaunchAttributeValue):
        raise TypeError(f"a CUstreamAttrValue is required, not {type(value).__name__}")
    address = value if isinstance(value, InMemory) else value.getPtr()
    data = ctypes.string_at(int(address), VALUE_BYTES)
    policy = int.from_bytes(data[:4], "little")
    if name == "SYNCHRONIZATION_POLICY" and policy not in _POLICIES:
        raise invalid_value(f"the synchronization policy must be a CUsynchronizationPolicy, 1 to 4, not {policy}")
    _attributes(stream)[name] = data


def copy_attributes(destination: int, source: int) -> None:
    """Copy a stream's attributes to another stream; raise INVALID_VALUE if they are of different contexts."""
    target, origin = properties(destination), properties(source)
    if target.context is not origin.context:
        raise invalid_value("the streams are of different contexts")
    _attributes(target).update(_attributes(origin))


def _name(number: int) -> str:
    name = name_of(number)
    if name not in STREAM_DEFAULTS and name != "PRIORITY":
        raise invalid_value(f"{name} is not an attribute of a stream")
    return name


def _attributes(stream: Stream) -> dict[str, bytes]:
    return stream.context.stream_attributes.setdefault(stream.handle, {})
