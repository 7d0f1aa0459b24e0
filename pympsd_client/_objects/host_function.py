"""Functions of the program that run in its own process, in stream order (CUDA driver API, Execution Control).

As with cuda.bindings, a function is the address of a C function, as a number or a CUhostFn. Here a ctypes function or
any other callable works too, except in a program that runs natively, whose calls all go to cuda.bindings. A Python
function's exception goes to `sys.unraisablehook`, and the stream continues.
"""

import ctypes
from collections.abc import Callable
from itertools import count
from threading import Event, Lock
from typing import Any, Final

from pympsd_client._arguments.bindings import CUstream
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported, result_of
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import number
from pympsd_client._command_stream.host_callbacks import HostCallbacks, PendingCallback
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._command_stream.transport import Transport, intercepted
from pympsd_client._connect.session import Session
from pympsd_client._objects.context import Context, this_thread, when_closed
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import resolve

_HOST_FN: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_STREAM_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_C_FUNCTION: Final[Any] = _HOST_FN.__bases__[0]
"""The common base class of ctypes functions."""
# A Python callable is called through ctypes too, so that its exceptions are handled like a ctypes function's.
_CALL_HOST: Final = ctypes.CFUNCTYPE(None, ctypes.py_object)
_CALL_BACK: Final = ctypes.CFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)
_making: Final = Lock()
_awaited: Final[dict[Event, Context]] = {}
"""The contexts whose streams other streams wait for (`make_wait`)."""


def launch(stream: int, function: Any, data: Any) -> None:
    """Queue ``function(data)`` in a stream. It does not run if its context has an error by then. Raise CudaError."""
    context, stream_id = _place(stream)
    work = callee(function, data)
    if (by := intercepted.by) is None or not by.take_host_function(context, stream_id, work):
        _post(context, stream_id, work[2], on_error=False)


def callee(function: Any, data: Any) -> tuple[int, int, Callable[[int], None]]:
    """Return the address of a C function (0 for another callable), that of its data, and a function that calls it.

    Raise INVALID_VALUE for NULL, TypeError for an object that cannot be called.
    """
    address = _address(function)
    if address is None:
        guarded = _CALL_HOST(function)
        return 0, 0, lambda status: guarded(data)
    c_function, pointer = _HOST_FN(address), _pointer(data)
    return address, pointer, _hold((function, data), lambda status: c_function(pointer))


def run_after(places: list[tuple[Context, int]], run: Callable[[], None]) -> None:
    """Run one of pympsd's own functions after the earlier work of streams, even if that work fails.

    Each stream is given by its context and its name in records; the work of a context that cannot be used has ended.
    The function runs in a callback thread or in this one, and must not raise.
    """
    arrive = count(1).__next__

    def end(status: int) -> None:
        if arrive() > len(places):
            run()

    for place in places:
        try:
            _post(*place, end, on_error=True)
        except CudaError:
            end(0)
    end(0)


def make_wait(stream: tuple[Context, int], other: tuple[Context, int]) -> None:
    """Make later work of a stream wait for the earlier work of another stream, which may be of another device.

    Each stream is given by its context and its name in records. The wait ends too if the other stream's work fails or
    its context is closed. Raise CudaError if it cannot be queued.
    """
    reached = Event()
    _awaited[reached] = other[0]

    def end_wait(status: int) -> None:
        _awaited.pop(reached, None)
        reached.set()

    try:
        _post(*other, end_wait, on_error=True)
    except CudaError:
        _awaited.pop(reached, None)
        raise
    _post(*stream, lambda status: bool(reached.wait()), on_error=True)


def _end_waits(context: Context) -> None:
    """End the waits for the streams of a closing context, whose functions may never run."""
    for reached, awaited in tuple(_awaited.items()):
        if awaited is context:
            _awaited.pop(reached, None)
            reached.set()


when_closed.append(_end_waits)


def add_callback(stream: int, callback: Any, data: Any) -> None:
    """Queue ``callback(stream, status, data)`` in a stream; it runs even if the context gets an error."""
    context, stream_id = _place(stream)
    if (by := intercepted.by) is not None:
        by.refuse(context, stream_id, "cuStreamAddCallback")
    address = _address(callback)
    if address is None:
        guarded = _CALL_BACK(callback)
        _post(context, stream_id, lambda status: guarded(CUstream(stream), result_of(status), data), on_error=True)
        return
    c_function, pointer = _STREAM_CALLBACK(address), _pointer(data)
    run = _hold((callback, data), lambda status: c_function(stream, status, pointer))
    _post(context, stream_id, run, on_error=True)


def _place(stream: int) -> tuple[Context, int]:
    context, stream_id = resolve(stream)
    context.usable()
    if isinstance(process.connection, Session) and not context.device.properties.is_volta_or_newer:
        major, minor = context.device.properties.compute_capability
        raise not_supported(
            f"stream callbacks are not supported on pre-Volta MPS clients: {context.device.properties.name} has "
            f"compute capability {major}.{minor}, 7.0 is needed; synchronize instead, or run without MPS"
        )
    return context, stream_id


def _address(function: Any) -> int | None:
    """Return the address of a C function, or None for a Python callable; raise TypeError for anything else."""
    if isinstance(function, _C_FUNCTION):
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
    elif callable(function) and not hasattr(function, "__int__"):
        return None
    else:
        address = number(function)
    if not address:
        raise invalid_value("the function is NULL; pass the address of a C function, or a callable")
    return address


def _pointer(data: Any) -> int:
    with HostMemory(data) as memory:
        return memory.address


def _hold(reference: object, run: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that calls ``run`` and keeps ``reference`` alive as long as it exists."""

    def call(status: int, _reference: object = reference) -> None:
        run(status)

    return call


def _post(context: Context, stream: int, run: Callable[[int], object], *, on_error: bool) -> None:
    opened = context.usable()
    callbacks_of(opened.transport).launch(PendingCallback(context, opened.context_id, stream, mark(run), on_error))


def mark(run: Callable[[int], object]) -> Callable[[int], None]:
    """Return a function that calls ``run``; while it runs, CUDA calls in its thread are refused."""
    process.calls_back = True
    invalidate()

    def call(status: int) -> None:
        this_thread.in_host_function = True
        try:
            run(status)
        finally:
            this_thread.in_host_function = False

    return call


def callbacks_of(transport: Transport) -> HostCallbacks:
    """Return a command stream's `HostCallbacks`, made at the first call."""
    with _making:
        callbacks = transport.host_callbacks
        if not isinstance(callbacks, HostCallbacks):
            callbacks = transport.host_callbacks = HostCallbacks(transport)
        return callbacks
