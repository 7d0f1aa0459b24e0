"""Descriptions of CUDA arrays and textures, read as plain values from cuda.bindings' objects or C structures."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import astuple, frozen

from pympsd.wire.texture_object import Sampling
from pympsd_client._arguments.values import address_of


@frozen
class ArrayDescription:
    """A CUDA_ARRAY3D_DESCRIPTOR, in elements: a height or depth of 0 is a missing dimension."""

    width: int
    height: int
    depth: int
    format: int
    channels: int
    flags: int


_DESCRIPTOR: Final = struct.Struct("=2QiI")
"""The layout of a CUDA_ARRAY_DESCRIPTOR."""
_DESCRIPTOR_3D: Final = struct.Struct("=3Qi2I4x")
"""The layout of a CUDA_ARRAY3D_DESCRIPTOR."""


def array_2d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY_DESCRIPTOR, None for NULL; raise TypeError for anything else."""
    if argument is None:
        return None
    data = ctypes.string_at(address_of(argument, "CUDA_ARRAY_DESCRIPTOR"), _DESCRIPTOR.size)
    width, height, format, channels = _DESCRIPTOR.unpack(data)
    return ArrayDescription(width, height, 0, format, channels, 0)


def array_3d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY3D_DESCRIPTOR, None for NULL; raise TypeError for anything else."""
    if argument is None:
        return None
    data = ctypes.string_at(address_of(argument, "CUDA_ARRAY3D_DESCRIPTOR"), _DESCRIPTOR_3D.size)
    return ArrayDescription(*_DESCRIPTOR_3D.unpack(data))


def pack_2d(description: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY_DESCRIPTOR."""
    return _DESCRIPTOR.pack(description.width, description.height, description.format, description.channels)


def pack_3d(description: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY3D_DESCRIPTOR."""
    return _DESCRIPTOR_3D.pack(*astuple(description))


ARRAY, MIPMAPPED, LINEAR, PITCHED = range(4)
"""Values of CUresourcetype."""
_SIZES: Final = {"CUDA_RESOURCE_DESC": 144, "CUDA_TEXTURE_DESC": 104, "CUDA_RESOURCE_VIEW_DESC": 112}
_RESOURCE: Final = struct.Struct("=i4xQiI3Q88xI4x")
_TEXTURE: Final = struct.Struct("=3ii2Ii3f4I48x")
_VIEW: Final = struct.Struct("=I4x3Q4I64x")


@frozen
class ResourceDescription:
    """A CUDA_RESOURCE_DESC. ``place`` is an array's handle or an address; the other fields apply to linear memory."""

    type: int
    place: int
    format: int
    channels: int
    size_or_width: int
    """The size of LINEAR memory in bytes, or the width of PITCHED memory in elements."""
    height: int
    pitch: int
    flags: int


@frozen
class View:
    """A CUDA_RESOURCE_VIEW_DESC."""

    format: int
    width: int
    height: int
    depth: int
    first_level: int
    last_level: int
    first_layer: int
    last_layer: int


def resource(data: bytes) -> ResourceDescription:
    """Return the values of a CUDA_RESOURCE_DESC."""
    return ResourceDescription(*_RESOURCE.unpack(data))


def pack_resource(values: ResourceDescription) -> bytes:
    """Return the bytes of a CUDA_RESOURCE_DESC."""
    return _RESOURCE.pack(*astuple(values))


def parse_sampling(data: bytes) -> tuple[Sampling, int]:
    """Return the values of a CUDA_TEXTURE_DESC, and the maximum anisotropy."""
    first, second, third, filter, flags, anisotropy, level_filter, *levels = _TEXTURE.unpack(data)
    bias, least, greatest, *border = levels
    red, green, blue, alpha = border
    modes, colour = (first, second, third), (red, green, blue, alpha)
    return Sampling(modes, filter, flags, level_filter, bias, least, greatest, colour), anisotropy


def pack_sampling(values: Sampling, anisotropy: int) -> bytes:
    """Return the bytes of a CUDA_TEXTURE_DESC."""
    levels = (values.level_bias, values.least_level, values.greatest_level)
    return _TEXTURE.pack(
        *values.address_modes, values.filter, values.flags, anisotropy, values.level_filter, *levels, *values.border
    )


def view(data: bytes) -> View:
    """Return the values of a CUDA_RESOURCE_VIEW_DESC."""
    return View(*_VIEW.unpack(data))


def _reader(name: str) -> Callable[[Any], bytes | None]:
    def read(argument: Any) -> bytes | None:
        return None if argument is None else ctypes.string_at(address_of(argument, name), _SIZES[name])

    return read


read_resource, read_sampling, read_view = map(_reader, _SIZES)
"""Return the bytes of a structure, None for NULL; raise TypeError for anything else."""
