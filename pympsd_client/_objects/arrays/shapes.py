"""The shapes and formats of CUDA arrays that a device supports (CUDA driver API, cuArray3DCreate)."""

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from pympsd.wire.texture_object import CHANNEL_BYTES, NORMALIZED_CHANNELS
from pympsd_client._arguments.array_structs import ArrayDescription
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.errors import invalid_value, not_supported

LAYERED, SURFACE, CUBEMAP, GATHER = 0x01, 0x02, 0x04, 0x08
"""Flags CUDA_ARRAY3D_*."""
_ATTACHED, _SPARSE, _DEFERRED = 0x30, 0x40, 0x80
"""Further flags CUDA_ARRAY3D_*.

The first combines the flags for depth and colour attachments of graphics, which have no effect. The others are not
supported.
"""
_FLAGS: Final = LAYERED | SURFACE | CUBEMAP | GATHER | _ATTACHED
FACES: Final = 6
_KNOWN_FORMATS: Final = {number: name for name, number in members("CUarray_format", "CU_AD_FORMAT_").items()}


def element_bytes(description: ArrayDescription) -> int:
    """Return the size of an element in bytes."""
    return CHANNEL_BYTES[description.format] * description.channels


def dimensions(description: ArrayDescription) -> int:
    """Return the number of dimensions: 1, 2 or 3. Layers are not a dimension."""
    if not description.height:
        return 1
    return 3 if description.depth and not description.flags & (LAYERED | CUBEMAP) else 2


def check_format(format: int, channels: int) -> None:
    """Raise NOT_SUPPORTED for a format that only pympsd lacks, INVALID_VALUE for one that CUDA does not define."""
    if format not in CHANNEL_BYTES:
        if format in _KNOWN_FORMATS:
            raise not_supported(
                f"CU_AD_FORMAT_{_KNOWN_FORMATS[format]} is not supported; integers of 8, 16 and 32 bits, UNORM, "
                "SNORM, HALF and FLOAT are"
            )
        raise invalid_value(f"{format:#x} is not a CUarray_format")
    if channels not in (1, 2, 4):
        raise invalid_value(f"an element must have 1, 2 or 4 channels, not {channels}")
    if channels != NORMALIZED_CHANNELS.get(format, channels):
        raise invalid_value(f"elements of CUarray_format {format:#x} have {NORMALIZED_CHANNELS[format]} channels")


def check(description: ArrayDescription, limits: Mapping[str, int]) -> None:
    """Raise CudaError unless a device with these attributes supports arrays of this description."""
    check_format(description.format, description.channels)
    if description.flags & (_SPARSE | _DEFERRED):
        raise not_supported(
            "arrays with SPARSE or DEFERRED_MAPPING are not supported (their device attributes are 0)"
        )
    if description.flags & ~_FLAGS:
        raise invalid_value(f"the flags {description.flags:#x} have bits that no CUDA_ARRAY3D flag has")
    if not description.width:
        raise invalid_value("the width of an array must be at least 1")
    if description.flags & CUBEMAP:
        _check_cubemap(description)
    elif description.flags & LAYERED:
        if not description.depth:
            raise invalid_value("the depth of a layered array must be the number of its layers, at least 1")
    elif description.depth and not description.height:
        raise invalid_value("an array with a depth must have a height too, unless it is LAYERED")
    if description.flags & GATHER and (dimensions(description) != 2 or description.flags & (LAYERED | CUBEMAP)):
        raise invalid_value("TEXTURE_GATHER is for arrays of two dimensions")
    _check_limits(description, limits)


def _check_cubemap(description: ArrayDescription) -> None:
    if description.width != description.height:
        size = f"{description.width} by {description.height}"
        raise invalid_value(f"a cubemap must be as high as it is wide, not {size}")
    if description.flags & LAYERED:
        if not description.depth or description.depth % FACES:
            raise invalid_value(
                f"the depth of a layered cubemap must be a multiple of {FACES}, not {description.depth}"
            )
    elif description.depth != FACES:
        raise invalid_value(f"the depth of a cubemap must be {FACES}, not {description.depth}")


def _check_limits(description: ArrayDescription, limits: Mapping[str, int]) -> None:
    """Raise INVALID_VALUE unless the dimensions are within the device's limits for textures and surfaces."""
    families = ["TEXTURE", "SURFACE"] if description.flags & SURFACE else ["TEXTURE"]
    kind = "CUBEMAP" if description.flags & CUBEMAP else f"{dimensions(description)}D"
    layered = "_LAYERED" if description.flags & LAYERED else ""
    for family in families:
        names = [f"MAXIMUM_{family}{kind}{layered}"]
        if description.flags & GATHER and family == "TEXTURE":
            names = ["MAXIMUM_TEXTURE2D_GATHER"]
        within = _is_within(description, names[0], "", limits)
        if not within and kind == "3D" and family == "TEXTURE":
            within = _is_within(description, names[0], "_ALTERNATE", limits)
        if not within:
            size = f"{description.width} x {description.height} x {description.depth}"
            raise invalid_value(f"an array of {size} is larger than the attributes {names[0]}_* allow")


def _is_within(description: ArrayDescription, name: str, suffix: str, limits: Mapping[str, int]) -> bool:
    deepest = "LAYERS" if description.flags & LAYERED else "DEPTH"
    sizes = (("WIDTH", description.width), ("HEIGHT", description.height), (deepest, description.depth))
    return all(size <= limits.get(f"{name}_{side}{suffix}", size) for side, size in sizes)


def level_count(description: ArrayDescription, requested: int) -> int:
    """Return the number of levels of a mipmapped array: at least 1, at most ``requested`` or what its size allows."""
    longest = max(description.width, description.height, description.depth if dimensions(description) == 3 else 0)
    return min(max(requested, 1), longest.bit_length())


def level(description: ArrayDescription, number: int) -> ArrayDescription:
    """Return the description of a level. Each level has half the dimensions of the one before, but as many layers."""
    width, height, depth = (
        max(1, size >> number) if size else 0 for size in (description.width, description.height, description.depth)
    )
    return evolve(
        description, width=width, height=height, depth=depth if dimensions(description) == 3 else description.depth
    )
