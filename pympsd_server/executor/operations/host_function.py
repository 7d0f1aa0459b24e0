"""Operations on the client's host functions, which its streams wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Completion, Outcome, Stream
from pympsd_server.executor.request import Request


def _host_function(request: Request, stream: Stream, token: int) -> None:
    """Queue a function: it counts as work of the stream until it is finished, and is answered when it is due."""
    pending = request.context.host_functions
    if token in pending:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"host function {token} is pending already")
    pending[token] = stream.launch_host_function(request.complete)


def _host_function_done(request: Request, token: int) -> None:
    pending = request.context.host_functions
    if token not in pending:
        raise BackendError(Result.ERROR_INVALID_HANDLE, f"host function {token} is not pending in this context")
    pending[token].finish()
    del pending[token]


def _room(request: Request, done: Completion) -> None:
    request.resources.backpressure.when_half_is_free(lambda: done(Outcome()))


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "HOST_FUNCTION": _host_function,
    "HOST_FUNCTION_DONE": _host_function_done,
    "ROOM": _room,
}
