"""Device memory: allocation, copies through the staging memory, fills (CUDA driver API, Memory Management)."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from threading import Event

from attrs import frozen

from pympsd.vocabulary.device_facts import ordinal_of
from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.operations import Operation
from pympsd_client._command_stream.parallel_copy import copy_in_parallel, thread_count
from pympsd_client._command_stream.staging_slots import release_slot, take_slot
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.connection import Opened
from pympsd_client._objects.context import Context, context_on, handles
from pympsd_client._objects.process import current, here
from pympsd_client._objects.stream import synchronize


def allocate(count: int) -> int:
    """Return the address of ``count`` new bytes in the current context; OUT_OF_MEMORY, INVALID_VALUE for 0."""
    context = current()
    context.usable()
    if count == 0:
        raise invalid_value("an allocation has at least 1 byte")
    (address,) = operations.ALLOCATE.answer.unpack_from(context.call(operations.ALLOCATE, count))
    handles.memory[address] = context
    return int(address)


def free(address: int) -> None:
    """Give an allocation back; INVALID_VALUE when it is not one's start. Address 0 is nothing to free."""
    # Taken out first: once it is free another thread may be given the same address.
    context = handles.memory.pop(address, None)
    if context is None:
        current().usable()
        if address:
            raise invalid_value(f"{address:#x} is not the start of an allocation of this process")
        return
    try:
        context.call(operations.FREE, address)
    except BaseException:
        handles.memory.setdefault(address, context)
        raise


def info() -> tuple[int, int]:
    """Return (free, total) bytes of the current context's device, or of its limit where there is one."""
    rest, total = operations.MEMORY_INFO.answer.unpack_from(current().call(operations.MEMORY_INFO))
    return int(rest), int(total)


def ordinal_at(address: int) -> int:
    """Return the ordinal of the device an address is on: by its window, else as a module's variable.

    A real GPU's driver places variables itself, outside of every device's window.
    """
    ordinal = ordinal_of(address)
    if all(device.ordinal != ordinal for device in here.require().devices):
        for module in tuple(handles.modules.values()):
            if module.holds(address):
                return module.context.device.ordinal
    return ordinal


def owner(address: int) -> Context:
    """Return a context on the device that an address belongs to; INVALID_VALUE when it is on none."""
    current().usable()
    ordinal = ordinal_at(address)
    if all(device.ordinal != ordinal for device in here.require().devices):
        raise invalid_value(f"{address:#x} is no address of a visible device (a host pointer, perhaps)")
    context = context_on(ordinal)
    context.usable()
    return context


def place(address: int, context: Context, stream: int, handle: object) -> tuple[Context, int]:
    """Return (context, stream) for work on an address that is to come after a stream's work so far.

    That is the stream itself, unless the address is on another device: then the stream is waited for.
    """
    if context.device.ordinal == ordinal_at(address):
        return context, stream
    synchronize(handle)
    return owner(address), 0


# --- copies: every chunk is one record, whose bytes lie in a slot of the staging memory


def to_device(context: Context, stream: int, destination: int, source: int, count: int, wait: bool) -> None:
    """Copy ``count`` host bytes at address ``source`` to device memory, in stream order.

    The source may change as soon as this returns. With ``wait`` it returns when the bytes have arrived, else when
    they are on their way: an error is then told by a later call (CUDA driver API, API synchronization behavior).
    """
    opened = context.usable()
    threads = thread_count(count)
    limit = opened.transport.staging.limit_for(threads)

    def send(start: int, size: int, stop: Event | None = None) -> None:
        _send(context, opened, stream, destination + start, source + start, _chunks(size, limit, stop), wait)

    if threads == 1:
        send(0, count)
    else:
        copy_in_parallel(count, threads, send)


def _send(
    context: Context,
    opened: Opened,
    stream: int,
    destination: int,
    source: int,
    chunks: Iterator[tuple[int, int]],
    wait: bool,
) -> None:
    transport = opened.transport
    sent: list[int] = []
    try:
        for start, size in chunks:
            sequence = transport.sequence()
            offset = _filled_slot(transport, context, sequence, source + start, size)
            if wait:
                transport.expect(sequence)
                sent.append(sequence)
            transport.post(
                operations.COPY_TO_DEVICE.record(
                    opened.serial, sequence, stream, destination + start, offset, size,
                    flags=0 if wait else FLAG_QUIET,
                )
            )  # fmt: skip
        for sequence in sent:
            context.judge(opened, transport.answer(sequence))
    finally:
        for sequence in sent:
            transport.discard(sequence)


def _filled_slot(transport: Transport, context: Context, sequence: int, source: int, size: int) -> int:
    """Return the offset of a slot that holds ``size`` bytes from a host address."""
    offset = take_slot(transport, sequence, size, context)
    try:
        ctypes.memmove(transport.staging.address + offset, source, size)
    except BaseException:  # Ctrl-C: no record will be sent for it
        transport.free_slot(sequence)
        raise
    return offset


@frozen
class _Asked:
    """A slot on its way from the device: where it lies in the staging memory, and where its bytes belong."""

    sequence: int
    offset: int
    target: int
    size: int


