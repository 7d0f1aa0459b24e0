"""Texture and surface objects (CUDA driver API, Texture Object Management and Surface Object Management).

Each lies in device memory of its context (`pympsd.wire.texture_object`), and its handle is the address.
"""

from __future__ import annotations

import ctypes
from typing import Final

from attrs import define

from pympsd.wire.records import STREAM_LEGACY
from pympsd.wire.texture_object import TextureObject, pack
from pympsd_client._arguments import texture_structs as structs
from pympsd_client._arguments.errors import invalid_handle, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects import copies
from pympsd_client._objects.arrays import resource
from pympsd_client._objects.arrays.array import allocate, texturing_context
from pympsd_client._objects.context import Context
from pympsd_client._objects.handle_table import HandleTable


@define(eq=False)
class Object:
    """A texture or surface object, with the structures that it was made of."""

    handle: int
    context: Context
    resource: bytes
    sampling: bytes = b""
    view: bytes | None = None


textures: Final = HandleTable[Object]("texture object", "destroyed, or never made")
surfaces: Final = HandleTable[Object]("surface object", "destroyed, or never made")


def _placed(context: Context, made: TextureObject) -> int:
    data = pack(made)
    address = allocate(context, len(data))
    held = ctypes.create_string_buffer(data, len(data))
    copies.to_device(context, STREAM_LEGACY, address, ctypes.addressof(held), len(data), wait=True)
    return address


def create_texture(given: bytes | None, how: bytes | None, view: bytes | None) -> int:
    """Return the handle of a new texture object of an array, a mipmapped array or linear memory.

    INVALID_VALUE for NULL (but no view is needed) and what CUDA does not allow; INVALID_HANDLE for no array;
    NOT_SUPPORTED for views of compressed blocks.
    """
    context = texturing_context()
    if given is None or how is None:
        raise invalid_value("the description of the resource or of the texture is NULL")
    sampling, _ = structs.sampling(how)
    seen = None if view is None else structs.view(view)
    made = resource.texture(structs.resource(given), sampling, seen, context)
    return textures.add(Object(_placed(context, made), context, given, how, view)).handle


def create_surface(given: bytes | None) -> int:
    """Return the handle of a new surface object of an array; INVALID_VALUE unless it has SURFACE_LDST."""
    context = texturing_context()
    if given is None:
        raise invalid_value("the description of the resource is NULL")
    made = resource.surface(structs.resource(given))
    return surfaces.add(Object(_placed(context, made), context, given)).handle


def destroy_texture(handle: int) -> None:
    """Destroy a texture object once the context's work so far is done; its memory stays. INVALID_HANDLE."""
    _destroy(textures, handle)


def destroy_surface(handle: int) -> None:
    """Destroy a surface object once the context's work so far is done; its array stays. INVALID_HANDLE."""
    _destroy(surfaces, handle)


def _destroy(table: HandleTable[Object], handle: int) -> None:
    found = table.find(handle)
    # Taken out first: once it is free another thread may be given the same address.
    if table.remove(handle) is None:
        raise invalid_handle(f"{handle:#x} was destroyed meanwhile")
    try:
        found.context.call(operations.FREE, handle)
    except BaseException:
        table.put_back(found)
        raise


def resource_of_texture(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_DESC of a texture object; INVALID_HANDLE."""
    return textures.find(handle).resource


def resource_of_surface(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_DESC of a surface object; INVALID_HANDLE."""
    return surfaces.find(handle).resource


def texture_description(handle: int) -> bytes:
    """Return the CUDA_TEXTURE_DESC of a texture object; INVALID_HANDLE."""
    return textures.find(handle).sampling


def view_of_texture(handle: int) -> bytes:
    """Return the CUDA_RESOURCE_VIEW_DESC of a texture object; INVALID_HANDLE, INVALID_VALUE if it has none."""
    view = textures.find(handle).view
    if view is None:
        raise invalid_value(f"texture object {handle:#x} was created without a resource view")
    return view
