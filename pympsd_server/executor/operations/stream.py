"""Operations on streams, and synchronisation of a context."""

from __future__ import annotations

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Stream
from pympsd_server.executor.requests.request import Answer, Request

_NON_BLOCKING: Final = 1
"""A flag of the driver API's CUstream_flags."""


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