def from_device(context: Context, stream: int, target: int, source: int, count: int) -> None:
    """Copy ``count`` bytes of device memory to the host address ``target``, in stream order; return when there.

    Pageable memory is what both forms of the call get, so both are synchronous, as CUDA documents.
    """
    opened = context.usable()
    threads = thread_count(count)
    limit = opened.transport.staging.limit_for(threads)

    def fetch(start: int, size: int, stop: Event | None = None) -> None:
        chunks = _chunks(size, limit, stop)
        _fetch(context, opened, stream, target + start, source + start, chunks, 4 if threads == 1 else 2)

    if threads == 1:
        fetch(0, count)
    else:
        copy_in_parallel(count, threads, fetch)


def _fetch(
    context: Context,
    opened: Opened,
    stream: int,
    target: int,
    source: int,
    chunks: Iterator[tuple[int, int]],
    most: int,
) -> None:
    """``most``: the number of slots under way at once, so that every thread has some."""
    transport = opened.transport
    asked: deque[_Asked] = deque()
    try:
        for start, size in chunks:
            if len(asked) == most:
                _copy_out(context, opened, asked)
            sequence = transport.sequence()
            offset = transport.staging.take(sequence, size, context, kept=True)
            while offset is None and asked:  # our own slots first: a thread never waits while it keeps some
                _copy_out(context, opened, asked)
                offset = transport.staging.take(sequence, size, context, kept=True)
            if offset is None:
                offset = take_slot(transport, sequence, size, context, kept=True)
            asked.append(_Asked(sequence, offset, target + start, size))
            transport.expect(sequence)
            transport.post(
                operations.COPY_FROM_DEVICE.record(opened.serial, sequence, stream, source + start, offset, size)
            )
        while asked:
            _copy_out(context, opened, asked)
    finally:
        # After an error or Ctrl-C the executor may still write into them: they are free when it has answered.
        for slot in asked:
            _release(transport, slot.sequence)


def _copy_out(context: Context, opened: Opened, asked: deque[_Asked]) -> None:
    """Wait for the first slot that was asked for, and copy its bytes to where they belong."""
    slot, transport = asked[0], opened.transport
    context.judge(opened, transport.answer(slot.sequence))
    ctypes.memmove(slot.target, transport.staging.address + slot.offset, slot.size)
    _release(transport, slot.sequence)
    asked.popleft()


def _release(transport: Transport, sequence: int) -> None:
    release_slot(transport, sequence)
    transport.discard(sequence)


def from_pinned(context: Context, stream: int, destination: int, source: int, count: int, wait: bool) -> None:
    """Copy page-locked memory that the executor has too to the device, in stream order: the device reads it itself.

    Without ``wait`` it returns at once, and the source is read later.
    """
    context.post(operations.COPY_TO_DEVICE_PINNED, stream, destination, source, count)
    if wait:
        context.call(operations.SYNCHRONIZE_STREAM, stream)


def to_pinned(context: Context, stream: int, target: int, source: int, count: int, wait: bool) -> None:
    """Copy device memory to page-locked memory that the executor has too, in stream order: the device writes it."""
    context.post(operations.COPY_FROM_DEVICE_PINNED, stream, target, source, count)
    if wait:
        context.call(operations.SYNCHRONIZE_STREAM, stream)


def upload(context: Context, operation: Operation, handle: int, data: bytes) -> None:
    """Send bytes slot by slot, each a record (handle, offset in the staging memory, bytes); wait for the answers."""
    opened = context.usable()
    transport = opened.transport
    held = ctypes.create_string_buffer(data, len(data))
    for start, size in _chunks(len(data), transport.staging.slot_limit):
        sequence = transport.sequence()
        offset = _filled_slot(transport, context, sequence, ctypes.addressof(held) + start, size)
        record = operation.record(opened.serial, sequence, handle, offset, size)
        context.judge(opened, transport.call(sequence, record))


def between_devices(
    destination: tuple[Context, int], source: tuple[Context, int], to: int, start: int, count: int
) -> None:
    """Copy device memory to another device, staged here; returns when the bytes have arrived."""
    limit = source[0].usable().transport.staging.slot_limit
    staging = ctypes.create_string_buffer(min(count, limit))
    address = ctypes.addressof(staging)
    for offset, size in _chunks(count, limit):
        from_device(*source, address, start + offset, size)
        to_device(*destination, to + offset, address, size, wait=True)


def on_device(context: Context, stream: int, destination: int, source: int, count: int) -> None:
    """Copy within one device, in stream order; returns at once."""
    context.post(operations.COPY_ON_DEVICE, stream, destination, source, count)


def fill(context: Context, stream: int, destination: int, value: int, width: int, count: int) -> None:
    """Set ``count`` elements of ``width`` bytes, in stream order; returns at once."""
    if destination % width:
        raise invalid_value(f"{destination:#x} is not aligned to the element's {width} bytes")
    context.post(operations.FILL, stream, destination, value, width, count)


def _chunks(count: int, limit: int, stop: Event | None = None) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the chunks that ``count`` bytes are copied in; end early once ``stop`` is set."""
    for start in range(0, count, limit):
        if stop is not None and stop.is_set():
            return
        yield start, min(limit, count - start)
