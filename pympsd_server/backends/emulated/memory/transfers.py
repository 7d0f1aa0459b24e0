"""Copies and fills as iterators, which do one piece of the work at each step.

Addresses are looked up again for each piece, because the memory may have been freed since the call was checked:
IllegalAddress then faults the context, as on a GPU.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory
from pympsd_server.backends.interface import BackendError, Copy, Extent, Fill, Region
from pympsd_server.ptx.isa.datatypes import Array, DType
from pympsd_server.ptx.isa.faults import IllegalAddress

PIECE_BYTES: Final = 4 << 20
_ROW_BYTES: Final = 512
"""The minimum number of bytes for which a row counts, because short rows that are far apart cost a page each."""
_ADDRESS_END: Final = 1 << 63
_BYTE: Final = np.dtype(np.uint8)

Piece = tuple[int, int, int, int, int, int]
"""A piece of an extent: the column, row and slice of its first byte, its width in bytes, its rows and its slices."""


def check_copy(memory: AccessibleMemory, copy: Copy) -> None:
    """Raise BackendError INVALID_VALUE unless all of both regions is accessible."""
    _check(memory, copy.destination, copy.extent)
    _check(memory, copy.source, copy.extent)


def check_fill(memory: AccessibleMemory, fill: Fill) -> None:
    """Raise BackendError INVALID_VALUE unless all of the region is accessible and aligned to the element."""
    fill.check_elements()
    _check(memory, fill.destination, fill.extent)


def _check(memory: AccessibleMemory, region: Region, extent: Extent) -> None:
    """Raise BackendError INVALID_VALUE if a region reaches beyond the memory that the call may access."""
    if extent.height == extent.depth == 1:
        span = extent.width
    else:
        span = region.span(extent)
        if extent.bytes:
            region.check_pitches(extent)
    if not span:
        return
    if region.host is not None:
        if span > region.host.nbytes:
            raise _invalid(f"{span} bytes in host memory of {region.host.nbytes}")
        return
    if not 0 < span < _ADDRESS_END or not 0 <= region.base < _ADDRESS_END:
        raise _invalid(f"{span} bytes at {region.base:#x}")
    try:
        memory.view(region.base, span)
    except IllegalAddress as error:
        raise _invalid(str(error)) from None


def _invalid(reason: str) -> BackendError:
    return BackendError(Result.ERROR_INVALID_VALUE, reason)


def cost(extent: Extent) -> int:
    """Return the bytes of an extent; if it has several rows, count at least _ROW_BYTES for each."""
    rows = extent.height * extent.depth
    return extent.width if rows == 1 else max(extent.width, _ROW_BYTES) * rows


def copy(memory: AccessibleMemory, copy: Copy) -> Iterator[None]:
    """Copy bytes; the two ranges of a linear copy inside the device may overlap."""
    source, destination = copy.source, copy.destination
    pieces = _pieces(copy.extent)
    if isinstance(pieces, list) and source.host is None and destination.host is None:
        pieces.sort(reverse=source.base < destination.base)
    for piece in pieces:
        # NumPy lets other threads run during a large copy; an assignment to a memoryview does not.
        _array(memory, destination, piece, _BYTE)[...] = _array(memory, source, piece, _BYTE)
        yield


def fill(memory: AccessibleMemory, fill: Fill) -> Iterator[None]:
    """Set elements to the low bytes of a value. Filling untouched memory with zeros does not allocate pages."""
    element = np.dtype(f"u{fill.element_bytes}")
    value, region = fill.value & ((1 << 8 * fill.element_bytes) - 1), fill.destination
    for piece in _pieces(fill.extent):
        start, width = piece[0], piece[3]
        is_row = region.host is None and fill.extent.height == fill.extent.depth == 1
        if value or not is_row or not memory.is_untouched(region.base + start, width):
            _array(memory, region, piece, element)[...] = value
        yield


def _pieces(extent: Extent) -> list[Piece] | Iterator[Piece]:
    """Return the pieces of an extent, as a list if it is linear."""
    if extent.height == extent.depth == 1:
        starts = range(0, extent.width, PIECE_BYTES)
        return [(start, 0, 0, min(PIECE_BYTES, extent.width - start), 1, 1) for start in starts]
    return _rectangles(extent) if extent.bytes else iter(())


def _rectangles(extent: Extent) -> Iterator[Piece]:
    width, height, depth = extent.width, extent.height, extent.depth
    columns = min(width, PIECE_BYTES)
    row_cost = max(columns, _ROW_BYTES)
    rows = min(height, PIECE_BYTES // row_cost)
    slices = min(depth, PIECE_BYTES // (rows * row_cost))
    for z in range(0, depth, slices):
        for y in range(0, height, rows):
            for x in range(0, width, columns):
                yield x, y, z, min(columns, width - x), min(rows, height - y), min(slices, depth - z)


def _array(memory: AccessibleMemory, region: Region, piece: Piece, element: DType) -> Array:
    """Return a piece of a region as an array by slice, row and element."""
    x, y, z, width, rows, slices = piece
    start = z * region.slice_pitch + y * region.pitch + x
    span = (slices - 1) * region.slice_pitch + (rows - 1) * region.pitch + width
    source = memory.view(region.base + start, span) if region.host is None else region.host[start : start + span]
    if rows == slices == 1:
        return np.frombuffer(source, element)
    shape, strides = (slices, rows, width // element.itemsize), (region.slice_pitch, region.pitch, element.itemsize)
    return np.ndarray(shape, element, source, 0, strides)
