"""Copies of device memory: through the staging memory, by the device from and to page-locked memory, within it.

Each chunk of a staged copy is one record, whose bytes lie in a slot of the staging memory.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from threading import Event

from attrs import frozen

from pympsd.wire.records import FLAG_QUIET
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.operations import Operation
from pympsd_client._command_stream.parallel_copy import in_slices, thread_count
from pympsd_client._command_stream.staging_slots import release_when_answered, take_part
from pympsd_client._command_stream.transport import Transport
from pympsd_client._objects.context import Context, Opened


def to_device(context: Context, stream: int, destination: int, source: int, count: int, wait: bool) -> None:
    """Copy ``count`` host bytes at address ``source`` to device memory, in stream order.

    The source may change as soon as this returns. With ``wait`` it returns when the bytes have arrived, else when
    they are on their way: an error is then told by a later call (CUDA driver API, API synchronization behavior).
    """
    opened = context.usable()
    threads = thread_count(count)
    limit = opened.transport.shared.limit_for(threads)

    def send(start: int, size: int, stop: Event | None = None) -> None:
        _send(context, opened, stream, destination + start, source + start, _chunks(size, limit, stop), wait)

    if threads == 1:
        send(0, count)
    else:
        in_slices(count, threads, send)


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
            offset = _filled_part(transport, context, sequence, source + start, size)
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
            transport.forget(sequence)


def _filled_part(transport: Transport, context: Context, sequence: int, source: int, size: int) -> int:
    """Return the offset of a part that holds ``size`` bytes from a host address."""
    offset = take_part(transport, sequence, size, context)
    try:
        ctypes.memmove(transport.shared.address + offset, source, size)
    except BaseException:  # Ctrl-C: no record will be sent for it
        transport.give_part_back(sequence)
        raise
    return offset


@frozen
class _Asked:
    """A part on its way from the device: where it will lie in the shared memory, and where it belongs."""

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
    limit = opened.transport.shared.limit_for(threads)

    def fetch(start: int, size: int, stop: Event | None = None) -> None:
        chunks = _chunks(size, limit, stop)
        _fetch(context, opened, stream, target + start, source + start, chunks, 4 if threads == 1 else 2)

    if threads == 1:
        fetch(0, count)
    else:
        in_slices(count, threads, fetch)


def _fetch(
    context: Context,
    opened: Opened,
    stream: int,
    target: int,
    source: int,
    chunks: Iterator[tuple[int, int]],
    most: int,
) -> None:
    """``most``: how many parts are under way at once, so that every thread has some."""
    transport = opened.transport
    asked: deque[_Asked] = deque()
    try:
        for start, size in chunks:
            if len(asked) == most:
                _copy_out(context, opened, asked)
            sequence = transport.sequence()
            offset = transport.shared.take(sequence, size, context, kept=True)
            while offset is None and asked:  # our own parts first: a thread never waits while it keeps some
                _copy_out(context, opened, asked)
                offset = transport.shared.take(sequence, size, context, kept=True)
            if offset is None:
                offset = take_part(transport, sequence, size, context, kept=True)
            asked.append(_Asked(sequence, offset, target + start, size))
            transport.expect(sequence)
            transport.post(
                operations.COPY_FROM_DEVICE.record(opened.serial, sequence, stream, source + start, offset, size)
            )
        while asked:
            _copy_out(context, opened, asked)
    finally:
        # After an error or Ctrl-C the executor may still write into them: they are free when it has answered.
        for part in asked:
            _let_go(transport, part.sequence)


def _copy_out(context: Context, opened: Opened, asked: deque[_Asked]) -> None:
    """Wait for the first part that was asked for, and copy it to where it belongs."""
    part, transport = asked[0], opened.transport
    context.judge(opened, transport.answer(part.sequence))
    ctypes.memmove(part.target, transport.shared.address + part.offset, part.size)
    _let_go(transport, part.sequence)
    asked.popleft()


def _let_go(transport: Transport, sequence: int) -> None:
    release_when_answered(transport, sequence)
    transport.forget(sequence)


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
    """Send bytes in parts, each a record (handle, offset in the shared memory, bytes); return when all are taken."""
    opened = context.usable()
    transport = opened.transport
    held = ctypes.create_string_buffer(data, len(data))
    for start, size in _chunks(len(data), transport.shared.part_limit):
        sequence = transport.sequence()
        offset = _filled_part(transport, context, sequence, ctypes.addressof(held) + start, size)
        record = operation.record(opened.serial, sequence, handle, offset, size)
        context.judge(opened, transport.call(sequence, record))


def between_devices(
    destination: tuple[Context, int], source: tuple[Context, int], to: int, start: int, count: int
) -> None:
    """Copy device memory to another device, staged here; returns when the bytes have arrived."""
    limit = source[0].usable().transport.shared.part_limit
    staging = ctypes.create_string_buffer(min(count, limit))
    address = ctypes.addressof(staging)
    for offset, size in _chunks(count, limit):
        from_device(*source, address, start + offset, size)
        to_device(*destination, to + offset, address, size, wait=True)


def on_device(context: Context, stream: int, destination: int, source: int, count: int) -> None:
    """Copy within one device, in stream order; returns at once."""
    context.post(operations.COPY_ON_DEVICE, stream, destination, source, count)


def _chunks(count: int, limit: int, stop: Event | None = None) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of the parts that ``count`` bytes are copied in; none any more once ``stop`` is set."""
    for start in range(0, count, limit):
        if stop is not None and stop.is_set():
            return
        yield start, min(limit, count - start)
