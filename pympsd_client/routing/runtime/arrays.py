"""CUDA arrays, texture and surface objects (CUDA runtime API): conversion of their descriptions to the driver's and
back."""

import struct
from ctypes import memmove, string_at
from typing import Final

from pympsd.wire.texture_object import CHANNEL_BYTES, NORMALIZED, PACKED, Sampling, TextureFlag
from pympsd_client._arguments import array_structs as structs
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.arrays import array, texture

CHANNELS: Final = struct.Struct("=4ii")
"""cudaChannelFormatDesc: the number of bits in each channel, and the kind of value."""
_EXTENT: Final = struct.Struct("=3Q")
_INVALID_CHANNELS: Final = 20
"""cudaErrorInvalidChannelDescriptor, which only the runtime has."""
_SIGNED, _UNSIGNED, _FLOAT = 0, 1, 2
"""Values of cudaChannelFormatKind."""
_FIRST_NORMALIZED: Final = 5
"""cudaChannelFormatKindUnsignedNormalized8X1; the next kinds are in the order of the driver's formats."""
_PACKED: Final = CHANNELS.pack(10, 10, 10, 2, 31)
"""The cudaChannelFormatDesc of PACKED: cudaChannelFormatKindUnsignedNormalized1010102."""
_FORMATS: Final[dict[tuple[int, int], int]] = {
    (_UNSIGNED, 8): 0x01, (_UNSIGNED, 16): 0x02, (_UNSIGNED, 32): 0x03,
    (_SIGNED, 8): 0x08, (_SIGNED, 16): 0x09, (_SIGNED, 32): 0x0A,
    (_FLOAT, 16): 0x10, (_FLOAT, 32): 0x20,
    **{(_FIRST_NORMALIZED + index, 8 * CHANNEL_BYTES[format]): format for index, format in enumerate(NORMALIZED)},
}  # fmt: skip
"""The CUarray_format of each kind and number of bits."""
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
            f"channels of {bits} bits of kind {kind} are not supported; 1, 2 or 4 equal channels are, of integers "
            "with 8, 16 or 32 bits or floats with 16 or 32",
        )
    return format, count


def channels_of(format: int, count: int) -> bytes:
    """Return the cudaChannelFormatDesc of a CUarray_format and a number of channels."""
    if format == PACKED:
        return _PACKED
    bits = 8 * CHANNEL_BYTES[format]
    return CHANNELS.pack(*(bits if index < count else 0 for index in range(4)), _KINDS[format])


def _description(channels: int, width: int, height: int, depth: int, flags: int) -> structs.ArrayDescription:
    check_not_null("the cudaChannelFormatDesc", channels)
    format, count = format_of(string_at(channels, CHANNELS.size))
    return structs.ArrayDescription(width, height, depth, format, count, flags)


def allocate(channels: int, width: int, height: int, flags: int) -> int:
    """Return the handle of a new array of one or two dimensions."""
    return array.create(_description(channels, width, height, 0, flags))


def allocate_3d(channels: int, extent: bytes, flags: int) -> int:
    """Return the handle of a new array of up to three dimensions."""
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
    description = array.arrays.find(handle).description
    return (
        channels_of(description.format, description.channels),
        _EXTENT.pack(description.width, description.height, description.depth),
        description.flags,
    )


def channels(handle: int) -> bytes:
    """Return the cudaChannelFormatDesc of an array."""
    return info(handle)[0]


_RESOURCE: Final = struct.Struct("=i4xQ")
_LINEAR: Final = struct.Struct("=i4xQ20s4x3Q")
"""cudaResourceDesc: its type, then a handle, or an address with channels and sizes."""
_TEXTURE: Final = struct.Struct("=3i3i4IiIi3f2i")
"""The layout of a cudaTextureDesc."""
_VIEW_BYTES: Final = 48
"""The size of a cudaResourceViewDesc, with which the driver's begins; in newer versions zeros follow."""
_RESERVED: Final = bytes(64)
_TRILINEAR, _SEAMLESS = 0x20, 0x40
"""CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION, CU_TRSF_SEAMLESS_CUBEMAP."""


