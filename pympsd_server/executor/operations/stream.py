"""Operations on streams and events, and synchronization of a context."""

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Event, Stream
from pympsd_server.executor.requests.request import Answer, Request, words

_NON_BLOCKING: Final = 1
"""A flag of the driver API's CUstream_flags."""
# CUevent_flags of the driver API.
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4


def check_ready(done: bool) -> None:
    """Raise BackendError NOT_READY unless work is done."""
    if not done:
        raise BackendError(Result.ERROR_NOT_READY, "work is still pending")


def create_stream(request: Request, handle: int, flags: int, priority: int) -> Answer:
    if flags & ~_NON_BLOCKING:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"stream flags {flags:#x}")
    return Answer(created=request.context.backend.create_stream(bool(flags & _NON_BLOCKING), priority))


def query_stream(request: Request, stream: Stream) -> None:
    check_ready(stream.idle)


def create_event(request: Request, handle: int, flags: int) -> Answer:
    if flags & ~(_BLOCKING_SYNC | _DISABLE_TIMING | _INTERPROCESS):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"event flags {flags:#x}")
    return Answer(created=request.context.backend.create_event(not flags & _DISABLE_TIMING))


def query_event(request: Request, event: Event) -> None:
    check_ready(event.done)


def elapsed_time(request: Request, start: Event, end: Event) -> Answer:
    return Answer((end.milliseconds_since(start),))


def share_event(request: Request, event: Event) -> Answer:
    return Answer(words(request.resources.shared_events.add(event)))


def open_event(request: Request, handle: int, high: int, low: int) -> Answer:
    event = request.resources.shared_events.find(high << 64 | low)
    return Answer(created=request.context.backend.open_event(event))
