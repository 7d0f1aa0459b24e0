"""Texture and surface objects (CUDA driver API, Texture Object Management and Surface Object Management).

An object describes the memory that kernels read: an array, a mipmapped array, linear memory, or a view of one of
these. The object is in device memory of its context (`pympsd.wire.texture_object`), and its handle is its address.
"""

import ctypes
from typing import Final

from attrs import define, evolve

from pympsd.wire.records import STREAM_LEGACY
from pympsd.wire.texture_object import CHANNEL_BYTES, Level, Sampling, TexturedKind, TextureFlag, TextureObject, pack
from pympsd_client._arguments import array_structs as structs
from pympsd_client._arguments.array_structs import ARRAY, LINEAR, MIPMAPPED, PITCHED, ResourceDescription, View
from pympsd_client._arguments.errors import invalid_value, not_supported
from pympsd_client._arguments.values import null_argument
from pympsd_client._command_stream import operations
from pympsd_client._objects import copies
from pympsd_client._objects.arrays.array import Array, arrays, mipmapped_arrays, require_texturing_context
from pympsd_client._objects.arrays.shapes import CUBEMAP, LAYERED, SURFACE, check_format
from pympsd_client._objects.context import Context, require_context
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.memory.allocations import allocate_unlisted, owner

_VIEW_FORMATS: Final = (0x01, 0x08, 0x02, 0x09, 0x03, 0x0A, 0x10, 0x20)
"""The CUarray_formats in the order of CUresourceViewFormat.

CUresourceViewFormat counts from 1, and has three numbers for each format: with 1, 2 and 4 channels.
"""
_SEAMLESS: Final = 0x40
"""CU_TRSF_SEAMLESS_CUBEMAP."""
_FLAGS: Final = 0x73
"""All flags CU_TRSF_*."""


def texture_object(
    resource: ResourceDescription, how: Sampling, view: View | None, context: Context
) -> TextureObject:
    """Return the content of a texture object; raise CudaError if CUDA does not allow it."""
    _check_sampling(how)
    if resource.flags:
        raise invalid_value(f"the flags of the resource must be 0, not {resource.flags:#x}")
    if resource.type in (LINEAR, PITCHED):
        if view is not None:
            raise invalid_value("a resource view must be of an array or a mipmapped array, not of linear memory")
        result = _linear_object(resource, how, context)
    elif resource.type in (ARRAY, MIPMAPPED):
        result = _arrays_object(resource, how, view)
    else:
        raise invalid_value(f"the type of the resource must be 0 to 3, not {resource.type}")
    if how.filter and not result.is_float:
        raise invalid_value("LINEAR filtering needs elements that are read as floats")
    return result


def _check_sampling(how: Sampling) -> None:
    if not all(0 <= mode <= 3 for mode in how.address_modes):
        raise invalid_value(f"address modes must be 0 to 3, not {how.address_modes}")
    if how.filter not in (0, 1) or how.level_filter not in (0, 1):
        raise invalid_value(f"filter modes must be 0 or 1, not {how.filter} and {how.level_filter}")
    if how.flags & ~_FLAGS:
        raise invalid_value(f"the flags {how.flags:#x} have bits that no CU_TRSF flag has")


