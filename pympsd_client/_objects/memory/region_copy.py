"""Copies of rows and slices: cut into boxes that fit a staging slot, or made by the device in one record.

A `CopyRegion` is one side of a copy, a `CopyExtent` is its shape. If the device reaches both sides (device memory,
page-locked or managed memory), one COPY_3D record copies everything. Otherwise the host's side is pageable. Then
`_boxes` cuts the extent into boxes of at most a slot's size, and each box is one `Piece` of a staged copy
(`_objects.copies`). Copies between devices go through a buffer of this process, box by box.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Final

from attrs import evolve, frozen

from pympsd.wire.records import CopySpace
from pympsd_client._arguments.copy_structs import Copy3D, copy_side
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects.context import Context
from pympsd_client._objects.copies import Piece, Recorder, copy_by_device, fetch_pieces, send_pieces
from pympsd_client._objects.memory.allocations import check_range, devices_address, ordinal_at, place
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.stream import resolve, synchronize

_PIECES_UNDER_WAY: Final = 4
"""The maximum number of pending pieces of a copy to the host; the executor fills slots while one is copied out."""


@frozen
class CopyExtent:
    """``depth`` slices of ``height`` rows of ``width`` bytes."""

    width: int
    height: int
    depth: int

    @property
    def bytes(self) -> int:
        """The number of bytes in the extent."""
        return self.width * self.height * self.depth

    @property
    def operands(self) -> tuple[int, int, int]:
        """The extent as operands of COPY_3D."""
        return self.width, self.height, self.depth


@frozen
class CopyRegion:
    """One side of a copy: host or device memory at ``address``, with the bytes from row to row and slice to slice."""

    is_host: bool
    address: int
    pitch: int
    slice_pitch: int

    def span(self, extent: CopyExtent) -> int:
        """Return the number of bytes from the first to the last byte of an extent; 0 if it is empty."""
        if not extent.bytes:
            return 0
        return (extent.depth - 1) * self.slice_pitch + (extent.height - 1) * self.pitch + extent.width

    def at(self, x: int, y: int, z: int) -> CopyRegion:
        """Return the region that begins at byte ``x`` of row ``y`` of slice ``z``."""
        return evolve(self, address=self.address + z * self.slice_pitch + y * self.pitch + x)

    def operands(self, space: CopySpace) -> tuple[int, int, int, int]:
        """Return the region as operands of COPY_3D."""
        return space, self.address, self.pitch, self.slice_pitch


def check(destination: CopyRegion, source: CopyRegion, extent: CopyExtent) -> None:
    """Raise INVALID_VALUE unless the device's sides are all within memory of this process."""
    for region in (destination, source):
        if not region.is_host:
            check_range(region.address, region.span(extent))


def _pack(is_host: bool, address: int, extent: CopyExtent) -> CopyRegion:
    return CopyRegion(is_host, address, extent.width, extent.width * extent.height)


def copy(destination: CopyRegion, source: CopyRegion, extent: CopyExtent, stream: int, wait: bool) -> None:
    """Copy an extent in stream order; with ``wait``, or to pageable memory, wait until it has been copied.

    Raise CudaError.
    """
    context, stream_id = resolve(stream)
    if not extent.bytes:
        context.usable()
        return
    if destination.is_host and source.is_host:
        if (by := intercepted.by) is not None and by.take_copy(
            context, stream_id, partial(_describe, destination, source, extent)
        ):
            return
        synchronize(stream)
        _move(destination, source, extent)
        return
    check(destination, source, extent)
    if not destination.is_host and not source.is_host:
        reading = place(source.address, context, stream_id, stream)
        writing = place(destination.address, context, stream_id, stream)
        if ordinal_at(source.address) == ordinal_at(destination.address) or writing == reading:
            sides = (*destination.operands(CopySpace.DEVICE), *source.operands(CopySpace.DEVICE))
            waits = wait or reading[0] is not context
            copy_by_device(reading[0], operations.COPY_3D, reading[1], *sides, *extent.operands, wait=waits)
        else:
            copy_between_devices(writing, reading, destination, source, extent)
        return
    device, host = (source, destination) if destination.is_host else (destination, source)
    at, at_stream = place(device.address, context, stream_id, stream)
    if pinned.is_reached_by(at.usable().transport, host.address, host.span(extent)):
        spaces = (CopySpace.PINNED, CopySpace.DEVICE) if destination.is_host else (CopySpace.DEVICE, CopySpace.PINNED)
        sides = (*destination.operands(spaces[0]), *source.operands(spaces[1]))
        # In another context the copy is not in the caller's stream, so later work would not wait for it.
        waits = wait or at is not context
        copy_by_device(at, operations.COPY_3D, at_stream, *sides, *extent.operands, wait=waits)
    elif source.is_host and (reached := devices_address(at, host.address, host.span(extent))):
        sides = (*destination.operands(CopySpace.DEVICE), *evolve(source, address=reached).operands(CopySpace.DEVICE))
        copy_by_device(at, operations.COPY_3D, at_stream, *sides, *extent.operands, wait=wait or at is not context)
    elif (by := intercepted.by) is not None and by.take_copy(
        at, at_stream, partial(_describe, destination, source, extent)
    ):
        return
    elif destination.is_host:
        _copy_to_host(at, at_stream, destination, source, extent)
    else:
        _copy_to_device(at, at_stream, destination, source, extent, wait)


