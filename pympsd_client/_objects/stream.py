"""Streams: their handles, the three special ones, waiting for them (CUDA driver API, Stream Management)."""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.records import STREAM_LEGACY
from pympsd_client._arguments.errors import CudaError, invalid_handle, invalid_value
from pympsd_client._arguments.numbers import number
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._objects.context import Context, handles
from pympsd_client._objects.process import current
from pympsd_client._objects.thread_local import mine

NON_BLOCKING: Final = 1
LEGACY: Final = (0, 1)
"""NULL and CU_STREAM_LEGACY."""
PER_THREAD: Final = 2


@frozen(eq=False)
class Stream:
    """A stream: ``flags`` as created, ``priority`` clamped to the context's range."""

    handle: int
    context: Context
    flags: int
    priority: int


def create(context: Context, flags: int, priority: int) -> Stream:
    """Make a stream; raise CudaError."""
    if flags & ~NON_BLOCKING:
        raise invalid_value(f"stream flags are CU_STREAM_DEFAULT (0) or CU_STREAM_NON_BLOCKING (1), not {flags}")
    least, greatest = context.usable().stream_priorities
    clamped = max(min(priority, least), greatest)
    while context.orphans:
        context.post(operations.DESTROY_STREAM, context.orphans.popleft())
    handle = context.mint()
    context.post(operations.CREATE_STREAM, handle, flags, clamped)
    stream = handles.streams[handle] = Stream(handle, context, flags, clamped)
    return stream


def destroy(handle: Any) -> None:
    """Forget a stream; what was started in it goes on to its end."""
    stream = stream_of(handle)
    try:
        stream.context.post(operations.DESTROY_STREAM, stream.handle)
        handles.streams.pop(stream.handle, None)
    finally:
        invalidate()


def stream_of(handle: Any) -> Stream:
    """Return a stream somebody created; INVALID_HANDLE for the special ones and for what is none."""
    current_handle = number(handle)
    stream = handles.streams.get(current_handle)
    if stream is None:
        current().usable()
        raise invalid_handle(f"{current_handle:#x} is no stream of this process (destroyed, or never created)")
    return stream


def resolve(handle: Any) -> tuple[Context, int]:
    """Return the context of a stream and how records name the stream."""
    value = number(handle)
    if value in LEGACY:
        return current(), STREAM_LEGACY
    if value == PER_THREAD:
        return _per_thread(current())
    stream = stream_of(value)
    return stream.context, stream.handle


def _per_thread(context: Context) -> tuple[Context, int]:
    key = (context, context.serial)
    own = mine.streams.handles.get(key)
    if own is None:
        own = mine.streams.handles[key] = create(context, 0, 0).handle
    return context, own


def query(handle: Any) -> None:
    """Return when all work so far is done; raise NOT_READY when it is not."""
    context, stream = resolve(handle)
    context.call(operations.QUERY_STREAM, stream)


def synchronize(handle: Any) -> None:
    """Wait for all work so far."""
    context, stream = resolve(handle)
    context.call(operations.SYNCHRONIZE_STREAM, stream)


def properties(handle: Any) -> Stream:
    """Return flags, priority and context, also of the special streams (flags and priority 0, current context)."""
    value = number(handle)
    if value in LEGACY or value == PER_THREAD:
        context = current()
        context.usable()
        return Stream(value, context, 0, 0)
    stream = stream_of(value)
    if not stream.context.active:
        raise CudaError(Result.ERROR_CONTEXT_IS_DESTROYED, "the stream's context is destroyed")
    return stream
