"""Copies from and to device memory, and on the device, in stream order.

The device itself copies between its own addresses, and from and to page-locked memory. Copies from and to pageable
host memory are *staged*: their bytes pass through the staging memory. Copies between devices pass through a buffer of
this process.

Each chunk of a staged copy is one record, whose bytes are in a slot of the staging memory.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Event

from attrs import frozen

from pympsd.wire.records import FLAG_QUIET
from pympsd_client._arguments.copy_structs import linear_copy
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.operations import OperationLayout
from pympsd_client._command_stream.parallel_copy import copy_in_parallel, thread_count
from pympsd_client._command_stream.transport import Transport, intercepted
from pympsd_client._connect.connection import Opened
from pympsd_client._objects.context import Context

Recorder = Callable[[int, int, int, int], bytes]
"""A function that returns the record of a piece. It gets the context's id, the record's sequence number, the offset
of the piece's slot, and flags."""


@frozen
class Piece:
    """A part of a staged copy, ``size`` bytes.

    ``move`` copies the bytes into or out of the slot at an address. ``record`` packs the piece's record.
    """

    size: int
    move: Callable[[int], object]
    record: Recorder


def _linear(operation: OperationLayout, size: int, *operands: int) -> Recorder:
    def record(context_id: int, sequence: int, offset: int, flags: int) -> bytes:
        return operation.record(context_id, sequence, *operands, offset, size, flags=flags)

    return record


def _make_piece_from_host(source: int, size: int, record: Recorder) -> Piece:
    return Piece(size, lambda slot: ctypes.memmove(slot, source, size), record)


def _make_piece_to_host(target: int, size: int, record: Recorder) -> Piece:
    return Piece(size, lambda slot: ctypes.memmove(target, slot, size), record)


def copy_to_device(context: Context, stream: int, destination: int, source: int, count: int, wait: bool) -> None:
    """Copy ``count`` host bytes at address ``source`` to device memory, in stream order.

    The source may change as soon as this function returns. With ``wait`` it returns when the bytes have been copied.
    Without, it returns when they are on their way, and a later call returns an error (CUDA driver API, API
    synchronization behavior).
    """
    opened = context.usable()
    if (by := intercepted.by) is not None and by.take_copy(
        context, stream, lambda: linear_copy(False, destination, True, source, count)
    ):
        return
    threads = thread_count(count)
    limit = opened.transport.staging.max_slot_bytes_for(threads)

    def send(start: int, size: int, stop: Event | None = None) -> None:
        pieces = (
            _make_piece_from_host(
                source + at, length, _linear(operations.COPY_TO_DEVICE, length, stream, destination + at)
            )
            for at, length in _chunks(start, size, limit, stop)
        )
        send_pieces(context, opened, pieces, wait)

    if threads == 1:
        send(0, count)
    else:
        copy_in_parallel(count, threads, send)


def send_pieces(context: Context, opened: Opened, pieces: Iterable[Piece], wait: bool) -> None:
    """Copy pieces to the device; with ``wait`` return when all have been copied, else when their records are sent.

    Each piece's bytes are copied into a slot before its record is sent, so the source may change when this returns.
    Raise CudaError; with ``wait`` also the errors of the copies themselves.
    """
    transport = opened.transport
    flags = 0 if wait else FLAG_QUIET
    sequences: list[int] = []
    try:
        for piece in pieces:
            sequence = transport.sequence()
            offset = _fill_slot(transport, context, sequence, piece)
            if wait:
                transport.expect(sequence)
                sequences.append(sequence)
            transport.post(piece.record(opened.context_id, sequence, offset, flags))
        for sequence in sequences:
            context.judge(opened, transport.answer(sequence))
    finally:
        for sequence in sequences:
            transport.discard(sequence)


def _fill_slot(transport: Transport, context: Context, sequence: int, piece: Piece) -> int:
    """Copy a piece's bytes into a slot and return its offset."""
    offset = transport.take_slot(sequence, piece.size, context)
    try:
        piece.move(transport.staging.address + offset)
    except BaseException:  # after a Ctrl-C no record will use the slot
        transport.free_slot(sequence)
        raise
    return offset


@frozen
class _PendingPiece:
    """A piece on its way from the device; ``offset`` is its place in the staging memory."""

    sequence: int
    offset: int
    piece: Piece


