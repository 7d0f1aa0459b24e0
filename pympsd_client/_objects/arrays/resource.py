"""What textures and surfaces are of, as kernels find it: arrays, mipmapped arrays, linear memory, views of them."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from pympsd.vocabulary.results import Result
from pympsd.wire.texture_object import CHANNEL_BYTES, Flag, Kind, Level, Sampling, TextureObject
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.texture_structs import ARRAY, LINEAR, MIPMAPPED, PITCHED, Resource, View
from pympsd_client._objects.arrays.array import Array, arrays, mipmapped_arrays
from pympsd_client._objects.arrays.shapes import CUBEMAP, LAYERED, SURFACE, check_format
from pympsd_client._objects.context import Context
from pympsd_client._objects.memory import owner

_VIEW_FORMATS: Final = (0x01, 0x08, 0x02, 0x09, 0x03, 0x0A, 0x10, 0x20)
"""CUarray_format in the order of CUresourceViewFormat, which has each with 1, 2 and 4 channels, from 1 on."""
_SEAMLESS: Final = 0x40
"""CU_TRSF_SEAMLESS_CUBEMAP"""
_FLAGS: Final = 0x73
"""All CU_TRSF_*"""


def texture(of: Resource, how: Sampling, view: View | None, context: Context) -> TextureObject:
    """Return the object for a texture; raise CudaError for what CUDA does not allow."""
    _check_sampling(how)
    if of.flags:
        raise invalid_value(f"the flags of the resource are 0, not {of.flags:#x}")
    if of.type in (LINEAR, PITCHED):
        if view is not None:
            raise invalid_value("a resource view is of an array or a mipmapped array, not of linear memory")
        made = _linear(of, how, context)
    elif of.type in (ARRAY, MIPMAPPED):
        made = _of_arrays(of, how, view)
    else:
        raise invalid_value(f"the type of the resource is 0 to 3, not {of.type}")
    if how.filter and not made.is_float:
        raise invalid_value("LINEAR filtering is of elements that are read as floats")
    return made


def _check_sampling(how: Sampling) -> None:
    if not all(0 <= mode <= 3 for mode in how.address_modes):
        raise invalid_value(f"address modes are 0 to 3, not {how.address_modes}")
    if how.filter not in (0, 1) or how.level_filter not in (0, 1):
        raise invalid_value(f"filter modes are 0 and 1, not {how.filter} and {how.level_filter}")
    if how.flags & ~_FLAGS:
        raise invalid_value(f"the flags {how.flags:#x} have bits that no CU_TRSF flag has")


def _linear(of: Resource, how: Sampling, context: Context) -> TextureObject:
    check_format(of.format, of.channels)
    owner(of.place)
    limits = context.device.facts.attributes
    alignment = limits.get("TEXTURE_ALIGNMENT", 1)
    if of.place % alignment:
        raise invalid_value(f"{of.place:#x} is no multiple of TEXTURE_ALIGNMENT, {alignment}")
    element = CHANNEL_BYTES[of.format] * of.channels
    if of.type == LINEAR:
        width = of.size_or_width // element
        most = limits.get("MAXIMUM_TEXTURE1D_LINEAR_WIDTH", width)
        if not 0 < width <= most:
            raise invalid_value(f"linear memory of 1 to {most} elements, not {width}")
        level = Level(of.place, width * element, width * element, width, 1, 1)
        return TextureObject(Kind.LINEAR, of.format, of.channels, how, (level,))
    sizes = {"WIDTH": of.size_or_width, "HEIGHT": of.height, "PITCH": of.pitch}
    for name, size in sizes.items():
        most = limits.get(f"MAXIMUM_TEXTURE2D_LINEAR_{name}", size)
        if not 0 < size <= most:
            raise invalid_value(f"the {name.lower()} is 1 to {most}, not {size}")
    step = limits.get("TEXTURE_PITCH_ALIGNMENT", 1)
    if of.pitch % step or of.pitch < of.size_or_width * element:
        raise invalid_value(
            f"the pitch is a multiple of TEXTURE_PITCH_ALIGNMENT, {step}, and holds a row of "
            f"{of.size_or_width * element} bytes, not {of.pitch}"
        )
    level = Level(of.place, of.pitch, of.pitch * of.height, of.size_or_width, of.height, 1)
    return TextureObject(Kind.PITCHED, of.format, of.channels, how, (level,))


def _of_arrays(of: Resource, how: Sampling, view: View | None) -> TextureObject:
    if of.type == MIPMAPPED:
        found = mipmapped_arrays.find(of.place).levels
        if not how.flags & Flag.NORMALIZED_COORDINATES:
            raise invalid_value("coordinates of a mipmapped array are normalized: set NORMALIZED_COORDINATES")
    else:
        found = (arrays.find(of.place),)
    if how.flags & _SEAMLESS and how.filter and found[0].description.flags & CUBEMAP:
        raise CudaError(
            Result.ERROR_NOT_SUPPORTED,
            "filtering across the edges of a cubemap's faces (SEAMLESS_CUBEMAP) is not supported; without it each "
            "face is filtered alone",
        )
    return _made(Kind.ARRAY, found, how) if view is None else _viewed(found, how, view)


def _made(kind: Kind, found: tuple[Array, ...], how: Sampling) -> TextureObject:
    first = found[0].description
    levels = tuple(
        Level(one.address, one.pitch, one.slice_pitch, one.description.width, one.rows, one.slices) for one in found
    )
    return TextureObject(kind, first.format, first.channels, how, levels)


def _viewed(found: tuple[Array, ...], how: Sampling, view: View) -> TextureObject:
    whole, first = _made(Kind.ARRAY, found, how), found[0].description
    format, channels = _view_format(view.format, whole)
    sizes = (view.width, view.height, view.depth)
    if sizes != (first.width, first.height, first.depth):
        raise invalid_value(f"a view has the size of its resource: {first.width}, {first.height}, {first.depth}")
    if not view.first_level <= view.last_level < len(found):
        raise invalid_value(f"levels {view.first_level} to {view.last_level} of {len(found)}")
    layers = first.depth if first.flags & (LAYERED | CUBEMAP) else 1
    if not view.first_layer <= view.last_layer < layers:
        raise invalid_value(f"layers {view.first_layer} to {view.last_layer} of {layers}")
    levels = whole.levels[view.first_level : view.last_level + 1]
    if layers > 1:
        count, at = view.last_layer - view.first_layer + 1, view.first_layer
        levels = tuple(evolve(one, address=one.address + at * one.slice_pitch, depth=count) for one in levels)
    return TextureObject(Kind.ARRAY, format, channels, how, levels)


def _view_format(number: int, whole: TextureObject) -> tuple[int, int]:
    if number == 0:
        return whole.format, whole.channels
    which, channels = divmod(number - 1, 3)
    if which >= len(_VIEW_FORMATS):
        raise CudaError(
            Result.ERROR_NOT_SUPPORTED, f"CUresourceViewFormat {number:#x} is not supported: block compression"
        )
    format, count = _VIEW_FORMATS[which], (1, 2, 4)[channels]
    if CHANNEL_BYTES[format] * count != whole.element_bytes:
        raise invalid_value(f"the elements of a view have as many bytes as those of the array: {whole.element_bytes}")
    return format, count


def surface(of: Resource) -> TextureObject:
    """Return the object for a surface; raise CudaError for what CUDA does not allow."""
    if of.type != ARRAY or of.flags:
        raise invalid_value("the resource of a surface is an array (type 0), and its flags are 0")
    array = arrays.find(of.place)
    if not array.description.flags & SURFACE:
        raise invalid_value("the array of a surface is created with CUDA_ARRAY3D_SURFACE_LDST")
    return _made(Kind.SURFACE, (array,), Sampling())
