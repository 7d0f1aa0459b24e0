"""Operations on events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Completion, Event, Stream
from pympsd_server.executor.operations.stream import check_ready
from pympsd_server.executor.requests.request import Answer, Request, words

# CUevent_flags of the driver API.
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4


def _create(request: Request, handle: int, flags: int) -> Answer:
    if flags & ~(_BLOCKING_SYNC | _DISABLE_TIMING | _INTERPROCESS):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"event flags {flags:#x}")
    return Answer(created=request.context.backend.create_event(not flags & _DISABLE_TIMING))


def _destroy(request: Request, event: Event) -> None:
    """Do nothing: it is already removed from its table."""


def _record(request: Request, event: Event, stream: Stream) -> None:
    stream.record(event)


def _query(request: Request, event: Event) -> None:
    check_ready(event.done)


def _synchronize(request: Request, event: Event, done: Completion) -> None:
    event.notify(done)


def _elapsed_time(request: Request, start: Event, end: Event) -> Answer:
    return Answer((end.milliseconds_since(start),))


def _share(request: Request, event: Event) -> Answer:
    return Answer(words(request.resources.shared_events.add(event)))


def _open(request: Request, handle: int, high: int, low: int) -> Answer:
    event = request.resources.shared_events.find(high << 64 | low)
    return Answer(created=request.context.backend.open_event(event))


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "CREATE_EVENT": _create,
    "DESTROY_EVENT": _destroy,
    "RECORD_EVENT": _record,
    "QUERY_EVENT": _query,
    "SYNCHRONIZE_EVENT": _synchronize,
    "ELAPSED_TIME": _elapsed_time,
    "SHARE_EVENT": _share,
    "OPEN_EVENT": _open,
}