def copy_from_device(context: Context, stream: int, target: int, source: int, count: int) -> None:
    """Copy ``count`` bytes of device memory to the host address ``target``, in stream order, and wait for them.

    The target is pageable memory. CUDA documents copies to it as synchronous, even those of cuMemcpyDtoHAsync.
    """
    opened = context.usable()
    if (by := intercepted.by) is not None and by.take_copy(
        context, stream, lambda: linear_copy(True, target, False, source, count)
    ):
        return
    threads = thread_count(count)
    limit = opened.transport.staging.max_slot_bytes_for(threads)

    def fetch(start: int, size: int, stop: Event | None = None) -> None:
        pieces = (
            _make_piece_to_host(
                target + at, length, _linear(operations.COPY_FROM_DEVICE, length, stream, source + at)
            )
            for at, length in _chunks(start, size, limit, stop)
        )
        fetch_pieces(context, opened, pieces, 4 if threads == 1 else 2)

    if threads == 1:
        fetch(0, count)
    else:
        copy_in_parallel(count, threads, fetch)


def fetch_pieces(context: Context, opened: Opened, pieces: Iterable[Piece], max_pending: int) -> None:
    """Copy pieces to the host, at most ``max_pending`` at a time, and return when all have been copied.

    The bound leaves slots for other threads, because pending pieces occupy theirs. Raise CudaError; the slots of
    pieces that were not copied out are then released as soon as the executor has answered.
    """
    transport = opened.transport
    pending: deque[_PendingPiece] = deque()
    try:
        for piece in pieces:
            if len(pending) == max_pending:
                _copy_out(context, opened, pending)
            sequence = transport.sequence()
            offset = transport.staging.take(sequence, piece.size, context, is_kept=True)
            while offset is None and pending:  # empty own slots: a thread must not wait while it keeps some
                _copy_out(context, opened, pending)
                offset = transport.staging.take(sequence, piece.size, context, is_kept=True)
            if offset is None:
                offset = transport.take_slot(sequence, piece.size, context, is_kept=True)
            pending.append(_PendingPiece(sequence, offset, piece))
            transport.expect(sequence)
            transport.post(piece.record(opened.context_id, sequence, offset, 0))
        while pending:
            _copy_out(context, opened, pending)
    finally:
        # After an error or Ctrl-C the executor may still write into these slots until it has answered.
        for slot in pending:
            _release(transport, slot.sequence)


def _copy_out(context: Context, opened: Opened, pending: deque[_PendingPiece]) -> None:
    """Wait for the first pending piece, and copy it from its slot to the host memory."""
    slot, transport = pending[0], opened.transport
    context.judge(opened, transport.answer(slot.sequence))
    slot.piece.move(transport.staging.address + slot.offset)
    _release(transport, slot.sequence)
    pending.popleft()


def _release(transport: Transport, sequence: int) -> None:
    transport.release_slot(sequence)
    transport.discard(sequence)


def copy_by_device(context: Context, operation: OperationLayout, stream: int, *operands: int, wait: bool) -> None:
    """Let the device copy, in stream order, between device memory and page-locked memory of its executor.

    Without ``wait`` return immediately; the device accesses the page-locked memory later.
    """
    context.post(operation, stream, *operands)
    if wait:
        context.call(operations.SYNCHRONIZE_STREAM, stream)


def upload(context: Context, operation: OperationLayout, handle: int, data: bytes) -> None:
    """Send an image of a module, or items of a graph, slot by slot, and wait for the answers; raise CudaError.

    Each record has the handle, the offset in the staging memory and the number of bytes.
    """
    opened = context.usable()
    transport = opened.transport
    buffer = ctypes.create_string_buffer(data, len(data))
    for start, size in _chunks(0, len(data), transport.staging.max_slot_bytes):
        sequence = transport.sequence()
        piece = _make_piece_from_host(ctypes.addressof(buffer) + start, size, _linear(operation, size, handle))
        offset = _fill_slot(transport, context, sequence, piece)
        record = piece.record(opened.context_id, sequence, offset, 0)
        context.judge(opened, transport.call(sequence, record))


def copy_between_devices(
    destination: tuple[Context, int], source: tuple[Context, int], to: int, start: int, count: int
) -> None:
    """Copy device memory to another device through a buffer of this process, and wait until it has been copied."""
    limit = source[0].usable().transport.staging.max_slot_bytes
    staging = ctypes.create_string_buffer(min(count, limit))
    address = ctypes.addressof(staging)
    for offset, size in _chunks(0, count, limit):
        copy_from_device(*source, address, start + offset, size)
        copy_to_device(*destination, to + offset, address, size, wait=True)


def copy_on_device(context: Context, stream: int, destination: int, source: int, count: int) -> None:
    """Copy within one device, in stream order; return immediately."""
    copy_by_device(context, operations.COPY_ON_DEVICE, stream, destination, source, count, wait=False)


def _chunks(first: int, count: int, limit: int, stop: Event | None = None) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of each chunk of the ``count`` bytes from ``first`` on; end early once ``stop`` is set."""
    for start in range(first, first + count, limit):
        if stop is not None and stop.is_set():
            return
        yield start, min(limit, first + count - start)
