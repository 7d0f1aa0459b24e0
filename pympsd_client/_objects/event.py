"""Events: points in streams that can be waited for and timed (CUDA driver API, Event Management)."""

from collections.abc import Callable
from typing import Final

from attrs import define, field

from pympsd.wire.records import STREAM_LEGACY, Kind
from pympsd_client._arguments.errors import invalid_handle, invalid_value, not_supported
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects.context import Context
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.own_contexts import own_contexts
from pympsd_client._objects.stream import resolve

BLOCKING_SYNC: Final = 1
DISABLE_TIMING: Final = 2
INTERPROCESS: Final = 4


@define(eq=False)
class Event:
    """An event; ``recorded`` is True once it has been recorded in a stream, perhaps by another process."""

    handle: int
    context: Context
    flags: int
    recorded: bool = False
    opener: Context | None = None
    """The program's context if this is another process's event; ``context`` is on the device that has the event."""
    opened_in: dict[Context, int] = field(factory=dict)
    """The event's handles in other contexts of its device, for recording across green contexts."""

    def handle_in(self, context: Context) -> int:
        """Return the event's handle in its own context or in a related one; raise INVALID_HANDLE for any other."""
        if context is self.context:
            return self.handle
        if not self.is_related_to(context):
            raise invalid_handle("the event and the stream are of different contexts; create both in one")
        handle = self.opened_in.get(context)
        if handle is None:
            secret = self.context.query(operations.SHARE_EVENT, self.handle)
            handle = context.allocate_handle()
            context.call(operations.OPEN_EVENT, handle, *secret)
            self.opened_in[context] = handle
        return handle

    def is_related_to(self, context: Context) -> bool:
        """Return whether the event can be recorded in another context.

        It can if both contexts are on one device and at least one of them is green.
        """
        has_green = context.partition is not None or self.context.partition is not None
        return has_green and context.device is self.context.device


after_waiting_for_event: Final[list[Callable[[Context], None]]] = []
"""Functions that are called with a context after a call has waited for one of its events."""
events: Final[HandleTable[Event]] = HandleTable(
    "event", "destroyed, or never created", Kind.EVENT, remembers_contexts=True
)
own_contexts.needed.append(lambda context: any(event.context is context for event in events.list_all()))


def create(context: Context, flags: int) -> Event:
    """Make an event and return it.

    ``flags`` combines CUevent_flags; CU_EVENT_INTERPROCESS requires CU_EVENT_DISABLE_TIMING. Raise INVALID_VALUE for
    other flags, NOT_SUPPORTED if the device has no events between processes.
    """
    if flags & ~(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS):
        raise invalid_value(f"event flags must be a combination of CUevent_flags, not {flags}")
    if flags & INTERPROCESS and not flags & DISABLE_TIMING:
        raise invalid_value("CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING as well")
    is_shared = bool(flags & INTERPROCESS)
    if is_shared and not context.device.properties.attributes.get("IPC_EVENT_SUPPORTED"):
        reason = "this device has no events between processes (device attribute IPC_EVENT_SUPPORTED is 0)"
        raise not_supported(f"{reason}; leave the flag CU_EVENT_INTERPROCESS out")
    handle = context.allocate_handle()
    context.post(operations.CREATE_EVENT, handle, flags)
    return events.add(Event(handle, context, flags, recorded=is_shared))


def open_shared(context: Context, opener: Context, secret: int) -> Event:
    """Open another process's event by its secret, in a context of the event's device; raise CudaError."""
    handle = context.allocate_handle()
    context.call(operations.OPEN_EVENT, handle, secret >> 64, secret & ((1 << 64) - 1))
    return events.add(Event(handle, context, DISABLE_TIMING, recorded=True, opener=opener))


def destroy(handle: int) -> None:
    """Destroy an event, even if its work is not done."""
    event = events.find(handle)
    events.destroy(event)
    for context, its_handle in event.opened_in.items():
        if context.active and context.sticky_error is None:
            context.post(operations.DESTROY_EVENT, its_handle)
    own_contexts.close_unneeded(event.context)


def record(handle: int, stream: int) -> None:
    """Record an event, which then stands for the stream's earlier work and no longer for work recorded before.

    Raise INVALID_HANDLE if the stream's context is neither the event's nor related to it (`Event.is_related_to`).
    """
    context, stream_id = resolve(stream)
    event = events.find(handle)
    if event.opener is context and event.context is not context:
        # The event is in the executor of another device, which does not know the stream.
        context.call(operations.SYNCHRONIZE_STREAM, stream_id)
        event.context.post(operations.RECORD_EVENT, event.handle, STREAM_LEGACY)
    else:
        context.post(operations.RECORD_EVENT, event.handle_in(context), stream_id)
    event.recorded = True


def query(handle: int) -> None:
    """Raise NOT_READY unless the recorded work is done, or the event was never recorded."""
    event = events.find(handle)
    event.context.usable()
    if event.recorded:
        event.context.call(operations.QUERY_EVENT, event.handle)


def synchronize(handle: int) -> None:
    """Wait for the work that preceded the event when it was last recorded."""
    event = events.find(handle)
    event.context.usable()
    if event.recorded:
        event.context.call(operations.SYNCHRONIZE_EVENT, event.handle)
        for act in after_waiting_for_event:
            act(event.context)


def make_stream_wait(stream: int, handle: int) -> None:
    """Make later work of a stream wait for the event.

    An event of another context may be in another executor. Then this function waits for the event itself, before the
    stream's later work can be sent.
    """
    context, stream_id = resolve(stream)
    event = events.find(handle)
    context.usable()
    if context is event.context or event.is_related_to(context):
        context.post(operations.WAIT_EVENT, stream_id, event.handle_in(context))
        return
    by = intercepted.by
    if by is None:
        synchronize(handle)
    elif not by.take_wait(context, stream_id, event.handle):
        with by.lift():
            synchronize(handle)


def elapsed_milliseconds(start: int, end: int) -> float:
    """Return the milliseconds between two recorded events.

    Raise NOT_READY if one of them has not been reached, INVALID_HANDLE if one was never recorded or has no timing, or
    if they are of different contexts.
    """
    first, second = events.find(start), events.find(end)
    for event in (first, second):
        event.context.usable()
        if event.flags & DISABLE_TIMING:
            raise invalid_handle("an event created with CU_EVENT_DISABLE_TIMING does not measure time")
        if not event.recorded:
            raise invalid_handle("the event was never recorded; call cuEventRecord first")
    if first.context is not second.context:
        raise invalid_handle("the two events are of different contexts; no time can be measured between them")
    return float(first.context.query(operations.ELAPSED_TIME, first.handle, second.handle)[0])
