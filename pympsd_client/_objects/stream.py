"""Streams, among them the three special ones, and waiting for them (CUDA driver API, Stream Management)."""

from collections.abc import Callable
from typing import Final

from attrs import frozen

from pympsd.wire.records import STREAM_LEGACY, Kind
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._objects.context import Context, current, enclose_wait, require_context, this_thread
from pympsd_client._objects.handle_table import HandleTable

NON_BLOCKING: Final = 1
LEGACY: Final = (0, 1)
"""The handles of the legacy default stream: NULL and CU_STREAM_LEGACY."""
PER_THREAD: Final = 2


@frozen(eq=False)
class Stream:
    """A stream: ``flags`` as created, ``priority`` clamped to the context's range."""

    handle: int
    context: Context
    flags: int
    priority: int


before_destroying: Final[list[Callable[[Context, int], None]]] = []
"""Functions that are called with the context and the handle of a stream that is about to be destroyed."""
streams: Final[HandleTable[Stream]] = HandleTable(
    "stream", "destroyed, or never created", Kind.STREAM, remembers_contexts=True
)


def create(context: Context, flags: int, priority: int) -> Stream:
    """Make a stream and return it.

    ``flags``: 0 or NON_BLOCKING. ``priority`` is clamped to the context's range, in which a smaller number is more
    urgent. Per-thread streams of threads that have ended are destroyed first. Raise CudaError.
    """
    if flags & ~NON_BLOCKING:
        raise invalid_value(f"stream flags must be CU_STREAM_DEFAULT (0) or CU_STREAM_NON_BLOCKING (1), not {flags}")
    lowest, greatest = context.usable().stream_priorities
    clamped = max(min(priority, lowest), greatest)
    while context.ended_threads_streams:
        ended_stream = context.ended_threads_streams.popleft()
        # It is unknown if the thread ended after its context, which has been opened again.
        if streams.get(ended_stream) is not None:
            destroy(ended_stream)
    handle = context.allocate_handle()
    context.post(operations.CREATE_STREAM, handle, flags, clamped)
    return streams.add(Stream(handle, context, flags, clamped))


def destroy(handle: int) -> None:
    """Destroy a stream; work that is queued in it is completed.

    Raise INVALID_HANDLE for the special streams (NULL, legacy, per-thread), which cannot be destroyed.
    """
    stream = streams.find(handle)
    for act in before_destroying:
        act(stream.context, stream.handle)
    try:
        streams.destroy(stream)
    finally:
        invalidate()


def resolve(handle: int) -> tuple[Context, int]:
    """Return the context of a stream, and the stream's name in records.

    ``handle``: a stream of cuStreamCreate, or a special value, which names a stream of the current context: 0 and 1
    the legacy default stream, 2 the calling thread's own stream, which is made when it is first used. Raise
    INVALID_HANDLE, INVALID_CONTEXT.
    """
    if handle in LEGACY:
        return current(), STREAM_LEGACY
    if handle == PER_THREAD:
        context = current()
        key = (context, context.id)
        own = this_thread.streams.handles.get(key)
        if own is None:
            own = this_thread.streams.handles[key] = create(context, 0, 0).handle
        return context, own
    stream = streams.find(handle)
    return stream.context, stream.handle


def query(handle: int) -> None:
    """Raise NOT_READY unless all of the stream's earlier work is done."""
    context, stream = resolve(handle)
    context.call(operations.QUERY_STREAM, stream)


def synchronize(handle: int) -> None:
    """Wait for all of the stream's earlier work; raise the error if some of it has failed."""
    context, stream = resolve(handle)
    with enclose_wait(context, stream):
        context.call(operations.SYNCHRONIZE_STREAM, stream)


def properties(handle: int) -> Stream:
    """Return a stream's flags, priority and context; for a special stream 0, 0 and the current context."""
    if handle in LEGACY or handle == PER_THREAD:
        context = require_context()
        return Stream(handle, context, 0, 0)
    return streams.find(handle)