def _describe(destination: CopyRegion, source: CopyRegion, extent: CopyExtent) -> Copy3D:
    to, start = (
        copy_side(
            region.is_host, region.address, region.pitch, region.slice_pitch // region.pitch if region.pitch else 0
        )
        for region in (destination, source)
    )
    return Copy3D(to, start, *extent.operands)


def _copy_to_device(
    context: Context, stream: int, device: CopyRegion, host: CopyRegion, extent: CopyExtent, wait: bool
) -> None:
    limit = context.usable().transport.staging.max_slot_bytes
    send_pieces(context, context.usable(), _pieces(device, host, extent, limit, stream, to_host=False), wait)


def _copy_to_host(context: Context, stream: int, host: CopyRegion, device: CopyRegion, extent: CopyExtent) -> None:
    limit = context.usable().transport.staging.max_slot_bytes
    pieces = _pieces(device, host, extent, limit, stream, to_host=True)
    fetch_pieces(context, context.usable(), pieces, _PIECES_UNDER_WAY)


def copy_between_devices(
    writing: tuple[Context, int],
    reading: tuple[Context, int],
    destination: CopyRegion,
    source: CopyRegion,
    extent: CopyExtent,
) -> None:
    """Copy device memory to another device through a buffer of this process, and wait until it has been copied.

    ``writing`` and ``reading``: the context and the stream, by its name in records, on either device.
    """
    limit = reading[0].usable().transport.staging.max_slot_bytes
    buffer = ctypes.create_string_buffer(min(extent.bytes, limit))
    for corner, box in _boxes(extent, limit):
        between = _pack(True, ctypes.addressof(buffer), box)
        _copy_to_host(*reading, between, source.at(*corner), box)
        _copy_to_device(*writing, destination.at(*corner), between, box, wait=True)


def _pieces(
    device: CopyRegion, host: CopyRegion, extent: CopyExtent, limit: int, stream: int, *, to_host: bool
) -> Iterator[Piece]:
    """Yield the pieces of a staged copy; in its slot a box has no gaps between rows."""
    for corner, box in _boxes(extent, limit):
        yield Piece(
            box.bytes,
            partial(_move_slot, host.at(*corner), box, to_host=to_host),
            _recorder(device.at(*corner), box, stream, to_host=to_host),
        )


def _move_slot(host: CopyRegion, box: CopyExtent, slot: int, *, to_host: bool) -> None:
    staged = _pack(True, slot, box)
    if to_host:
        _move(host, staged, box)
    else:
        _move(staged, host, box)


def _recorder(device: CopyRegion, box: CopyExtent, stream: int, *, to_host: bool) -> Recorder:
    def record(context_id: int, sequence: int, offset: int, flags: int) -> bytes:
        staged = _pack(True, offset, box).operands(CopySpace.STAGING)
        there = device.operands(CopySpace.DEVICE)
        sides = (*staged, *there) if to_host else (*there, *staged)
        return operations.COPY_3D_STAGED.record(context_id, sequence, stream, *sides, *box.operands, flags=flags)

    return record


def _boxes(extent: CopyExtent, limit: int) -> Iterator[tuple[tuple[int, int, int], CopyExtent]]:
    """Yield (corner, extent) of boxes of at most ``limit`` bytes: whole slices if they fit, else rows, else parts."""
    width = min(extent.width, limit)
    height = min(extent.height, limit // width) if width == extent.width else 1
    depth = min(extent.depth, limit // (width * height)) if height == extent.height and width == extent.width else 1
    for z in range(0, extent.depth, depth):
        for y in range(0, extent.height, height):
            for x in range(0, extent.width, width):
                box = CopyExtent(
                    min(width, extent.width - x), min(height, extent.height - y), min(depth, extent.depth - z)
                )
                yield (x, y, z), box


def _move(destination: CopyRegion, source: CopyRegion, extent: CopyExtent) -> None:
    """Copy host memory to host memory, row by row, or in one piece if neither side has gaps."""
    packed = (extent.width, extent.width * extent.height)
    if all((region.pitch, region.slice_pitch) == packed for region in (destination, source)):
        ctypes.memmove(destination.address, source.address, extent.bytes)
        return
    for z in range(extent.depth):
        for y in range(extent.height):
            ctypes.memmove(destination.at(0, y, z).address, source.at(0, y, z).address, extent.width)
