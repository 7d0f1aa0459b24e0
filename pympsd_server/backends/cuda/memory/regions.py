"""Check the regions of copies and fills, simplify them, and split them into pieces for the driver. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from attrs import evolve

from pympsd_server.backends.cuda.memory.address_ranges import REGISTERED_BYTES, split_at_registered_parts
from pympsd_server.backends.cuda.memory.staging import address_of
from pympsd_server.backends.interface import Copy, Extent, Region


def simplify(extent: Extent, *regions: Region) -> tuple[Extent, tuple[Region, ...]]:
    """Describe the same bytes in as few dimensions as possible: adjacent rows or slices are joined."""
    width, height, depth = extent.width, extent.height, extent.depth
    if height == 1:
        height, depth = depth, 1
        regions = tuple(evolve(region, pitch=region.slice_pitch) for region in regions)
    elif all(region.slice_pitch == height * region.pitch for region in regions):
        height, depth = height * depth, 1
    if depth == 1 and all(region.pitch == width for region in regions):
        width, height = width * height, 1
    return Extent(width, height, depth), regions


def simplify_copy(copy: Copy, max_pitch: int) -> Copy:
    """Return a copy in as few dimensions as possible; raise BackendError INVALID_VALUE for impossible pitches.

    Slices of one row each stay slices if they are too far apart for a pitch of ``max_pitch`` bytes.
    """
    for region in (copy.destination, copy.source):
        region.check_pitches(copy.extent, max_pitch)
    extent, (destination, source) = simplify(copy.extent, copy.destination, copy.source)
    if extent.height > 1 and max(destination.pitch, source.pitch) > max_pitch:
        return copy
    return Copy(destination, source, extent)


def rows_of(region: Region, extent: Extent) -> Any:
    """Return the bytes of host memory that belong to an extent, as an array of slices, rows and columns."""
    shape, strides = (extent.depth, extent.height, extent.width), (region.slice_pitch, region.pitch, 1)
    return np.ndarray(shape, np.uint8, region.host, strides=strides)


class Side(NamedTuple):
    """One side of a copy by its address, in host or device memory."""

    is_host: bool
    address: int
    pitch: int = 0
    slice_pitch: int = 0

    @classmethod
    def of(cls, region: Region) -> Side:
        """Return a region as a side of a copy."""
        if region.host is None:
            return cls(False, region.base, region.pitch, region.slice_pitch)
        return cls(True, address_of(region.host), region.pitch, region.slice_pitch)

    def at(self, column: int, row: int, layer: int) -> Side:
        """Return the side that begins at a byte (column), a row and a slice (layer) of this one."""
        address = self.address + layer * self.slice_pitch + row * self.pitch + column
        return Side(self.is_host, address, self.pitch, self.slice_pitch)


def split_into_registered_pieces(host: Side, extent: Extent) -> Iterator[tuple[int, int, int, Extent]]:
    """Split a copy where registered parts of the host memory end; yield (column, row, slice, extent) of each piece.

    The driver copies only within one part.
    """
    width, height, depth = extent.width, extent.height, extent.depth
    span = (height - 1) * host.pitch + width
    layer = 0
    while layer < depth:
        count = _count_fitting(host.address + layer * host.slice_pitch, span, host.slice_pitch, depth - layer)
        if count:
            yield 0, 0, layer, Extent(width, height, count)
        else:
            yield from _row_pieces(host, layer, width, height)
        layer += count or 1


def _row_pieces(host: Side, layer: int, width: int, height: int) -> Iterator[tuple[int, int, int, Extent]]:
    row = 0
    while row < height:
        address = host.at(0, row, layer).address
        count = _count_fitting(address, width, host.pitch, height - row)
        if count:
            yield 0, row, layer, Extent(width, count)
        else:
            for column, _, length in split_at_registered_parts(address, width):
                yield column, row, layer, Extent(length)
        row += count or 1


def _count_fitting(address: int, length: int, apart: int, count: int) -> int:
    """Return how many of ``count`` pieces that begin ``apart`` bytes apart fit in the rest of a registered part."""
    free_bytes = REGISTERED_BYTES - address % REGISTERED_BYTES
    if length > free_bytes:
        return 0
    return min(count, (free_bytes - length) // apart + 1) if count > 1 else 1
