"""Operations of execution control: modules, whose images are sent in parts; launches; streams and events.

The client's host functions are launched too, and its streams wait for them.
"""

from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import ModuleLayout
from pympsd.wire.records import FLAG_COOPERATIVE, HEADER_BYTES, MAX_RECORD, cluster_of
from pympsd_server.backends.interface import (
    BackendError,
    Completion,
    ContextLimit,
    Event,
    Launch,
    Module,
    Status,
    Stream,
)
from pympsd_server.executor.requests.request import OperationAnswer, Request, words


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
    """Queue a kernel: ``g`` blocks of ``b`` threads, ``shared_bytes`` of dynamic shared memory for each block."""
    cooperative = bool(request.flags & FLAG_COOPERATIVE)
    cluster = cluster_of(request.flags)
    launch = Launch(module, function, (gx, gy, gz), (bx, by, bz), shared_bytes, parameters, cooperative, cluster)
    stream.launch(launch)


def host_function(request: Request, stream: Stream, token: int) -> None:
    """Queue a host function, which is answered when it is due and counts as work until it is finished."""
    pending = request.context.host_functions
    if token in pending:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"host function {token} is pending already")
    pending[token] = stream.launch_host_function(request.complete)


def host_function_done(request: Request, token: int) -> None:
    """Let the stream continue after a host function that the client has run."""
    pending = request.context.host_functions
    if token not in pending:
        raise BackendError(Result.ERROR_INVALID_HANDLE, f"host function {token} is not pending in this context")
    pending[token].finish()
    del pending[token]


def room(request: Request, done: Completion) -> None:
    """Answer as soon as less than half of the permitted work of the client is unfinished."""
    request.resources.backpressure.call_when_half_is_free(lambda: done(Status()))


def set_limit(request: Request, limit: int, count: int) -> None:
    """Set a `ContextLimit` of the context to ``count`` bytes."""
    try:
        kind = ContextLimit(limit)
    except ValueError:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"limit {limit}: 1 and 2 can be set") from None
    request.context.backend.set_limit(kind, count)


_MAX_LAYOUT_BYTES: Final = MAX_RECORD - HEADER_BYTES


def image_part(request: Request, module: int, offset: int, count: int) -> None:
    """Append ``count`` staged bytes to the image of a module that is loaded later."""
    request.context.images.append(module, request.staging(offset, count))


def load_module(request: Request, handle: int) -> OperationAnswer:
    """Load the module whose image has arrived, and answer with the layout of its functions and variables."""
    context, image = request.context, request.context.images.take(handle)
    module = request.take_with_room(lambda: context.backend.load_module(image))
    layout = _layout(module)
    if len(layout) > _MAX_LAYOUT_BYTES:
        module.unload()
        reason = (
            f"the description of the module's functions has {len(layout)} bytes, {_MAX_LAYOUT_BYTES} fit an answer"
        )
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
    return OperationAnswer(tail=layout, created=module)


def load_function(request: Request, module: Module, function: int) -> OperationAnswer:
    """Load a function if it is not loaded; answer with its properties."""
    return OperationAnswer(tail=module.function(function).encode())


def _layout(module: Module) -> bytes:
    return ModuleLayout(tuple(module.functions), tuple(module.globals), module.managed_bytes).encode()


def place_managed(request: Request, module: Module, address: int, is_in_use: int) -> OperationAnswer:
    """Place a module's managed variables in page-locked memory of the client; answer with their layout.

    Memory in use is not written to, and may be on another device.
    """
    if not is_in_use:
        request.resources.pinned.view(address, module.managed_bytes)  # raises unless the memory is the client's
    module.place_managed(address, is_in_use=bool(is_in_use))
    return OperationAnswer(tail=_layout(module))


_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING of the driver API's CUstream_flags."""
# CUevent_flags of the driver API.
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4


def check_ready(done: bool) -> None:
    """Raise BackendError with NOT_READY unless ``done``."""
    if not done:
        raise BackendError(Result.ERROR_NOT_READY, "work is still pending")


def create_stream(request: Request, handle: int, flags: int, priority: int) -> OperationAnswer:
    """Create a stream with CUstream_flags and a priority."""
    if flags & ~_NON_BLOCKING:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"stream flags {flags:#x}")
    return OperationAnswer(created=request.context.backend.create_stream(bool(flags & _NON_BLOCKING), priority))


def query_stream(request: Request, stream: Stream) -> None:
    """Raise BackendError with NOT_READY unless all work of a stream is done."""
    check_ready(stream.idle)


def create_event(request: Request, handle: int, flags: int) -> OperationAnswer:
    """Create an event with CUevent_flags."""
    if flags & ~(_BLOCKING_SYNC | _DISABLE_TIMING | _INTERPROCESS):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"event flags {flags:#x}")
    return OperationAnswer(created=request.context.backend.create_event(not flags & _DISABLE_TIMING))


def query_event(request: Request, event: Event) -> None:
    """Raise BackendError with NOT_READY unless the work before an event is done."""
    check_ready(event.done)


def elapsed_time(request: Request, start: Event, end: Event) -> OperationAnswer:
    """Answer with the milliseconds between two events."""
    return OperationAnswer((end.milliseconds_since(start),))


def share_event(request: Request, event: Event) -> OperationAnswer:
    """Answer with the secret, in two words, with which another client of the user opens an event."""
    return OperationAnswer(words(request.resources.shared_events.add(event)))


def open_event(request: Request, handle: int, high: int, low: int) -> OperationAnswer:
    """Open an event that another client shares, by the two words of its secret."""
    event = request.resources.shared_events.find(high << 64 | low)
    return OperationAnswer(created=request.context.backend.open_event(event))
