"""Allocations, fills and attributes of addresses (CUDA runtime API, Memory Management and Unified Addressing)."""

import struct
from ctypes import memmove
from typing import Final

from pympsd.vocabulary.device_properties import ordinal_of
from pympsd.vocabulary.results import Result
from pympsd_client._api.memory import pointer
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import AttributeValue, check_not_null
from pympsd_client._objects.context import current
from pympsd_client._objects.memory.pinned import DEVICE_MAP
from pympsd_client._objects.process import process
from pympsd_client.routing.driver import api

_ELEMENT_BYTES: Final = 4
_EXTENT: Final = struct.Struct("=3Q")
_PITCHED: Final = struct.Struct("=4Q")
_ATTRIBUTES: Final = struct.Struct("=iiQQ")
_MEMORY_TYPE, _DEVICE_POINTER, _HOST_POINTER, _IS_MANAGED, _DEVICE = 2, 3, 4, 8, 9
"""Values of CUpointer_attribute."""
_UNREGISTERED, _MANAGED = 0, 3
"""cudaMemoryType; 1 is host memory and 2 device memory, as in CUmemorytype."""


def is_device(address: int) -> bool:
    """Return whether an address is in the window of a visible device."""
    ordinal = ordinal_of(address)
    return any(device.ordinal == ordinal for device in process.require().devices)


def allocate(size: int) -> int:
    """Return the address of new device memory, 0 for 0 bytes; raise OUT_OF_MEMORY."""
    return int(api.cuMemAlloc(size)) if size else 0


def allocate_async(size: int, stream: int) -> int:
    """Return the address of new memory in stream order, 0 for 0 bytes; raise OUT_OF_MEMORY."""
    return int(api.cuMemAllocAsync(size, stream)) if size else 0


def allocate_host(size: int, flags: int = 0) -> int:
    """Return the address of new page-locked memory, 0 for 0 bytes; raise OUT_OF_MEMORY."""
    return int(api.cuMemHostAlloc(size, flags))


def host_flags(address: int) -> int:
    """Return the flags of page-locked memory, which is always mapped (recorded on an H200)."""
    return int(api.cuMemHostGetFlags(address)) | DEVICE_MAP


def allocate_managed(size: int, flags: int) -> int:
    """Return the address of new managed memory, 0 for 0 bytes; raise OUT_OF_MEMORY."""
    return int(api.cuMemAllocManaged(size, flags)) if size else 0


def allocate_pitch(width: int, height: int) -> tuple[int, int]:
    """Return the address of memory for rows, and the bytes from row to row."""
    if not width or not height:
        return 0, 0
    address, pitch = api.cuMemAllocPitch(width, height, _ELEMENT_BYTES)
    return address, pitch


def allocate_3d(extent: bytes) -> bytes:
    """Return the cudaPitchedPtr of memory for slices of rows."""
    width, height, depth = _EXTENT.unpack(extent)
    address, pitch = allocate_pitch(width, height * depth)
    return _PITCHED.pack(address, pitch, width, height)


def free(address: int) -> None:
    """Free device memory; 0 has no effect, but the error of a fault is raised."""
    api.cuMemFree(address)


def register(address: int, size: int, flags: int) -> None:
    """Count memory of the program as page-locked; with unified addressing it is always mapped."""
    api.cuMemHostRegister(address, size, flags | DEVICE_MAP)


def free_host(address: int) -> None:
    """Free page-locked host memory; 0 has no effect, but the error of a fault is raised."""
    current().usable()
    api.cuMemFreeHost(address)


def fill(address: int, value: int, count: int, stream: int | None = None) -> None:
    """Set bytes in stream order; without a stream, wait if the program can access the memory."""
    if not count:
        return
    if stream is None:
        api.cuMemsetD8(address, value & 0xFF, count)
    else:
        api.cuMemsetD8Async(address, value & 0xFF, count, stream)


def fill_2d(address: int, pitch: int, value: int, width: int, height: int, stream: int | None = None) -> None:
    """Set the bytes of rows in stream order; without a stream, wait if the program can access the memory."""
    if not width or not height:
        return
    if stream is None:
        api.cuMemsetD2D8(address, pitch, value & 0xFF, width, height)
    else:
        api.cuMemsetD2D8Async(address, pitch, value & 0xFF, width, height, stream)


def fill_3d(pitched: bytes, value: int, extent: bytes, stream: int | None = None) -> None:
    """Set the bytes of rows of slices as `fill_2d` does; set none if not all are in an allocation."""
    address, pitch, _, rows = _PITCHED.unpack(pitched)
    width, height, depth = _EXTENT.unpack(extent)
    for index in reversed(range(depth)):  # the last one is the first to be beyond the end
        fill_2d(address + index * pitch * rows, pitch, value, width, height, stream)


def pointer_attributes(destination: int, address: int) -> None:
    """Write the cudaPointerAttributes of an address.

    Memory without attributes has the type Unregistered. An address is NULL if the device, or the program, cannot
    access the memory.
    """
    check_not_null("the cudaPointerAttributes", destination)
    try:
        kind = _attribute(_MEMORY_TYPE, address)
    except CudaError as error:
        if error.code != Result.ERROR_INVALID_VALUE:
            raise
        memmove(destination, _ATTRIBUTES.pack(_UNREGISTERED, -2, 0, address), _ATTRIBUTES.size)
        return
    if _attribute(_IS_MANAGED, address):
        kind = _MANAGED
    requested = _DEVICE, _DEVICE_POINTER, _HOST_POINTER
    device, device_pointer, host_pointer = map(_read_value, pointer.attributes(len(requested), requested, address))
    memmove(destination, _ATTRIBUTES.pack(kind, device, device_pointer, host_pointer), _ATTRIBUTES.size)


def _attribute(which: int, address: int) -> int:
    return _read_value(pointer.attribute(which, address))


def _read_value(value: AttributeValue) -> int:
    return int.from_bytes(value.packed, "little")
