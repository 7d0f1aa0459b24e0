"""Green contexts: contexts whose kernels use only a part of the device's SMs (CUDA driver API, Green Contexts)."""

from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_context, invalid_value
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._command_stream import operations
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects import event as events
from pympsd_client._objects.context import Context, contexts, new_handle, when_closed
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import streams


@frozen(eq=False)
class GreenContext:
    """A green context's handle, and its context, which cuCtxFromGreenCtx returns."""

    handle: int
    context: Context


@frozen
class Description:
    """The content of a CUdevResourceDesc: a number of SMs of a device."""

    device: int
    count: int


green_contexts: Final[dict[int, GreenContext]] = {}
_by_context: Final[dict[Context, GreenContext]] = {}
_descriptions: Final[dict[int, Description]] = {}


def describe(device: int, count: int) -> int:
    """Return the handle of a new description. It is never freed, because CUDA has no function for that."""
    handle = new_handle()
    _descriptions[handle] = Description(device, count)
    return handle


def create(handle: int, device: VisibleDevice) -> GreenContext:
    """Make a green context from a description's handle; raise CudaError."""
    description = _descriptions.get(handle)
    if description is None:
        raise invalid_value(f"{handle:#x} was not returned by cuDevResourceGenerateDesc")
    if description.device != device.number:
        raise CudaError(Result.ERROR_INVALID_DEVICE, f"the resources are device {description.device}'s")
    context = Context.open_new(process.require(), device, partition=description.count)
    green = GreenContext(new_handle(), context)
    green_contexts[green.handle] = _by_context[context] = green
    return green


def find(handle: int) -> GreenContext:
    """Return a green context by its handle; raise INVALID_CONTEXT."""
    return find_by_handle(green_contexts, handle, "a green context of this process", invalid_context)


def find_by_context(context: Context) -> GreenContext | None:
    """Return the green context to which a context belongs, or None."""
    return _by_context.get(context)


def destroy(handle: int) -> None:
    """Destroy a green context and the objects that were made in it."""
    context = find(handle).context
    contexts.pop(context.handle, None)
    context.close(process.require())
    _drop(context)


def _drop(context: Context) -> None:
    green = _by_context.pop(context, None)
    if green is not None:
        green_contexts.pop(green.handle, None)


when_closed.append(_drop)


# --- events of all streams


def _streams_of(context: Context) -> list[int]:
    return [0, *(stream.handle for stream in streams.list_all() if stream.context is context)]


def record(context: Context, event: int) -> None:
    """Record an event that stands for the earlier work in all streams of a context; raise CudaError."""
    recorded_event = events.events.find(event)
    handle = recorded_event.handle_in(context)
    joining_stream, end_event = context.allocate_handle(), context.allocate_handle()
    context.post(operations.CREATE_STREAM, joining_stream, 1, 0)
    context.post(operations.CREATE_EVENT, end_event, events.DISABLE_TIMING)
    for stream in _streams_of(context):
        context.post(operations.RECORD_EVENT, end_event, stream)
        context.post(operations.WAIT_EVENT, joining_stream, end_event)
    context.post(operations.RECORD_EVENT, handle, joining_stream)
    context.post(operations.DESTROY_EVENT, end_event)
    context.post(operations.DESTROY_STREAM, joining_stream)
    recorded_event.recorded = True


def wait(context: Context, event: int) -> None:
    """Make the later work in all of a context's present streams wait for an event; raise CudaError.

    This function itself waits for an event of an unrelated context.
    """
    waited_event = events.events.find(event)
    if context is not waited_event.context and not waited_event.is_related_to(context):
        events.synchronize(event)
        return
    handle = waited_event.handle_in(context)
    for stream in _streams_of(context):
        context.post(operations.WAIT_EVENT, stream, handle)
