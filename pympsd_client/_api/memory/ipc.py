"""Memory and events that processes share (CUDA driver API, the functions cuIpc*).

Both processes have to be clients of one server, because an executor opens only objects that one of its clients has
shared. Memory and events of another device than the current context's are opened in a context of their device
(`own_contexts`), and the current context's device gets peer access to the memory.
"""

from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import shared_handles
from pympsd_client._arguments.errors import CudaError, invalid_context, invalid_handle, invalid_value, not_supported
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._command_stream import operations
from pympsd_client._objects import event as events
from pympsd_client._objects.context import Context, require_context, when_closed
from pympsd_client._objects.memory.allocations import FreedImmediately, allocations, is_shareable
from pympsd_client._objects.memory.imports import ImportedRange, import_range
from pympsd_client._objects.memory.peer_access import is_possible, peer_access
from pympsd_client._objects.own_contexts import own_contexts
from pympsd_client._objects.process import process

_LAZY_PEER_ACCESS: Final = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS."""
_MEMORY: Final = "CUipcMemHandle"
_EVENT: Final = "CUipcEventHandle"


@define(eq=False)
class OpenedMemory(FreedImmediately):
    """Memory of another process, opened by cuIpcOpenMemHandle; cuMemFree refuses it."""

    secret: int = field(kw_only=True)
    range: ImportedRange = field(kw_only=True)
    opener: Context = field(kw_only=True)
    """The program's context; ``context`` is on the device that has the memory."""
    references: int = 1

    @property
    def shown_context(self) -> Context:
        """The context that has opened the memory."""
        return self.opener

    def is_reached_from(self, context: Context) -> bool:
        """Return whether a context is on the device of the one that has opened the memory."""
        return context.device is self.opener.device

    def give_access(self) -> None:
        """Give the opener's device access to another device's memory; raise OUT_OF_MEMORY."""
        if self.context is not self.opener:
            pair = self.opener.device.ordinal, self.context.device.ordinal
            peer_access.set_of(self.range.start, pair, True)

    def close(self) -> None:
        """Unmap the memory, which `allocations` no longer contains, when the work that uses it is done."""
        for context in {self.context, self.opener}:
            if context.active and context.sticky_error is None:
                with suppress(CudaError):  # on an error its kernels have ended
                    context.synchronize()
        peer_access.drop(self.range.start)
        self.range.unmap()

    def free(self) -> None:
        """Raise INVALID_VALUE, because only cuIpcCloseMemHandle closes the memory."""
        raise invalid_value(f"{self.handle:#x} is another process's; call cuIpcCloseMemHandle")


_given: Final[set[int]] = set()
"""The secrets of this process's own memory for which it has handles."""


def _require_support(name: str) -> Context:
    context = require_context()
    if not context.device.properties.attributes.get("IPC_EVENT_SUPPORTED"):
        raise not_supported(
            f"{name}: this device's memory and events are not shared between processes (device attribute "
            "IPC_EVENT_SUPPORTED is 0). Exchange data through host memory that the processes share "
            "(multiprocessing.shared_memory) and copy it"
        )
    return context


def memory_handle(address: int) -> bytes:
    """Return a handle with which other processes open an allocation of cuMemAlloc that starts at an address.

    The memory counts only as this process's, until it is freed and every process has closed it. Raise INVALID_VALUE.
    """
    _require_support("cuIpcGetMemHandle")
    allocation = allocations.get(address)
    if allocation is None or not is_shareable(allocation):
        raise invalid_value(f"{address:#x} is not the start of an allocation of cuMemAlloc")
    answer = allocation.context.call(operations.SHARE_ALLOCATION, address)
    high, low, offset = operations.SHARE_ALLOCATION.answer.unpack_from(answer)
    secret = high << 64 | low
    _given.add(secret)
    handle = SharedHandle(secret, allocation.context.device.ordinal, offset, allocation.size)
    return shared_handles.pack(_MEMORY, handle)


