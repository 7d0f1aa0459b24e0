"""Copies of rows and slices (CUDA driver API, Memory Management: cuMemcpy2D and cuMemcpy3D)."""

from typing import Final

from pympsd_client._api.memory.copies import check_host, is_devices_only, is_hosts, refuse_in_capture
from pympsd_client._arguments.bindings import members
from pympsd_client._arguments.copy_structs import Copy3D, CopySide
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._objects.arrays.array import arrays
from pympsd_client._objects.arrays.shapes import element_bytes
from pympsd_client._objects.context import Context, context_of, current, require_context
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.memory.allocations import ordinal_at
from pympsd_client._objects.memory.region_copy import CopyExtent, CopyRegion

_TYPES: Final = members("CUmemorytype", "CU_MEMORYTYPE_")
_MAX_ADDRESSES: Final = 1 << 64


def copy(description: Copy3D | None, stream: int, wait: bool = False) -> None:
    """Copy rows (2D) or slices of rows (3D) between host memory, device memory and arrays, in stream order.

    A pitch of 0 means the offset in a row plus the width, a height of 0 the offset plus the height. The asynchronous
    form returns early only if neither side is pageable host memory. As on a GPU (driver 580), an empty copy succeeds
    even if its sides are wrong. Raise INVALID_VALUE for a pitch or height that is too small, a pitch above MAX_PITCH,
    NULL, parts of an array's elements, and elements beyond its end; INVALID_HANDLE for a handle of anything else.
    """
    context = require_context()
    if description is None:
        raise invalid_value("the description of the copy is NULL")
    pair = regions(description, context)
    if pair is not None:
        region_copy.copy(*pair, stream, wait)


def copy_peer(description: tuple[Copy3D, int, int] | None, stream: int) -> None:
    """Copy between the devices of two contexts in stream order, as cuMemcpy3DAsync does, but without peer access.

    Raise INVALID_CONTEXT for a handle of no context, INVALID_VALUE if a side is not on its context's device.
    """
    current().usable()
    if description is None:
        raise invalid_value("the description of the copy is NULL")
    described, *handles = description
    if not (described.width and described.height and described.depth):
        return  # as for cuMemcpy3D, an empty copy succeeds even if its sides or contexts are wrong
    devices = [context_of(handle).device for handle in handles]
    if devices[0] is not devices[1]:
        refuse_in_capture(stream, "cuMemcpy3DPeer")
    for side, device, name in zip((described.destination, described.source), devices, ("dst", "src"), strict=True):
        if side.memory_type == _TYPES["ARRAY"]:
            ordinal = arrays.find(side.array).context.device.ordinal
        elif side.memory_type == _TYPES["DEVICE"] and side.device:
            ordinal = ordinal_at(side.device)
        else:
            continue
        if ordinal != device.ordinal:
            raise invalid_value(f"the memory of {name} is not on the device of {name}Context")
    copy(described, stream)


def regions(description: Copy3D, context: Context) -> tuple[CopyRegion, CopyRegion, CopyExtent] | None:
    """Return the destination, source and extent of a copy, or None for an empty copy; raise CudaError."""
    extent = CopyExtent(description.width, description.height, description.depth)
    if not extent.bytes:
        return None
    most = context.device.properties.attributes.get("MAX_PITCH", _MAX_ADDRESSES)
    destination = _region(description.destination, "dst", extent, most)
    return destination, _region(description.source, "src", extent, most), extent


def _region(side: CopySide, name: str, extent: CopyExtent, most: int) -> CopyRegion:
    """Return a side of a copy as a region; raise the errors of `copy`, which name the side (``name``: dst or src)."""
    kind = side.memory_type
    if kind not in _TYPES.values():
        raise invalid_value(f"{name}MemoryType must be HOST, DEVICE, ARRAY or UNIFIED (1 to 4), not {kind}")
    if side.level:
        raise invalid_value(f"{name}LOD must be 0, not {side.level}")
    if kind == _TYPES["ARRAY"]:
        return _array_region(side, name, extent)
    end, last = side.x + extent.width, side.y + extent.height
    pitch, rows = side.pitch or end, side.rows or last
    if pitch < end:
        raise invalid_value(f"{name}Pitch is {pitch}: less than {name}XInBytes and the width, {end}")
    if side.pitch > most:
        raise invalid_value(f"{name}Pitch is {pitch}: more than the device's MAX_PITCH, {most}")
    if rows < last:
        raise invalid_value(f"{name}Height is {rows}: less than {name}Y and the height, {last}")
    base = side.host if kind == _TYPES["HOST"] else side.device
    if base == 0:
        raise invalid_value(f"the {name} pointer is NULL; give an address that belongs to {name}MemoryType")
    is_host = not is_devices_only(base) if kind == _TYPES["HOST"] else kind == _TYPES["UNIFIED"] and is_hosts(base)
    region = CopyRegion(is_host, base + (side.z * rows + side.y) * pitch + side.x, pitch, pitch * rows)
    if region.address + region.span(extent) > _MAX_ADDRESSES:
        raise invalid_value(f"the copy does not end within the address space: {name} begins at {region.address:#x}")
    if is_host and kind == _TYPES["UNIFIED"]:
        check_host(region.address, region.span(extent))
    return region


def _array_region(side: CopySide, name: str, extent: CopyExtent) -> CopyRegion:
    """Return a side of a copy that is an array as a region; raise INVALID_VALUE, INVALID_HANDLE."""
    array = arrays.find(side.array)
    element = element_bytes(array.description)
    if side.x % element or extent.width % element:
        raise invalid_value(
            f"{name}XInBytes and WidthInBytes must be multiples of the array's element of {element} bytes, "
            f"not {side.x} and {extent.width}"
        )
    ends = (side.x + extent.width, side.y + extent.height, side.z + extent.depth)
    sizes = (array.pitch, array.rows, array.slices)
    if any(end > size for end, size in zip(ends, sizes, strict=True)):
        raise invalid_value(
            f"the copy ends at {ends[0]} bytes of row {ends[1]} of slice {ends[2]} of the {name} array, which has "
            f"{sizes[2]} slices of {sizes[1]} rows of {sizes[0]} bytes"
        )
    return CopyRegion(False, array.address, array.pitch, array.slice_pitch).at(side.x, side.y, side.z)