def _linear_object(resource: ResourceDescription, how: Sampling, context: Context) -> TextureObject:
    """Return the content of a texture object of LINEAR or PITCHED memory; raise CudaError."""
    check_format(resource.format, resource.channels)
    owner(resource.place)
    limits = context.device.properties.attributes
    alignment = limits.get("TEXTURE_ALIGNMENT", 1)
    if resource.place % alignment:
        raise invalid_value(f"{resource.place:#x} is not a multiple of TEXTURE_ALIGNMENT, {alignment}")
    element = CHANNEL_BYTES[resource.format] * resource.channels
    if resource.type == LINEAR:
        width = resource.size_or_width // element
        maximum = limits.get("MAXIMUM_TEXTURE1D_LINEAR_WIDTH", width)
        if not 0 < width <= maximum:
            raise invalid_value(f"linear memory of 1 to {maximum} elements, not {width}")
        level = Level(resource.place, width * element, width * element, width, 1, 1)
        return TextureObject(TexturedKind.LINEAR, resource.format, resource.channels, how, (level,))
    sizes = {"WIDTH": resource.size_or_width, "HEIGHT": resource.height, "PITCH": resource.pitch}
    for name, size in sizes.items():
        maximum = limits.get(f"MAXIMUM_TEXTURE2D_LINEAR_{name}", size)
        if not 0 < size <= maximum:
            raise invalid_value(f"the {name.lower()} must be 1 to {maximum}, not {size}")
    step = limits.get("TEXTURE_PITCH_ALIGNMENT", 1)
    if resource.pitch % step or resource.pitch < resource.size_or_width * element:
        raise invalid_value(
            f"the pitch must be a multiple of TEXTURE_PITCH_ALIGNMENT, {step}, and hold a row of "
            f"{resource.size_or_width * element} bytes, not {resource.pitch}"
        )
    level = Level(
        resource.place, resource.pitch, resource.pitch * resource.height, resource.size_or_width, resource.height, 1
    )
    return TextureObject(TexturedKind.PITCHED, resource.format, resource.channels, how, (level,))


def _arrays_object(resource: ResourceDescription, how: Sampling, view: View | None) -> TextureObject:
    if resource.type == MIPMAPPED:
        levels = mipmapped_arrays.find(_nonnull(resource)).levels
        if not how.flags & TextureFlag.NORMALIZED_COORDINATES:
            raise invalid_value("coordinates of a mipmapped array must be normalized: set NORMALIZED_COORDINATES")
    else:
        levels = (arrays.find(_nonnull(resource)),)
    if how.flags & _SEAMLESS and how.filter and levels[0].description.flags & CUBEMAP:
        raise not_supported(
            "filtering across the edges of a cubemap's faces (SEAMLESS_CUBEMAP) is not supported; without it each "
            "face is filtered alone"
        )
    return _array_object(TexturedKind.ARRAY, levels, how) if view is None else _view_object(levels, how, view)


def _nonnull(resource: ResourceDescription) -> int:
    if not resource.place:
        raise null_argument("the array of the resource")
    return resource.place


def _array_object(kind: TexturedKind, arrays: tuple[Array, ...], how: Sampling) -> TextureObject:
    first = arrays[0].description
    levels = tuple(
        Level(array.address, array.pitch, array.slice_pitch, array.description.width, array.rows, array.slices)
        for array in arrays
    )
    return TextureObject(kind, first.format, first.channels, how, levels)


def _view_object(arrays: tuple[Array, ...], how: Sampling, view: View) -> TextureObject:
    """Return the content of a texture object for a view of some levels and layers of an array. Raise CudaError."""
    whole, first = _array_object(TexturedKind.ARRAY, arrays, how), arrays[0].description
    format, channels = _view_format(view.format, whole)
    sizes = (view.width, view.height, view.depth)
    if sizes != (first.width, first.height, first.depth):
        raise invalid_value(
            f"a view must have the size of its resource: {first.width}, {first.height}, {first.depth}"
        )
    if not view.first_level <= view.last_level < len(arrays):
        raise invalid_value(f"levels {view.first_level} to {view.last_level} of {len(arrays)}")
    layers = first.depth if first.flags & (LAYERED | CUBEMAP) else 1
    if not view.first_layer <= view.last_layer < layers:
        raise invalid_value(f"layers {view.first_layer} to {view.last_layer} of {layers}")
    levels = whole.levels[view.first_level : view.last_level + 1]
    if layers > 1:
        count, at = view.last_layer - view.first_layer + 1, view.first_layer
        levels = tuple(evolve(item, address=item.address + at * item.slice_pitch, depth=count) for item in levels)
    return TextureObject(TexturedKind.ARRAY, format, channels, how, levels)


