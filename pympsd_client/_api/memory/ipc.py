"""Memory and events between processes (CUDA driver API, the functions cuIpc*).

Both processes are clients of one server, and on one device: an executor opens what one of its clients has shared.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_client._arguments import shared_handles
from pympsd_client._arguments.errors import CudaError, invalid_handle, invalid_value
from pympsd_client._arguments.shared_handles import SharedHandle
from pympsd_client._command_stream import operations
from pympsd_client._objects import event as events
from pympsd_client._objects.context import Context, current
from pympsd_client._objects.memory.allocations import Allocation, allocations, is_shareable
from pympsd_client._objects.memory.imports import ImportedRange, import_range

_LAZY_PEER_ACCESS: Final = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"""
_MEMORY: Final = "CUipcMemHandle"
_EVENT: Final = "CUipcEventHandle"


@define(eq=False)
class OpenedMemory(Allocation):
    """Memory of another process, from cuIpcOpenMemHandle: no function of allocations frees it."""

    secret: int = field(kw_only=True)
    range: ImportedRange = field(kw_only=True)
    references: int = 1

    def free(self) -> None:
        """Refuse: INVALID_VALUE."""
        raise invalid_value(f"{self.handle:#x} is another process's; call cuIpcCloseMemHandle")

    def free_in_order(self, context: Context, stream: int) -> None:
        """Refuse: INVALID_VALUE."""
        self.free()


_given: Final[set[int]] = set()
"""The secrets of this process's own memory."""


def _supported(name: str) -> Context:
    context = current()
    context.usable()
    if not context.device.properties.attributes.get("IPC_EVENT_SUPPORTED"):
        raise CudaError(
            Result.ERROR_NOT_SUPPORTED,
            f"{name}: this device's memory and events are not shared between processes (device attribute "
            "IPC_EVENT_SUPPORTED is 0). Exchange data through host memory that the processes share "
            "(multiprocessing.shared_memory) and copy it",
        )
    return context


def memory_handle(address: int) -> bytes:
    """Return a handle by which other processes open an allocation of cuMemAlloc, named by its first byte.

    The allocation counts as this process's, once, until it is freed and closed everywhere. INVALID_VALUE.
    """
    _supported("cuIpcGetMemHandle")
    found = allocations.get(address)
    if found is None or not is_shareable(found):
        raise invalid_value(f"{address:#x} is not the start of an allocation of cuMemAlloc")
    answer = found.context.call(operations.SHARE_ALLOCATION, address)
    high, low, offset = operations.SHARE_ALLOCATION.answer.unpack_from(answer)
    secret = high << 64 | low
    _given.add(secret)
    handle = SharedHandle(secret, found.context.device.ordinal, offset, found.size)
    return shared_handles.packed(_MEMORY, handle)


def open_memory(given: Any, flags: int) -> int:
    """Return where another process's memory is mapped; opened again in the context it is the same, counted.

    INVALID_CONTEXT for this process's own; MAP_FAILED for memory that is freed or of another server;
    PEER_ACCESS_UNSUPPORTED for that of another device; INVALID_HANDLE, INVALID_VALUE.
    """
    context = _supported("cuIpcOpenMemHandle")
    if flags & ~_LAZY_PEER_ACCESS:
        raise invalid_value(f"the flags are CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS (1), not {flags:#x}")
    handle = shared_handles.unpacked(_MEMORY, given, invalid_handle)
    if handle.secret in _given:
        raise CudaError(
            Result.ERROR_INVALID_CONTEXT, "the handle is of this process's own memory; use the memory's address"
        )
    _check_device(context, handle)
    for one in allocations.all():
        if isinstance(one, OpenedMemory) and one.context is context and one.secret == handle.secret:
            one.references += 1
            return one.handle
    try:
        mapped = import_range(context, handle.secret)
    except CudaError as error:
        raise _failed_to_map(error) from None
    if handle.offset + handle.size > mapped.size:
        mapped.unmap()
        raise invalid_handle("the handle was changed: the memory is smaller than it says")
    opened = OpenedMemory(mapped.start + handle.offset, context, handle.size, secret=handle.secret, range=mapped)
    return allocations.add(opened).handle


def _check_device(context: Context, handle: SharedHandle) -> None:
    if handle.ordinal != context.device.ordinal:
        raise CudaError(
            Result.ERROR_PEER_ACCESS_UNSUPPORTED,
            "the handle is of another device than the current context's, and there is no peer access; make a context "
            "of that device current",
        )


def _failed_to_map(error: CudaError) -> CudaError:
    if error.code != Result.ERROR_INVALID_VALUE:
        return error
    return CudaError(
        Result.ERROR_MAP_FAILED,
        "what the handle names is freed, or of another server's client: processes share through one server",
    )


def close_memory(address: int) -> None:
    """Count one opening less; unmap the memory with the last, when the context's work is done. INVALID_VALUE."""
    _supported("cuIpcCloseMemHandle")
    found = allocations.get(address)
    if not isinstance(found, OpenedMemory):
        raise invalid_value(f"{address:#x} is not what cuIpcOpenMemHandle returned")
    found.references -= 1
    if not found.references:
        found.context.synchronize()
        allocations.remove(address)
        found.range.unmap()


def event_handle(event: int) -> bytes:
    """Return a handle by which other processes open an event.

    INVALID_HANDLE for one that was not created with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING.
    """
    _supported("cuIpcGetEventHandle")
    found = events.events.find(event)
    if not found.flags & events.INTERPROCESS:
        raise invalid_handle("the event was not created with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING")
    answer = found.context.call(operations.SHARE_EVENT, found.handle)
    high, low = operations.SHARE_EVENT.answer.unpack_from(answer)
    return shared_handles.packed(_EVENT, SharedHandle(high << 64 | low, found.context.device.ordinal))


def open_event(given: Any) -> int:
    """Return an event of the current context that stands for what another process's does, without timing.

    MAP_FAILED for an event that is destroyed or of another server; PEER_ACCESS_UNSUPPORTED for that of another
    device; INVALID_HANDLE.
    """
    context = _supported("cuIpcOpenEventHandle")
    handle = shared_handles.unpacked(_EVENT, given, invalid_handle)
    _check_device(context, handle)
    try:
        return events.open_shared(context, handle.secret).handle
    except CudaError as error:
        raise _failed_to_map(error) from None
