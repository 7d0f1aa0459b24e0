"""Operations of execution control: kernel launches, and the client's host functions, which its streams wait for."""

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_COOPERATIVE, cluster_of
from pympsd_server.backends.interface import BackendError, Completion, ContextLimit, Launch, Module, Status, Stream
from pympsd_server.executor.requests.request import Request


def launch(
    request: Request,
    stream: Stream,
    module: Module,
    function: int,
    gx: int,
    gy: int,
    gz: int,
    bx: int,
    by: int,
    bz: int,
    shared_bytes: int,
    parameter_bytes: int,
    parameters: bytes,
) -> None:
    cooperative = bool(request.flags & FLAG_COOPERATIVE)
    cluster = cluster_of(request.flags)
    launch = Launch(module, function, (gx, gy, gz), (bx, by, bz), shared_bytes, parameters, cooperative, cluster)
    stream.launch(launch)


def host_function(request: Request, stream: Stream, token: int) -> None:
    """Queue a function: it counts as work of the stream until it is finished, and is answered when it is due."""
    pending = request.context.host_functions
    if token in pending:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"host function {token} is pending already")
    pending[token] = stream.launch_host_function(request.complete)


def host_function_done(request: Request, token: int) -> None:
    pending = request.context.host_functions
    if token not in pending:
        raise BackendError(Result.ERROR_INVALID_HANDLE, f"host function {token} is not pending in this context")
    pending[token].finish()
    del pending[token]


def room(request: Request, done: Completion) -> None:
    request.resources.backpressure.when_half_is_free(lambda: done(Status()))


def set_limit(request: Request, limit: int, count: int) -> None:
    try:
        kind = ContextLimit(limit)
    except ValueError:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"limit {limit}: 1 and 2 can be set") from None
    request.context.backend.set_limit(kind, count)
