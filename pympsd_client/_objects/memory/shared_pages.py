"""Page-locked memory that an executor maps at the same address, so that its device copies from and to it directly.

The executor allocates the pages, and this process maps them by their descriptor. If the address is in use here, this
process requests other pages (`share`). This process unmaps freed pages immediately, the executor after the work
submitted before. Kernels of the process's other emulated devices can access the pages too (`peer_access`). For
functions that wait before they free, the caller of `close` waits for these devices.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import frozen

from pympsd.channel.descriptors import ADVICE
from pympsd.channel.mapping import unmap
from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.answers import NO_ROOM, ReceivedFds
from pympsd_client._command_stream.operations import OperationLayout
from pympsd_client._command_stream.staging import map_at
from pympsd_client._objects.memory.peer_access import peer_access

if TYPE_CHECKING:
    from pympsd_client._command_stream.transport import Transport
    from pympsd_client._connect.connection import VisibleDevice
    from pympsd_client._objects.context import Context

_NO_CONTEXT: Final = 0
"""The context id in records that free page-locked memory, which belongs to the process."""
_ADDRESS: Final = struct.Struct("=Q")
_MAX_TRIES: Final = 16
"""The maximum number of pieces that are allocated and not used until this process can map one."""
_preparing: Final = Lock()
_mapped_here: Final[dict[int, int]] = {}
"""The sizes of `map_memory`'s mappings in bytes, by their addresses."""


@frozen(eq=False)
class SharedPages:
    """``size`` bytes at ``address``, in this process and in the executor behind ``transport``."""

    address: int
    size: int
    transport: Transport
    device: VisibleDevice

    def close(self) -> None:
        """Free the pages, in this process immediately, in the executor when the work submitted before is done."""
        unmap(self.address, self.size)  # first, because the executor may reuse the address as soon as it is free
        _free(self.transport, self.address)


def share(context: Context, size: int) -> SharedPages:
    """Return ``size`` new bytes, all zero, shared with the executor of a context; raise CudaError.

    The executor chooses the address. If something else is mapped there in this process, such as its program, a
    library or its heap, this function requests memory again. The executor always chooses the next free address. So
    memory that could not be mapped stays allocated meanwhile, and more is allocated to get past this process's
    mappings.
    """
    transport = context.usable().transport
    in_the_way: list[int] = []
    try:
        while True:
            address, offset, fd = _allocate(context, size)
            in_the_way.append(address)
            try:
                map_at(fd, address, size, offset)
                in_the_way.remove(address)
                pages = SharedPages(address, size, transport, context.device)
                break
            except OSError as error:
                if error.errno != errno.EEXIST or len(in_the_way) > _MAX_TRIES:
                    raise _not_mapped(size, address, error) from None
            occupied = free_address(_maps(), address, size) - address - size
            if occupied > 0:
                with suppress(CudaError):  # the process may not have so much memory; try without
                    address, _, fd = _allocate(context, occupied)
                    os.close(fd)
                    in_the_way.append(address)
    finally:
        for address in in_the_way:
            _free(transport, address)
    try:
        peer_access.share(context.device)
    except CudaError:
        pages.close()
        raise
    return pages


def free_address(maps: str, address: int, size: int) -> int:
    """Return the first address from ``address`` on with ``size`` free bytes, by ``maps`` (/proc/self/maps)."""
    for line in maps.splitlines():
        start, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if start >= address + size:
            break
        address = max(address, end)
    return address


def _maps() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return file.read()


def _allocate(context: Context, size: int) -> tuple[int, int, int]:
    """Return the address of new memory, its offset in a file, and the file's descriptor; raise CudaError."""
    answer, fd = call_for_descriptor(context, operations.ALLOCATE_PINNED, size)
    address, offset = operations.ALLOCATE_PINNED.answer.unpack_from(answer)
    try:
        return address, offset, require_descriptor(fd)
    except CudaError:
        _free(context.usable().transport, address)
        raise


def export_memory(context: Context, handle: int) -> int:
    """Return a new descriptor of the executor's physical memory; raise CudaError."""
    return require_descriptor(call_for_descriptor(context, operations.EXPORT_MEMORY, handle)[1])


def map_memory(context: Context, handle: int, address: int, size: int) -> None:
    """Map the executor's physical memory in this process too, at the same address; raise CudaError."""
    try:
        map_at(export_memory(context, handle), address, size)
    except OSError as error:
        raise _not_mapped(size, address, error) from None
    _mapped_here[address] = size


def unmap_memory(address: int) -> None:
    """Undo `map_memory` at an address; without effect if nothing was mapped."""
    size = _mapped_here.pop(address, None)
    if size is not None:
        unmap(address, size)


def call_for_descriptor(context: Context, operation: OperationLayout, *operands: int) -> tuple[bytes, int | None]:
    """Send a record and wait for its answer; return its operands and its descriptor, or None if it has none.

    The caller owns the descriptor and checks it with `require_descriptor`. Descriptors of earlier calls that Ctrl-C
    interrupted are closed first, and their memory is freed. Raise CudaError.
    """
    opened = context.usable()
    transport = opened.transport
    fds = _descriptors_of(transport, opened.context_id)
    for body in fds.decline():
        if body:  # page-locked memory; other answers export memory that its owner keeps
            _free(transport, *_ADDRESS.unpack_from(body))
    sequence = transport.sequence()
    record = operation.record(opened.context_id, sequence, *operands)
    with fds.protect(sequence):
        answer = context.judge(opened, transport.call(sequence, record))
        return answer, fds.take(sequence)


def require_descriptor(fd: int | None) -> int:
    """Return a descriptor that an answer brought; raise OPERATING_SYSTEM if this process may not open more.

    Raise MPS_RPC_FAILURE if the answer brought none.
    """
    if fd is None:
        raise connection_lost("the executor allocated memory but sent no descriptor")
    if fd == NO_ROOM:
        raise CudaError(Result.ERROR_OPERATING_SYSTEM, f"this process is out of file descriptors: {ADVICE}")
    return fd


def _descriptors_of(transport: Transport, context_id: int) -> ReceivedFds:
    """Return the received descriptors, and make every thread that reads the stream receive them from now on."""
    with _preparing:
        if transport.received_fds is None:
            transport.received_fds = ReceivedFds()
        fds = transport.received_fds
        if not fds.ready:
            # Another thread may be reading without receiving descriptors; with this answer it starts again.
            sequence = transport.sequence()
            transport.call(sequence, operations.MEMORY_INFO.record(context_id, sequence, flags=FLAG_QUIET))
            fds.ready = True
    return fds


def _free(transport: Transport, address: int) -> None:
    sequence = transport.sequence()
    transport.expect(sequence)
    try:
        # Urgent, because it is not work in a stream, and need not wait for backpressure.
        transport.post(operations.FREE_PINNED.record(_NO_CONTEXT, sequence, address), urgent=True)
        transport.answer(sequence)
    except CudaError:  # the executor has exited, which frees its memory
        return
    finally:
        transport.discard(sequence)


def _not_mapped(size: int, address: int, error: OSError) -> CudaError:
    if error.errno == errno.EEXIST:
        return CudaError(
            Result.ERROR_OUT_OF_MEMORY,
            f"this process has something else mapped at {address:#x}, the executor's address of {size} bytes of host "
            "memory, which both need at the same address; use pageable memory",
        )
    return CudaError(
        Result.ERROR_OUT_OF_MEMORY, f"the system cannot map {size} bytes of page-locked memory: {error.strerror}"
    )
