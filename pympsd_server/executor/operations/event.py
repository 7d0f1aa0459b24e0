"""Operations on events."""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Event
from pympsd_server.executor.operations.stream import check_ready
from pympsd_server.executor.requests.request import Answer, Request, words

# CUevent_flags of the driver API.
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4


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
