"""Operations on memory: allocations, copies, fills, page-locked memory that the client shares, and virtual memory.

Clients map virtual memory at addresses of their choice.
"""

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.records import MEMORY_OF_HOST, MEMORY_SHAREABLE
from pympsd_server.backends.interface import (
    BackendError,
    Completion,
    Copy,
    Extent,
    Fill,
    Region,
    Space,
    Status,
    Stream,
)
from pympsd_server.backends.virtual_memory import File, PhysicalMemory
from pympsd_server.executor.requests.request import ClientResources, OperationAnswer, Request, words

_MAX_ADDRESS: Final = 1 << 64


def allocate(request: Request, count: int) -> OperationAnswer:
    """Answer with the address of ``count`` bytes of device memory."""
    allocate = request.context.backend.allocate
    return OperationAnswer((request.take_with_room(lambda: allocate(count)),))


# --- copies and fills


def _linear(destination: Region, source: Region, count: int) -> Copy:
    return Copy(destination, source, Extent(count))


def _device(address: int) -> Region:
    return Region(Space.DEVICE, address)


def copy_to_device(
    request: Request, stream: Stream, destination: int, offset: int, count: int, done: Completion
) -> None:
    """Queue a copy of ``count`` staged bytes to device memory; ``done`` frees their slot."""
    source = Region(Space.STAGING, host=request.staging(offset, count))
    stream.copy(_linear(_device(destination), source, count), done)


def copy_from_device(
    request: Request, stream: Stream, source: int, offset: int, count: int, done: Completion
) -> None:
    """Queue a copy of ``count`` bytes of device memory to a slot; ``done`` reports that the copy is done."""
    destination = Region(Space.STAGING, host=request.staging(offset, count))
    stream.copy(_linear(destination, _device(source), count), done)


def copy_on_device(request: Request, stream: Stream, destination: int, source: int, count: int) -> None:
    """Queue a copy of ``count`` bytes within device memory."""
    stream.copy(_linear(_device(destination), _device(source), count))


def copy_to_device_pinned(request: Request, stream: Stream, destination: int, source: int, count: int) -> None:
    """Queue a copy of ``count`` bytes of page-locked memory to device memory."""
    pinned = Region(Space.PINNED, host=request.resources.pinned.view(source, count))
    stream.copy(_linear(_device(destination), pinned, count))


def copy_from_device_pinned(request: Request, stream: Stream, destination: int, source: int, count: int) -> None:
    """Queue a copy of ``count`` bytes of device memory to page-locked memory."""
    pinned = Region(Space.PINNED, host=request.resources.pinned.view(destination, count))
    stream.copy(_linear(pinned, _device(source), count))


def copy_3d(request: Request, stream: Stream, *operands: int) -> None:
    """Queue a copy of a box of bytes that does not use staged memory, which would need an answer."""
    copy = _regions(request, *operands)
    if Space.STAGING in (copy.destination.space, copy.source.space):
        raise BackendError(Result.ERROR_INVALID_VALUE, "COPY_3D cannot use shared memory; COPY_3D_STAGED can")
    stream.copy(copy)


def copy_3d_staged(request: Request, stream: Stream, *operands: Any) -> None:
    """Queue a copy of a box of bytes to or from a slot; the last operand is called when the copy is done."""
    *numbers, done = operands
    stream.copy(_regions(request, *numbers), done)


def _regions(request: Request, *operands: int) -> Copy:
    *sides, width, height, depth = operands
    extent = Extent(width, height, depth)
    destination, source = (_region(request, extent, *side) for side in (sides[:4], sides[4:]))
    if destination.space is not Space.DEVICE and source.space is not Space.DEVICE:
        raise BackendError(Result.ERROR_INVALID_VALUE, "a copy between two regions of host memory")
    return Copy(destination, source, extent)


def _region(request: Request, extent: Extent, space: int, base: int, pitch: int, slice_pitch: int) -> Region:
    region = Region(Space.DEVICE, base, pitch, slice_pitch)
    span = region.span(extent)
    if span >= _MAX_ADDRESS:
        raise BackendError(Result.ERROR_INVALID_VALUE, f"a copy that spans {span} bytes")
    match space:
        case records.CopySpace.DEVICE:
            return region
        case records.CopySpace.STAGING:
            return Region(Space.STAGING, 0, pitch, slice_pitch, request.staging(base, span))
        case records.CopySpace.PINNED:
            return Region(Space.PINNED, 0, pitch, slice_pitch, request.resources.pinned.view(base, span))
    raise BackendError(Result.ERROR_INVALID_VALUE, f"there is no memory space {space}")


