"""CUDA arrays (CUDA runtime API, Memory Management)."""

import struct
from ctypes import string_at
from typing import Final

from pympsd.wire.texture_object import CHANNEL_BYTES, NORMALIZED, PACKED
from pympsd_client._arguments.array_structs import ArrayDescription
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.arrays import array

CHANNELS: Final = struct.Struct("=4ii")
"""cudaChannelFormatDesc: the bits of each channel, and their kind."""
_EXTENT: Final = struct.Struct("=3Q")
_INVALID_CHANNELS: Final = 20
"""cudaErrorInvalidChannelDescriptor, which the driver does not have"""
_SIGNED, _UNSIGNED, _FLOAT = 0, 1, 2
"""cudaChannelFormatKind"""
_FIRST_NORMALIZED: Final = 5
"""cudaChannelFormatKindUnsignedNormalized8X1: the kinds follow each other as the formats do"""
_PACKED: Final = CHANNELS.pack(10, 10, 10, 2, 31)
"""The kind of PACKED: cudaChannelFormatKindUnsignedNormalized1010102"""
_FORMATS: Final[dict[tuple[int, int], int]] = {
    (_UNSIGNED, 8): 0x01, (_UNSIGNED, 16): 0x02, (_UNSIGNED, 32): 0x03,
    (_SIGNED, 8): 0x08, (_SIGNED, 16): 0x09, (_SIGNED, 32): 0x0A,
    (_FLOAT, 16): 0x10, (_FLOAT, 32): 0x20,
    **{(_FIRST_NORMALIZED + index, 8 * CHANNEL_BYTES[format]): format for index, format in enumerate(NORMALIZED)},
}  # fmt: skip
"""CUarray_format by kind and bits."""
_KINDS: Final = {format: kind for (kind, _), format in _FORMATS.items()}


def format_of(channels: bytes) -> tuple[int, int]:
    """Return the CUarray_format and number of channels of a cudaChannelFormatDesc."""
    if channels == _PACKED:
        return PACKED, 4
    *bits, kind = CHANNELS.unpack(channels)
    count = next((index for index, size in enumerate(bits) if not size), len(bits))
    format = _FORMATS.get((kind, bits[0]))
    if format is None or any(bits[count:]) or len(set(bits[:count])) != 1 or count == 3:
        raise CudaError(
            _INVALID_CHANNELS,
            f"channels of {bits} bits of kind {kind} are not supported: 1, 2 or 4 alike, of integers of 8, 16 or 32 "
            "bits, or floats of 16 or 32",
        )
    return format, count


def channels_of(format: int, count: int) -> bytes:
    """Return the cudaChannelFormatDesc of a CUarray_format and a number of channels."""
    if format == PACKED:
        return _PACKED
    bits = 8 * CHANNEL_BYTES[format]
    return CHANNELS.pack(*(bits if index < count else 0 for index in range(4)), _KINDS[format])


def _description(channels: int, width: int, height: int, depth: int, flags: int) -> ArrayDescription:
    check_not_null("the cudaChannelFormatDesc", channels)
    format, count = format_of(string_at(channels, CHANNELS.size))
    return ArrayDescription(width, height, depth, format, count, flags)


def allocate(channels: int, width: int, height: int, flags: int) -> int:
    """Return the handle of a new array of one or two dimensions."""
    return array.create(_description(channels, width, height, 0, flags))


def allocate_3d(channels: int, extent: bytes, flags: int) -> int:
    """Return the handle of a new array."""
    width, height, depth = _EXTENT.unpack(extent)
    return array.create(_description(channels, width, height, depth, flags))


def allocate_mipmapped(channels: int, extent: bytes, levels: int, flags: int) -> int:
    """Return the handle of a new mipmapped array."""
    width, height, depth = _EXTENT.unpack(extent)
    return array.create_mipmapped(_description(channels, width, height, depth, flags), levels)


def free(handle: int) -> None:
    """Free an array; 0 is ignored."""
    if handle:
        array.destroy(handle)


def free_mipmapped(handle: int) -> None:
    """Free a mipmapped array; 0 is ignored."""
    if handle:
        array.destroy_mipmapped(handle)


def info(handle: int) -> tuple[bytes, bytes, int]:
    """Return the cudaChannelFormatDesc of an array, its cudaExtent and its flags."""
    of = array.arrays.find(handle).description
    return channels_of(of.format, of.channels), _EXTENT.pack(of.width, of.height, of.depth), of.flags


def channels(handle: int) -> bytes:
    """Return the cudaChannelFormatDesc of an array."""
    return info(handle)[0]
