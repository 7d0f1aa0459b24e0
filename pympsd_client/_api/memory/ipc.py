"""Memory and events that processes share (CUDA driver API, the functions cuIpc*).

Both processes have to be clients of one server and use one device, because an executor opens only objects that one of
its clients has shared.
"""

from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import shared_handles
from pympsd_client._arguments.errors import CudaError, invalid_context, invalid_handle, invalid_value, not_supported
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._command_stream import operations
from pympsd_client._objects import event as events
from pympsd_client._objects.context import Context, require_context
from pympsd_client._objects.memory.allocations import FreedImmediately, allocations, is_shareable
from pympsd_client._objects.memory.imports import ImportedRange, import_range

_LAZY_PEER_ACCESS: Final = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"""
_MEMORY: Final = "CUipcMemHandle"
_EVENT: Final = "CUipcEventHandle"


@define(eq=False)
class OpenedMemory(FreedImmediately):
    """Memory of another process, opened by cuIpcOpenMemHandle; cuMemFree refuses it."""

    secret: int = field(kw_only=True)
    range: ImportedRange = field(kw_only=True)
    references: int = 1

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

    If the context has opened the memory before, return the same address and count one more user. Raise
    INVALID_CONTEXT for this process's own memory; MAP_FAILED for memory that is freed or another server's;
    PEER_ACCESS_UNSUPPORTED for another device's memory; INVALID_HANDLE, INVALID_VALUE.
    """
    context = _require_support("cuIpcOpenMemHandle")
    if flags & ~_LAZY_PEER_ACCESS:
        raise invalid_value(f"the flags must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not {flags:#x}")
    handle = shared_handles.unpack(_MEMORY, argument, invalid_handle)
    if handle.secret in _given:
        raise invalid_context("the handle is of this process's own memory; use the memory's address")
    _check_device(context, handle)
    for memory in allocations.list_all():
        if isinstance(memory, OpenedMemory) and memory.context is context and memory.secret == handle.secret:
            memory.references += 1
            return memory.handle
    try:
        mapped = import_range(context, handle.secret)
    except CudaError as error:
        raise _convert_to_map_error(error) from None
    if handle.offset + handle.size > mapped.size:
        mapped.unmap()
        raise invalid_handle("the handle was changed: the memory is smaller than its size")
    opened = OpenedMemory(mapped.start + handle.offset, context, handle.size, secret=handle.secret, range=mapped)
    return allocations.add(opened).handle


def _check_device(context: Context, handle: SharedHandle) -> None:
    if handle.ordinal != context.device.ordinal:
        raise CudaError(
            Result.ERROR_PEER_ACCESS_UNSUPPORTED,
            "the handle belongs to a device other than the current context's, and there is no peer access; make a "
            "context of that device current",
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
        memory.context.synchronize()
        allocations.remove(address)
        memory.range.unmap()


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
    another device, INVALID_HANDLE.
    """
    context = _require_support("cuIpcOpenEventHandle")
    handle = shared_handles.unpack(_EVENT, argument, invalid_handle)
    _check_device(context, handle)
    try:
        return events.open_shared(context, handle.secret).handle
    except CudaError as error:
        raise _convert_to_map_error(error) from None