def open_memory(argument: Any, flags: int) -> int:
    """Map another process's memory and return its address.

    If the context has opened the memory before, return the same address and count one more user. Another device's
    memory needs the flag CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS. Raise INVALID_CONTEXT for this process's own memory;
    MAP_FAILED for memory that is freed or another server's; PEER_ACCESS_UNSUPPORTED for memory of a device without
    peer access; INVALID_HANDLE, INVALID_VALUE.
    """
    context = _require_support("cuIpcOpenMemHandle")
    if flags & ~_LAZY_PEER_ACCESS:
        raise invalid_value(f"the flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not {flags:#x}")
    handle = shared_handles.unpack(_MEMORY, argument, invalid_handle)
    if handle.secret in _given:
        raise invalid_context("the handle is of this process's own memory; use the memory's address")
    for memory in allocations.list_all():
        if isinstance(memory, OpenedMemory) and memory.opener is context and memory.secret == handle.secret:
            memory.references += 1
            return memory.handle
    if handle.ordinal != context.device.ordinal and not flags:
        raise invalid_value("another device's memory needs the flag CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1)")
    with _use_owner(context, handle) as owner:
        try:
            mapped = import_range(owner, handle.secret)
        except CudaError as error:
            raise _convert_to_map_error(error) from None
        if handle.offset + handle.size > mapped.size:
            mapped.unmap()
            raise invalid_handle("the handle was changed: the memory is smaller than its size")
        start = mapped.start + handle.offset
        opened = OpenedMemory(start, owner, handle.size, secret=handle.secret, range=mapped, opener=context)
        try:
            opened.give_access()
        except CudaError:
            opened.close()
            raise
        return allocations.add(opened).handle


def _use_owner(context: Context, handle: SharedHandle) -> AbstractContextManager[Context]:
    """Return a block that gives the context in which to open a handle's object; raise PEER_ACCESS_UNSUPPORTED."""
    for device in process.require().devices:
        is_reached = device is context.device or is_possible(context.device, device)
        if device.ordinal == handle.ordinal and is_reached:
            return own_contexts.use(device)
    raise CudaError(
        Result.ERROR_PEER_ACCESS_UNSUPPORTED,
        "the handle belongs to a device to which the current context's device has no peer access; make a context of "
        "that device current",
    )


def _convert_to_map_error(error: CudaError) -> CudaError:
    if error.code != Result.ERROR_INVALID_VALUE:
        return error
    return CudaError(
        Result.ERROR_MAP_FAILED,
        "the handle's object is freed, or belongs to a client of another server; use one server for both processes",
    )


def close_memory(address: int) -> None:
    """Close another process's memory; the last close unmaps it when the context's work is done.

    Raise INVALID_VALUE for any other address.
    """
    _require_support("cuIpcCloseMemHandle")
    memory = allocations.get(address)
    if not isinstance(memory, OpenedMemory):
        raise invalid_value(f"{address:#x} was not returned by cuIpcOpenMemHandle")
    memory.references -= 1
    if not memory.references:
        memory.opener.synchronize()
        allocations.remove(address)
        memory.close()


def event_handle(event: int) -> bytes:
    """Return a handle with which other processes open an event.

    Raise INVALID_HANDLE unless it was created with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING.
    """
    _require_support("cuIpcGetEventHandle")
    entry = events.events.find(event)
    if not entry.flags & events.INTERPROCESS:
        raise invalid_handle("the event was not created with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING")
    answer = entry.context.call(operations.SHARE_EVENT, entry.handle)
    high, low = operations.SHARE_EVENT.answer.unpack_from(answer)
    return shared_handles.pack(_EVENT, SharedHandle(high << 64 | low, entry.context.device.ordinal))


def open_event(argument: Any) -> int:
    """Return a new event, without timing, of the current context that stands for another process's event.

    Raise MAP_FAILED for an event that is destroyed or another server's, PEER_ACCESS_UNSUPPORTED for an event of
    a device without peer access, INVALID_HANDLE.
    """
    context = _require_support("cuIpcOpenEventHandle")
    handle = shared_handles.unpack(_EVENT, argument, invalid_handle)
    with _use_owner(context, handle) as owner:
        try:
            return events.open_shared(owner, context, handle.secret).handle
        except CudaError as error:
            raise _convert_to_map_error(error) from None


def _drop(context: Context) -> None:
    """Close the memory and the events of other devices that a closing context has opened."""
    for memory in allocations.list_all():
        if isinstance(memory, OpenedMemory) and context in (memory.opener, memory.context):
            peer_access.drop(memory.range.start)
            if memory.context is not context:
                allocations.remove(memory.handle)
                with suppress(CudaError):  # the device's context may have failed
                    memory.close()
    for event in events.events.list_all():
        if event.opener is context and event.context is not context:
            with suppress(CudaError):
                events.destroy(event.handle)


when_closed.append(_drop)
