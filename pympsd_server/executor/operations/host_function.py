"""Records about the client's own functions, for which its streams wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Completion, Outcome
from pympsd_server.executor.request import Call


def _host_function(call: Call) -> None:
    stream, token = call.operands
    entry, pending = call.context.stream(stream), call.context.host_calls
    if token in pending:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"host function {token} is pending already")
    pending[token] = entry.backend.call_host(call.complete)
    # It is work of the stream until it is finished, like a kernel.
    call.client.work_limit.enter(entry)


def _host_function_done(call: Call) -> None:
    (token,) = call.operands
    pending = call.context.host_calls
    if token not in pending:
        raise BackendError(Result.ERROR_INVALID_HANDLE, f"host function {token} is not pending in this context")
    pending[token].finish()
    del pending[token]


def _room(call: Call) -> None:
    limit = call.client.work_limit

    def begin(done: Completion) -> None:
        limit.when_half_is_free(lambda: done(Outcome()))

    call.waits_for(begin)


CALLS: Final[Mapping[str, Callable[[Call], None]]] = {
    "HOST_FUNCTION": _host_function,
    "HOST_FUNCTION_DONE": _host_function_done,
    "ROOM": _room,
}
