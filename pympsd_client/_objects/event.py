"""Events: points in streams to wait for and to measure between (CUDA driver API, Event Management)."""

from __future__ import annotations

from typing import Any, Final

from attrs import define

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_handle, invalid_value
from pympsd_client._arguments.numbers import number
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, handles
from pympsd_client._objects.process import current
from pympsd_client._objects.stream import resolve

BLOCKING_SYNC: Final = 1
DISABLE_TIMING: Final = 2
INTERPROCESS: Final = 4


@define(eq=False)
class Event:
    """An event; ``recorded`` once it was recorded in a stream."""

    handle: int
    context: Context
    flags: int
    recorded: bool = False


def create(context: Context, flags: int) -> Event:
    """Make an event; raise CudaError."""
    if flags & ~(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS):
        raise invalid_value(f"event flags are a combination of CUevent_flags, not {flags}")
    if flags & INTERPROCESS and not flags & DISABLE_TIMING:
        raise invalid_value("CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING beside it")
    if flags & INTERPROCESS:
        raise CudaError(Result.ERROR_NOT_SUPPORTED, "pympsd has no events between processes; leave the flag out")
    handle = context.mint()
    context.post(operations.CREATE_EVENT, handle, flags)
    event = handles.events[handle] = Event(handle, context, flags)
    return event


def event_of(handle: Any) -> Event:
    """Return the event of a handle; raise INVALID_HANDLE."""
    value = number(handle)
    event = handles.events.get(value)
    if event is None:
        current().usable()
        raise invalid_handle(f"{value:#x} is no event of this process (destroyed, or never created)")
    return event


def destroy(handle: Any) -> None:
    """Forget an event, done or not."""
    event = event_of(handle)
    event.context.post(operations.DESTROY_EVENT, event.handle)
    handles.events.pop(event.handle, None)


def record(handle: Any, stream: Any) -> None:
    """The event stands for what is in a stream so far; both are of one context, else INVALID_HANDLE."""
    event = event_of(handle)
    context, its_stream = resolve(stream)
    if context is not event.context:
        raise invalid_handle("the event and the stream are of different contexts; create both in one")
    context.post(operations.RECORD_EVENT, event.handle, its_stream)
    event.recorded = True


def query(handle: Any) -> None:
    """Return when what it last recorded is done (or nothing was recorded); raise NOT_READY when it is not."""
    event = event_of(handle)
    event.context.usable()
    if event.recorded:
        event.context.call(operations.QUERY_EVENT, event.handle)


def synchronize(handle: Any) -> None:
    """Wait until what it last recorded is done."""
    event = event_of(handle)
    event.context.usable()
    if event.recorded:
        event.context.call(operations.SYNCHRONIZE_EVENT, event.handle)


def make_stream_wait(stream: Any, handle: Any) -> None:
    """Later work of a stream waits for the event.

    The event of another context may be another executor's, so it is waited for here, before the stream's later
    work is sent at all.
    """
    event = event_of(handle)
    context, its_stream = resolve(stream)
    context.usable()
    if context is event.context:
        context.post(operations.WAIT_EVENT, its_stream, event.handle)
    else:
        synchronize(handle)


def elapsed_milliseconds(start: Any, end: Any) -> float:
    """Return the time between two recorded events; INVALID_HANDLE, NOT_READY as in CUDA."""
    first, second = event_of(start), event_of(end)
    for event in (first, second):
        event.context.usable()
        if event.flags & DISABLE_TIMING:
            raise invalid_handle("an event made with CU_EVENT_DISABLE_TIMING measures no time")
        if not event.recorded:
            raise invalid_handle("the event was never recorded; call cuEventRecord first")
    if first.context is not second.context:
        raise invalid_handle("the two events are of different contexts; no time can be told between them")
    answer = first.context.call(operations.ELAPSED_TIME, first.handle, second.handle)
    return float(operations.ELAPSED_TIME.answer.unpack_from(answer)[0])
