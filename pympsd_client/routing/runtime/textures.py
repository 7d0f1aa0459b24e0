"""Texture and surface objects (CUDA runtime API): the runtime's descriptions as the driver's, and back."""

import struct
from ctypes import memmove, string_at
from typing import Final

from pympsd.wire.texture_object import Flag, Sampling
from pympsd_client._arguments.texture_structs import (
    LINEAR,
    PITCHED,
    Resource,
    pack_resource,
    pack_sampling,
    resource,
    sampling,
)
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.arrays import texture
from pympsd_client.routing.runtime.arrays import channels_of, format_of

_RESOURCE: Final = struct.Struct("=i4xQ")
_LINEAR: Final = struct.Struct("=i4xQ20s4x3Q")
"""cudaResourceDesc: its type, then a handle, or an address with channels and sizes"""
_TEXTURE: Final = struct.Struct("=3i3i4IiIi3f2i")
"""cudaTextureDesc"""
_VIEW_BYTES: Final = 48
"""The size of a cudaResourceViewDesc, which begins as the driver's; newer versions have zeros behind it."""
_RESERVED: Final = bytes(64)
_TRILINEAR, _SEAMLESS = 0x20, 0x40
"""CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION, CU_TRSF_SEAMLESS_CUBEMAP"""


def _resource(place: int) -> bytes:
    check_not_null("the cudaResourceDesc", place)
    kind, at = _RESOURCE.unpack(string_at(place, _RESOURCE.size))
    if kind not in (LINEAR, PITCHED):
        return pack_resource(Resource(kind, at, 0, 0, 0, 0, 0, 0))
    _, _, channels, size_or_width, height, pitch = _LINEAR.unpack(string_at(place, _LINEAR.size))
    format, count = format_of(channels)
    return pack_resource(Resource(kind, at, format, count, size_or_width, height, pitch, 0))


def create(resource_place: int, place: int, view: int) -> int:
    """Return the handle of a new texture object."""
    check_not_null("the cudaTextureDesc", place)
    fields = _TEXTURE.unpack(string_at(place, _TEXTURE.size))
    modes, (filter, mode, is_srgb), border, rest = fields[:3], fields[3:6], fields[6:10], fields[10:]
    is_normalized, anisotropy, level_filter, bias, least, greatest, is_exact, is_seamless = rest
    flags = (0 if mode else Flag.READ_AS_INTEGER) | (Flag.NORMALIZED_COORDINATES if is_normalized else 0)
    flags |= (Flag.SRGB if is_srgb else 0) | (_TRILINEAR if is_exact else 0) | (_SEAMLESS if is_seamless else 0)
    how = Sampling(modes, filter, flags, level_filter, bias, least, greatest, border)
    seen = string_at(view, _VIEW_BYTES) + _RESERVED if view else None
    return texture.create_texture(_resource(resource_place), pack_sampling(how, anisotropy), seen)


def create_surface(place: int) -> int:
    """Return the handle of a new surface object."""
    return texture.create_surface(_resource(place))


def _write_resource(place: int, data: bytes) -> None:
    check_not_null("the cudaResourceDesc", place)
    of = resource(data)
    written = _RESOURCE.pack(of.type, of.place)
    if of.type in (LINEAR, PITCHED):
        channels = channels_of(of.format, of.channels)
        written = _LINEAR.pack(of.type, of.place, channels, of.size_or_width, of.height, of.pitch)
    memmove(place, written.ljust(_LINEAR.size, b"\0"), _LINEAR.size)


def write_resource(place: int, handle: int) -> None:
    """Write the cudaResourceDesc of a texture object."""
    _write_resource(place, texture.resource_of_texture(handle))


def write_resource_of_surface(place: int, handle: int) -> None:
    """Write the cudaResourceDesc of a surface object."""
    _write_resource(place, texture.resource_of_surface(handle))


def write_view(place: int, handle: int) -> None:
    """Write the cudaResourceViewDesc of a texture object."""
    data = texture.view_of_texture(handle)
    check_not_null("the cudaResourceViewDesc", place)
    memmove(place, data, _VIEW_BYTES)


def write_description(place: int, handle: int) -> None:
    """Write the cudaTextureDesc of a texture object."""
    of, anisotropy = sampling(texture.texture_description(handle))
    check_not_null("the cudaTextureDesc", place)
    has = [bool(of.flags & flag) for flag in (Flag.READ_AS_INTEGER, Flag.SRGB, Flag.NORMALIZED_COORDINATES)]
    data = _TEXTURE.pack(
        *of.address_modes, of.filter, not has[0], has[1], *of.border, has[2], anisotropy, of.level_filter,
        of.level_bias, of.least_level, of.greatest_level, bool(of.flags & _TRILINEAR), bool(of.flags & _SEAMLESS),
    )  # fmt: skip
    memmove(place, data, len(data))
