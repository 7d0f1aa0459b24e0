"""Page-locked memory that an executor maps at the same address, so that its device copies from and to it directly.

The executor allocates the pages, and this process maps them by their descriptor. The address may be in use here; then
the executor is asked for another one (`share`). This process unmaps freed pages immediately, the executor after the
work submitted before. Kernels of the process's other emulated devices access them, too (`peer_access`): where CUDA
waits before it frees, the caller of `close` waits for these devices.
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
"""It belongs to the process: freeing it names no context."""
_ADDRESS: Final = struct.Struct("=Q")
_MAX_TRIES: Final = 16
"""The number of pieces, some of them in pairs, that may be allocated in vain for one that this process can map."""
_preparing: Final = Lock()
_mapped_here: Final[dict[int, int]] = {}
"""Sizes by address."""


@frozen(eq=False)
class SharedPages:
    """``size`` bytes at ``address``, in this process and in the executor behind ``transport``."""

    address: int
    size: int
    transport: Transport
    device: VisibleDevice

    def close(self) -> None:
        """Free the pages: in this process immediately, in the executor when the work submitted before is done."""
        unmap(self.address, self.size)  # first: once freed in the executor, the address may be reused
        _free(self.transport, self.address)


def share(context: Context, size: int) -> SharedPages:
    """Return ``size`` new zeroed bytes shared with the executor of a context; raise CudaError.

    The executor chooses the address. If this process has its program, a library or its heap there, the executor is
    asked again. It chooses the next free addresses, so the memory that it has returned stays allocated until then,
    and as much more as is needed to get past the mappings of this process.
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
                with suppress(CudaError):  # more than this process may have: try without
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
    """Return the first address from ``address`` on where ``size`` bytes are free, by /proc/self/maps (proc(5))."""
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
    """Return a new descriptor of physical memory of the executor's; raise CudaError."""
    return require_descriptor(call_for_descriptor(context, operations.EXPORT_MEMORY, handle)[1])


def map_memory(context: Context, handle: int, address: int, size: int) -> None:
    """Map physical memory of the executor's in this process, too, at the same address; raise CudaError."""
    try:
        map_at(export_memory(context, handle), address, size)
    except OSError as error:
        raise _not_mapped(size, address, error) from None
    _mapped_here[address] = size


def unmap_memory(address: int) -> None:
    """Undo `map_memory`, if there was one."""
    size = _mapped_here.pop(address, None)
    if size is not None:
        unmap(address, size)


def call_for_descriptor(context: Context, operation: OperationLayout, *operands: int) -> tuple[bytes, int | None]:
    """Send a record and wait for its answer; return the operands and the descriptor that came with it, or None.

    The caller owns the descriptor and checks it with `require_descriptor`. Descriptors of earlier calls that Ctrl-C
    interrupted are closed first, and their memory is freed. Raise CudaError.
    """
    opened = context.usable()
    transport = opened.transport
    fds = _descriptors_of(transport, opened.context_id)
    for body in fds.decline():
        if body:  # page-locked memory; other exported memory stays its owner's
            _free(transport, *_ADDRESS.unpack_from(body))
    sequence = transport.sequence()
    record = operation.record(opened.context_id, sequence, *operands)
    with fds.protect(sequence):
        answer = context.judge(opened, transport.call(sequence, record))
        return answer, fds.take(sequence)


def require_descriptor(fd: int | None) -> int:
    """Return a descriptor that came; raise OPERATING_SYSTEM if this process may not open more."""
    if fd is None:
        raise connection_lost("the executor allocated memory but sent no descriptor")
    if fd == NO_ROOM:
        raise CudaError(Result.ERROR_OPERATING_SYSTEM, f"this process is out of file descriptors: {ADVICE}")
    return fd


def _descriptors_of(transport: Transport, context_id: int) -> ReceivedFds:
    """Return the received descriptors; from now on every reader of the stream receives them."""
    with _preparing:
        if transport.received_fds is None:
            transport.received_fds = ReceivedFds()
        fds = transport.received_fds
        if not fds.ready:
            # Another thread may be reading without them now: this answer makes it start over.
            sequence = transport.sequence()
            transport.call(sequence, operations.MEMORY_INFO.record(context_id, sequence, flags=FLAG_QUIET))
            fds.ready = True
    return fds


def _free(transport: Transport, address: int) -> None:
    sequence = transport.sequence()
    transport.expect(sequence)
    try:
        # Urgent: it is not stream work, and is exempt from backpressure.
        transport.post(operations.FREE_PINNED.record(_NO_CONTEXT, sequence, address), urgent=True)
        transport.answer(sequence)
    except CudaError:  # the executor has gone, and its memory with it
        return
    finally:
        transport.discard(sequence)


def _not_mapped(size: int, address: int, error: OSError) -> CudaError:
    if error.errno == errno.EEXIST:
        return CudaError(
            Result.ERROR_OUT_OF_MEMORY,
            f"something of this process is mapped at {address:#x}, the executor's address of {size} bytes of host "
            "memory, which both need at the same address; use pageable memory",
        )
    return CudaError(
        Result.ERROR_OUT_OF_MEMORY, f"the system maps no {size} bytes of page-locked memory: {error.strerror}"
    )