def _resource(address: int) -> bytes:
    check_not_null("the cudaResourceDesc", address)
    kind, at = _RESOURCE.unpack(string_at(address, _RESOURCE.size))
    if kind not in (structs.LINEAR, structs.PITCHED):
        return structs.pack_resource(structs.ResourceDescription(kind, at, 0, 0, 0, 0, 0, 0))
    _, _, channels, size_or_width, height, pitch = _LINEAR.unpack(string_at(address, _LINEAR.size))
    format, count = format_of(channels)
    return structs.pack_resource(
        structs.ResourceDescription(kind, at, format, count, size_or_width, height, pitch, 0)
    )


def create(resource_address: int, address: int, view: int) -> int:
    """Return the handle of a new texture object."""
    check_not_null("the cudaTextureDesc", address)
    fields = _TEXTURE.unpack(string_at(address, _TEXTURE.size))
    modes, (filter, mode, is_srgb), border, levels = fields[:3], fields[3:6], fields[6:10], fields[10:]
    is_normalized, anisotropy, level_filter, bias, least, greatest, is_exact, is_seamless = levels
    flags = (0 if mode else TextureFlag.READ_AS_INTEGER) | (
        TextureFlag.NORMALIZED_COORDINATES if is_normalized else 0
    )
    flags |= (
        (TextureFlag.SRGB if is_srgb else 0) | (_TRILINEAR if is_exact else 0) | (_SEAMLESS if is_seamless else 0)
    )
    how = Sampling(modes, filter, flags, level_filter, bias, least, greatest, border)
    view_bytes = string_at(view, _VIEW_BYTES) + _RESERVED if view else None
    return texture.create_texture(_resource(resource_address), structs.pack_sampling(how, anisotropy), view_bytes)


def create_surface(address: int) -> int:
    """Return the handle of a new surface object."""
    return texture.create_surface(_resource(address))


def _write_resource(address: int, data: bytes) -> None:
    check_not_null("the cudaResourceDesc", address)
    resource = structs.resource(data)
    written = _RESOURCE.pack(resource.type, resource.place)
    if resource.type in (structs.LINEAR, structs.PITCHED):
        channels = channels_of(resource.format, resource.channels)
        written = _LINEAR.pack(
            resource.type, resource.place, channels, resource.size_or_width, resource.height, resource.pitch
        )
    memmove(address, written.ljust(_LINEAR.size, b"\0"), _LINEAR.size)


def write_resource(address: int, handle: int) -> None:
    """Write the cudaResourceDesc of a texture object to an address."""
    _write_resource(address, texture.resource_of_texture(handle))


def write_resource_of_surface(address: int, handle: int) -> None:
    """Write the cudaResourceDesc of a surface object to an address."""
    _write_resource(address, texture.resource_of_surface(handle))


def write_view(address: int, handle: int) -> None:
    """Write the cudaResourceViewDesc of a texture object to an address."""
    data = texture.view_of_texture(handle)
    check_not_null("the cudaResourceViewDesc", address)
    memmove(address, data, _VIEW_BYTES)


def write_description(address: int, handle: int) -> None:
    """Write the cudaTextureDesc of a texture object to an address."""
    sampling, anisotropy = structs.parse_sampling(texture.texture_description(handle))
    check_not_null("the cudaTextureDesc", address)
    has = [
        bool(sampling.flags & flag)
        for flag in (TextureFlag.READ_AS_INTEGER, TextureFlag.SRGB, TextureFlag.NORMALIZED_COORDINATES)
    ]
    data = _TEXTURE.pack(
        *sampling.address_modes, sampling.filter, not has[0], has[1], *sampling.border, has[2], anisotropy,
        sampling.level_filter, sampling.level_bias, sampling.least_level, sampling.greatest_level,
        bool(sampling.flags & _TRILINEAR), bool(sampling.flags & _SEAMLESS),
    )  # fmt: skip
    memmove(address, data, len(data))
