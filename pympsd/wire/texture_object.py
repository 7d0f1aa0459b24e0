"""Texture and surface objects as bytes in device memory: an object's 64-bit handle is its address.

The client writes the object, and kernels of the emulated device read it at that address. A kernel may pass any
address instead: `unpack` refuses bytes that are not an object, and addresses are checked when they are used.
"""

import struct
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Final

from attrs import frozen

NORMALIZED: Final = range(0xC0, 0xCC)
"""The CUarray_formats of integers that are always read as numbers from 0 (or -1) to 1: 8 and 16 bits, unsigned, then
signed, each with 1, 2 and 4 channels.
"""
PACKED: Final = 0x50
"""The CUarray_format UNORM_INT_101010_2: a word with channels of 10, 10, 10 and 2 bits, the first channel in the
lowest bits. Channels are read as numbers from 0 to 1.
"""
NORMALIZED_CHANNELS: Final = {PACKED: 4, **{format: (1, 2, 4)[index % 3] for index, format in enumerate(NORMALIZED)}}
CHANNEL_BYTES: Final = {
    0x01: 1,
    0x02: 2,
    0x03: 4,
    0x08: 1,
    0x09: 2,
    0x0A: 4,
    0x10: 2,
    0x20: 4,
    PACKED: 1,
    **{format: (1, 2)[index // 3 % 2] for index, format in enumerate(NORMALIZED)},
}
"""The size of a channel in bytes by CUarray_format. A channel of PACKED counts as a quarter of its element."""
LEVELS: Final = 18
"""The maximum number of levels of a mipmapped array, whose longest side has up to 131072 elements."""


class TexturedKind(IntEnum):
    """The kind of an object's memory."""

    ARRAY = 1
    """An array or a mipmapped array."""
    LINEAR = 2
    """One row of linear memory; elements outside of it are read as 0."""
    PITCHED = 3
    """Rows of linear memory."""
    SURFACE = 4
    """An array that is read and written in bytes."""


class AddressMode(IntEnum):
    """CUaddress_mode."""

    WRAP = 0
    CLAMP = 1
    MIRROR = 2
    BORDER = 3


class TextureFlag(IntFlag):
    """CU_TRSF_*, without the flags that have no effect here."""

    READ_AS_INTEGER = 0x01
    NORMALIZED_COORDINATES = 0x02
    SRGB = 0x10


@frozen
class Sampling:
    """The way in which a texture is read (CUDA_TEXTURE_DESC). Filters are 0 for point and 1 for linear."""

    address_modes: tuple[int, int, int] = (0, 0, 0)
    filter: int = 0
    flags: int = 0
    level_filter: int = 0
    level_bias: float = 0
    least_level: float = 0
    greatest_level: float = 0
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    """The border's four channels, as the bits of floats."""


@frozen
class Level:
    """Elements in memory; ``depth`` counts slices, layers or faces.

    ``address`` is in the device's address space; ``pitch`` and ``slice_pitch`` are bytes.
    """

    address: int
    pitch: int
    slice_pitch: int
    width: int
    height: int
    depth: int


@frozen
class TextureObject:
    """One object, whose elements have 1, 2 or 4 channels of a CUarray_format."""

    kind: TexturedKind
    format: int
    channels: int
    sampling: Sampling
    levels: tuple[Level, ...]

    @property
    def element_bytes(self) -> int:
        """The size of an element in bytes."""
        return CHANNEL_BYTES[self.format] * self.channels

    @property
    def is_float(self) -> bool:
        """Return whether elements are read as floats: they are floats, or small integers that are read as -1 (or 0)
        to 1.
        """
        is_small = CHANNEL_BYTES[self.format] < 4
        always = self.format in (*_FLOATS, PACKED, *NORMALIZED)
        return always or (is_small and not self.sampling.flags & TextureFlag.READ_AS_INTEGER)


_FLOATS: Final = (0x10, 0x20)
_MAGIC: Final = b"pympsd texture 1"
_HEAD: Final = struct.Struct("=16s4I3I3I3f4I")
_LEVEL: Final = struct.Struct("=6Q")
BYTES: Final = _HEAD.size + LEVELS * _LEVEL.size
_MAX_SIZE: Final = (1 << 31) - 1
_MAX_ADDRESS: Final = (1 << 62) - 1


def pack(texture: TextureObject) -> bytes:
    """Return the bytes of an object."""
    how, levels = texture.sampling, texture.levels
    head = _HEAD.pack(
        _MAGIC, texture.kind, texture.format, texture.channels, len(levels),
        *how.address_modes, how.filter, how.flags, how.level_filter,
        how.level_bias, how.least_level, how.greatest_level, *how.border,
    )  # fmt: skip
    body = b"".join(
        _LEVEL.pack(level.address, level.pitch, level.slice_pitch, level.width, level.height, level.depth)
        for level in levels
    )
    return (head + body).ljust(BYTES, b"\0")


@lru_cache(maxsize=256)
def unpack(data: bytes) -> TextureObject:
    """Return the object in BYTES bytes; raise ValueError if they are not an object.

    ``data`` is not trusted: it is the memory at the handle that a kernel passes. Addresses in it are checked when
    they are used.
    """
    head = _HEAD.unpack_from(data)
    (magic, kind, format, channels, count), sampling_words = head[:5], head[5:]
    if magic != _MAGIC:
        raise ValueError("not a texture or surface object")
    modes, (filter, flags, level_filter), (bias, least, greatest) = (
        sampling_words[:3],
        sampling_words[3:6],
        sampling_words[6:9],
    )
    if format not in CHANNEL_BYTES or channels not in (1, 2, 4) or not 0 < count <= LEVELS:
        raise ValueError(f"format {format:#x}, {channels} channels, {count} levels")
    levels = tuple(Level(*_LEVEL.unpack_from(data, _HEAD.size + _LEVEL.size * index)) for index in range(count))
    for level in levels:
        if not all(0 < size <= _MAX_SIZE for size in (level.width, level.height, level.depth)):
            raise ValueError(f"a level of {level.width} x {level.height} x {level.depth} elements")
        if max(level.address, level.pitch, level.slice_pitch) > _MAX_ADDRESS:
            raise ValueError(f"a level at {level.address:#x}, pitches {level.pitch} and {level.slice_pitch}")
    if max(modes) > max(AddressMode):
        raise ValueError(f"address modes {modes}")
    sampling = Sampling(modes, filter, flags, level_filter, bias, least, greatest, sampling_words[9:])
    return TextureObject(TexturedKind(kind), format, channels, sampling, levels)
