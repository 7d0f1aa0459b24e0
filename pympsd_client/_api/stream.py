"""Streams and events (CUDA driver API, Stream Management and Event Management)."""

from __future__ import annotations

from typing import Any

from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import CUcontext, CUevent, CUstream
from pympsd_client._arguments.errors import DONE, SUCCESS, invalid_value
from pympsd_client._arguments.numbers import number, unsigned
from pympsd_client._objects import event, host_function, stream
from pympsd_client._objects.process import current, here


@door(1)
def cuStreamCreate(Flags: Any) -> tuple[Any, ...]:
    """Return a new stream of the current context; flags CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING."""
    return SUCCESS, CUstream(stream.create(current(), unsigned(Flags, 32), 0).handle)


@door(1)
def cuStreamCreateWithPriority(flags: Any, priority: Any) -> tuple[Any, ...]:
    """Return a new stream; the priority is clamped to cuCtxGetStreamPriorityRange."""
    return SUCCESS, CUstream(stream.create(current(), unsigned(flags, 32), number(priority)).handle)


@door()
def cuStreamDestroy(hStream: Any) -> tuple[Any, ...]:
    """Forget a stream; its work goes on to its end."""
    here.require()
    stream.destroy(hStream)
    return DONE


@door()
def cuStreamQuery(hStream: Any) -> tuple[Any, ...]:
    """SUCCESS when all work so far is done, else NOT_READY."""
    here.require()
    stream.query(hStream)
    return DONE


@door()
def cuStreamSynchronize(hStream: Any) -> tuple[Any, ...]:
    """Wait for all work so far; return the error of earlier asynchronous work, if any."""
    here.require()
    stream.synchronize(hStream)
    return DONE


@door()
def cuStreamWaitEvent(hStream: Any, hEvent: Any, Flags: Any) -> tuple[Any, ...]:
    """Later work of the stream waits for the event (of another device: this call waits)."""
    here.require()
    if unsigned(Flags, 32):
        raise invalid_value(f"cuStreamWaitEvent takes CU_EVENT_WAIT_DEFAULT (0), not {Flags}")
    event.make_stream_wait(hStream, hEvent)
    return DONE


@door()
def cuLaunchHostFunc(hStream: Any, fn: Any, userData: Any) -> tuple[Any, ...]:
    """Run ``fn(userData)`` in this process when the stream comes here; its later work waits for that.

    ``fn``: the address of a C function (int, CUhostFn), a ctypes function, or a callable, which is given
    ``userData`` as it is. It runs in a thread of its own, not at all when the context is in error. CUDA calls in it
    return NOT_PERMITTED. NOT_SUPPORTED for pre-Volta MPS clients, INVALID_VALUE for NULL.
    """
    here.require()
    host_function.launch(hStream, fn, userData)
    return DONE


@door()
def cuStreamAddCallback(hStream: Any, callback: Any, userData: Any, flags: Any) -> tuple[Any, ...]:
    """Run ``callback(hStream, status, userData)`` as cuLaunchHostFunc does; in case of an error with its CUresult.

    ``flags`` is 0, else INVALID_VALUE.
    """
    here.require()
    if unsigned(flags, 32):
        raise invalid_value(f"cuStreamAddCallback takes no flags: 0, not {flags}")
    host_function.add_callback(hStream, callback, userData)
    return DONE


@door(1)
def cuStreamGetPriority(hStream: Any) -> tuple[Any, ...]:
    """Return the stream's priority, clamped as it was at creation."""
    here.require()
    return SUCCESS, stream.properties(hStream).priority


@door(1)
def cuStreamGetFlags(hStream: Any) -> tuple[Any, ...]:
    """Return the flags the stream was created with."""
    here.require()
    return SUCCESS, stream.properties(hStream).flags


@door(1)
def cuStreamGetCtx(hStream: Any) -> tuple[Any, ...]:
    """Return the stream's context; the current one for the special streams."""
    here.require()
    return SUCCESS, CUcontext(stream.properties(hStream).context.handle)


@door(1)
def cuEventCreate(Flags: Any) -> tuple[Any, ...]:
    """Return a new event of the current context; CU_EVENT_INTERPROCESS is NOT_SUPPORTED."""
    return SUCCESS, CUevent(event.create(current(), unsigned(Flags, 32)).handle)


@door()
def cuEventRecord(hEvent: Any, hStream: Any) -> tuple[Any, ...]:
    """The event stands for what is in the stream so far; INVALID_HANDLE when they are of different contexts."""
    here.require()
    event.record(hEvent, hStream)
    return DONE


@door()
def cuEventQuery(hEvent: Any) -> tuple[Any, ...]:
    """SUCCESS when what it recorded is done, or nothing was recorded; else NOT_READY."""
    here.require()
    event.query(hEvent)
    return DONE


@door()
def cuEventSynchronize(hEvent: Any) -> tuple[Any, ...]:
    """Wait until what it recorded is done."""
    here.require()
    event.synchronize(hEvent)
    return DONE


@door()
def cuEventDestroy(hEvent: Any) -> tuple[Any, ...]:
    """Forget an event, done or not."""
    here.require()
    event.destroy(hEvent)
    return DONE


@door(1)
def cuEventElapsedTime(hStart: Any, hEnd: Any) -> tuple[Any, ...]:
    """Return milliseconds between two recorded events; INVALID_HANDLE, NOT_READY."""
    here.require()
    return SUCCESS, event.elapsed_milliseconds(hStart, hEnd)