def _view_format(number: int, whole: TextureObject) -> tuple[int, int]:
    if number == 0:
        return whole.format, whole.channels
    which, channels = divmod(number - 1, 3)
    if which >= len(_VIEW_FORMATS):
        raise not_supported(f"CUresourceViewFormat {number:#x} is not supported: block compression")
    format, count = _VIEW_FORMATS[which], (1, 2, 4)[channels]
    if CHANNEL_BYTES[format] * count != whole.element_bytes:
        raise invalid_value(
            f"the elements of a view must have as many bytes as those of the array: {whole.element_bytes}"
        )
    return format, count


def surface_object(resource: ResourceDescription) -> TextureObject:
    """Return the content of a surface object; raise CudaError if CUDA does not allow it."""
    if resource.type != ARRAY or resource.flags:
        raise invalid_value("the resource of a surface must be an array (type 0), and its flags 0")
    array = arrays.find(_nonnull(resource))
    if not array.description.flags & SURFACE:
        raise invalid_value("the array of a surface must be created with CUDA_ARRAY3D_SURFACE_LDST")
    return _array_object(TexturedKind.SURFACE, (array,), Sampling())


@define(eq=False)
class Object:
    """A texture or surface object, with the structures that describe it."""

    handle: int
    context: Context
    resource: bytes
    sampling: bytes = b""
    view: bytes | None = None


textures: Final = HandleTable[Object]("texture object", "destroyed, or never made")
surfaces: Final = HandleTable[Object]("surface object", "destroyed, or never made")


def _place(context: Context, texture_object: TextureObject) -> int:
    data = pack(texture_object)
    address = allocate_unlisted(context, len(data))
    buffer = ctypes.create_string_buffer(data, len(data))
    copies.copy_to_device(context, STREAM_LEGACY, address, ctypes.addressof(buffer), len(data), wait=True)
    return address


def create_texture(description: bytes | None, how: bytes | None, view: bytes | None) -> int:
    """Return the handle of a new texture object of an array, a mipmapped array or linear memory.

    Only ``view`` may be NULL. Raise INVALID_VALUE for values that CUDA does not allow, INVALID_HANDLE for a handle
    that is not an array's, NOT_SUPPORTED for views of compressed blocks.
    """
    context = require_texturing_context()
    if description is None or how is None:
        raise invalid_value("the description of the resource or of the texture is NULL")
    sampling, _ = structs.parse_sampling(how)
    resource_view = None if view is None else structs.view(view)
    texture = texture_object(structs.resource(description), sampling, resource_view, context)
    return textures.add(Object(_place(context, texture), context, description, how, view)).handle


def create_surface(description: bytes | None) -> int:
    """Return the handle of a new surface object of an array; raise INVALID_VALUE unless it has SURFACE_LDST."""
    context = require_texturing_context()
    if description is None:
        raise invalid_value("the description of the resource is NULL")
    surface = surface_object(structs.resource(description))
    return surfaces.add(Object(_place(context, surface), context, description)).handle


def destroy_texture(handle: int) -> None:
    """Destroy a texture object once the context's earlier work is done; its memory stays. NULL is ignored."""
    _destroy(textures, handle)


def destroy_surface(handle: int) -> None:
    """Destroy a surface object once the context's earlier work is done; its array stays. NULL is ignored."""
    _destroy(surfaces, handle)


def _destroy(table: HandleTable[Object], handle: int) -> None:
    require_context()
    if not handle:
        return
    item = table.find(handle)
    with table.take_out(item):
        item.context.call(operations.FREE, handle)


def _find(table: HandleTable[Object], handle: int) -> Object:
    require_context()
    if not handle:
        raise null_argument("the object")
    return table.find(handle)


def resource_of_texture(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_DESC of a texture object; raise INVALID_HANDLE."""
    return _find(textures, handle).resource


def resource_of_surface(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_DESC of a surface object; raise INVALID_HANDLE."""
    return _find(surfaces, handle).resource


def texture_description(handle: int) -> bytes:
    """Return the CUDA_TEXTURE_DESC of a texture object; raise INVALID_HANDLE."""
    return _find(textures, handle).sampling


def view_of_texture(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_VIEW_DESC of a texture object; raise INVALID_HANDLE, INVALID_VALUE if it has none."""
    view = _find(textures, handle).view
    if view is None:
        raise invalid_value(f"texture object {handle:#x} was created without a resource view")
    return view