def fill(
    request: Request, stream: Stream, destination: int, value: int, width: int, count: int, pitch: int, height: int
) -> None:
    """Queue a fill of ``height`` rows of ``count`` elements of ``width`` bytes; rows are ``pitch`` bytes apart."""
    region = Region(Space.DEVICE, destination, pitch)
    stream.fill(Fill(region, value, width, Extent(width * count, height)))


# --- page-locked memory


def allocate_pinned(request: Request, count: int) -> OperationAnswer:
    """Answer with the address of ``count`` bytes of page-locked memory, their offset in a file, and the file."""
    piece = request.resources.pinned.allocate(count)
    return OperationAnswer((piece.address, piece.offset), fds=(piece.fd,))


def free_pinned(request: Request, address: int) -> None:
    """Free a piece, even if its context has ended.

    The client loses the piece now, and the device after all queued work.
    """
    _call_after_all_work(request.resources, request.resources.pinned.take(address))


def _call_after_all_work(client: ClientResources, act: Callable[[], None]) -> None:
    """Call ``act`` when all queued work of a client is done, in all its contexts, or the contexts have gone."""
    contexts = tuple(client.contexts.values())
    lock, pending = Lock(), len(contexts) + 1

    def done(status: Status) -> None:
        nonlocal pending
        with lock:
            pending -= 1
            last = not pending
        if last:
            act()

    for context in contexts:
        try:
            context.backend.notify(done)
        except BackendError:  # the context does not accept work, and has none left
            done(Status())
    done(Status())


def create_memory(request: Request, handle: int, count: int, flags: int) -> OperationAnswer:
    """Create physical memory of ``count`` bytes for virtual memory, on the device or the host."""
    if flags & ~(MEMORY_SHAREABLE | MEMORY_OF_HOST):
        raise BackendError(Result.ERROR_INVALID_VALUE, f"memory has no flags {flags:#x}")
    charge = request.resources.pinned.charge if flags & MEMORY_OF_HOST else None
    create, shareable = request.context.backend.mapped.create, bool(flags & MEMORY_SHAREABLE)
    return OperationAnswer(created=request.take_with_room(lambda: create(count, shareable, charge)))


def set_access(request: Request, address: int, count: int, accessible: int) -> None:
    """Allow or deny the client's kernels access to a mapped range."""
    request.context.backend.mapped.set_access(address, count, bool(accessible))


def export_memory(request: Request, memory: PhysicalMemory) -> OperationAnswer:
    """Answer with a file descriptor of shareable memory."""
    return OperationAnswer(fds=(memory.export(),))


def import_memory(request: Request, handle: int, high: int, low: int) -> OperationAnswer:
    """Import memory that a client shares, by the two words of its secret; answer with its size in bytes."""
    memory = request.context.backend.mapped.import_(high << 64 | low)
    return OperationAnswer((memory.size, int(memory.is_of_host)), created=memory)


def share_allocation(request: Request, address: int) -> OperationAnswer:
    """Answer with the secret, in two words, of the memory at an address, and the offset in it (cuIpcGetMemHandle)."""
    secret, offset = request.context.backend.share_allocation(address)
    return OperationAnswer((*words(secret), offset))


def _words_of(file: File) -> tuple[int, ...]:
    return os.getpid(), file.descriptor, *words(file.secret)


def publish_memory(request: Request, memory: PhysicalMemory) -> OperationAnswer:
    """Answer with the file of memory, so that an executor of another device can map it."""
    file = memory.publish()
    return OperationAnswer((*_words_of(file), file.offset))


def import_peers_memory(
    request: Request, handle: int, process: int, descriptor: int, high: int, low: int, offset: int, count: int
) -> OperationAnswer:
    """Map ``count`` bytes of memory that the executor of another device has published."""
    file = File(descriptor, high << 64 | low, offset)
    return OperationAnswer(created=request.context.backend.mapped.import_peers(process, file, count))


def publish_window(request: Request, address: int) -> OperationAnswer:
    """Answer with the file of the client's allocations or host memory, which executors of other devices map."""
    return OperationAnswer(_words_of(request.context.backend.mapped.publish(address)))


def map_peer(request: Request, address: int, process: int, descriptor: int, high: int, low: int) -> None:
    """Map memory that the client has on another device, for access by kernels of this device."""
    request.context.backend.mapped.map_peer(address, process, File(descriptor, high << 64 | low))
