"""Records about order: streams, events, synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.records import BY_NAME
from pympsd_server.backends.interface import BackendError, Outcome
from pympsd_server.executor.client_context import StreamEntry
from pympsd_server.executor.request import Call

_MILLISECONDS: Final = BY_NAME["ELAPSED_TIME"].answer_layout
# CUstream_flags and CUevent_flags of the driver API.
_STREAM_NON_BLOCKING: Final = 1
_EVENT_BLOCKING_SYNC: Final = 1
_EVENT_DISABLE_TIMING: Final = 2
_EVENT_INTERPROCESS: Final = 4
_NOT_READY: Final = Outcome(Result.ERROR_NOT_READY, "work is still pending")


def _create_stream(call: Call) -> None:
    handle, flags, priority = call.operands
    if flags & ~_STREAM_NON_BLOCKING:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"stream flags {flags:#x}")
    call.context.streams.check_new(handle)
    stream = call.context.backend.create_stream(bool(flags & _STREAM_NON_BLOCKING), priority)
    call.context.streams.mint(handle, StreamEntry(stream))


def _destroy_stream(call: Call) -> None:
    (handle,) = call.operands
    call.context.streams.take(handle).backend.destroy()


def _query_stream(call: Call) -> None:
    (handle,) = call.operands
    call.complete(Outcome() if call.context.stream(handle).backend.idle else _NOT_READY)


def _synchronize_stream(call: Call) -> None:
    (handle,) = call.operands
    call.waits_for(call.context.stream(handle).backend.notify)


def _synchronize_context(call: Call) -> None:
    call.waits_for(call.context.backend.notify)


def _create_event(call: Call) -> None:
    handle, flags = call.operands
    if flags & _EVENT_INTERPROCESS:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, "events shared between processes")
    if flags & ~(_EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"event flags {flags:#x}")
    call.context.events.check_new(handle)
    timing = not flags & _EVENT_DISABLE_TIMING
    call.context.events.mint(handle, call.context.backend.create_event(timing))


def _destroy_event(call: Call) -> None:
    (handle,) = call.operands
    call.context.events.take(handle)


def _record_event(call: Call) -> None:
    event, stream = call.operands
    entry = call.context.stream(stream)
    entry.backend.record(call.context.events[event])
    call.client.work_limit.enter(entry)


def _wait_event(call: Call) -> None:
    stream, event = call.operands
    entry = call.context.stream(stream)
    entry.backend.wait(call.context.events[event])
    call.client.work_limit.enter(entry)


def _query_event(call: Call) -> None:
    (event,) = call.operands
    call.complete(Outcome() if call.context.events[event].done else _NOT_READY)


def _synchronize_event(call: Call) -> None:
    (event,) = call.operands
    call.waits_for(call.context.events[event].notify)


def _elapsed_time(call: Call) -> None:
    start, end = call.operands
    events = call.context.events
    call.succeed(_MILLISECONDS.pack(events[end].milliseconds_since(events[start])))


CALLS: Final[Mapping[str, Callable[[Call], None]]] = {
    "CREATE_STREAM": _create_stream,
    "DESTROY_STREAM": _destroy_stream,
    "QUERY_STREAM": _query_stream,
    "SYNCHRONIZE_STREAM": _synchronize_stream,
    "WAIT_EVENT": _wait_event,
    "CREATE_EVENT": _create_event,
    "DESTROY_EVENT": _destroy_event,
    "RECORD_EVENT": _record_event,
    "QUERY_EVENT": _query_event,
    "SYNCHRONIZE_EVENT": _synchronize_event,
    "ELAPSED_TIME": _elapsed_time,
    "SYNCHRONIZE_CONTEXT": _synchronize_context,
}
