"""Page-locked host memory (CUDA driver API, Memory Management): what `_pinned` keeps, by its calls.

What is allocated here the device of the current context copies from and to by itself, asynchronously; with another
device, and memory that is registered, copies go as for any memory. Before Volta the size of /dev/shm bounds both.
"""

from __future__ import annotations

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.errors import DONE, SUCCESS, CudaError, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.numbers import unsigned
from pympsd_client._objects.pinned_memory import pinned
from pympsd_client._objects.process import current, here
from pympsd_client._objects.shared_pinned_memory import share

_NOT_MAPPED: Final = (
    "host memory is not mapped into this device's address space (device attribute CAN_MAP_HOST_MEMORY is 0). Use "
    "cuMemAlloc, and cuMemcpyHtoD and cuMemcpyDtoH"
)


@door(1)
def cuMemAllocHost(bytesize: Any) -> tuple[Any, ...]:
    """Return the address of new page-locked memory; OUT_OF_MEMORY, INVALID_VALUE for 0."""
    return SUCCESS, _allocate(bytesize, 0)


@door(1)
def cuMemHostAlloc(bytesize: Any, Flags: Any) -> tuple[Any, ...]:
    """Return the address of new page-locked memory; the flags CU_MEMHOSTALLOC_* make no difference here."""
    return SUCCESS, _allocate(bytesize, Flags)


@door()
def cuMemFreeHost(p: Any) -> tuple[Any, ...]:
    """Free what cuMemAllocHost or cuMemHostAlloc gave; INVALID_VALUE for any other address."""
    here.require()
    with HostMemory(p) as memory:
        address = memory.address
    pinned.free(address)
    return DONE


@door()
def cuMemHostRegister(p: Any, bytesize: Any, Flags: Any) -> tuple[Any, ...]:
    """Count memory of the program as page-locked: a buffer, or an address. INVALID_VALUE where none is mapped.

    Copies from and to it are as quick as of any memory: only what cuMemHostAlloc gave is copied by the device itself.
    HOST_MEMORY_ALREADY_REGISTERED where some of it is; NOT_SUPPORTED for I/O memory and for the flag READ_ONLY.
    """
    bounded = _bounded()
    with HostMemory(p) as memory:
        size = unsigned(bytesize)
        if memory.size is not None and size > memory.size:
            raise invalid_value(f"{size} bytes are more than the host buffer has: {memory.size}")
        pinned.register(memory.address, size, unsigned(Flags, 32), bounded)
    return DONE


@door()
def cuMemHostUnregister(p: Any) -> tuple[Any, ...]:
    """Undo cuMemHostRegister; HOST_MEMORY_NOT_REGISTERED for what it was not called with."""
    here.require()
    with HostMemory(p) as memory:
        address = memory.address
    pinned.unregister(address)
    return DONE


@door(1)
def cuMemHostGetFlags(p: Any) -> tuple[Any, ...]:
    """Return the flags that page-locked memory was allocated with; INVALID_VALUE outside of any."""
    here.require()
    with HostMemory(p) as memory:
        region = pinned.region_at(memory.address)
    if region is None or region.pages is None:
        raise invalid_value(f"{memory.address:#x} is not within what cuMemAllocHost or cuMemHostAlloc gave")
    return SUCCESS, region.flags


@door(1)
def cuMemHostGetDevicePointer(p: Any, Flags: Any) -> tuple[Any, ...]:
    """Return the address by which kernels of the current context reach page-locked memory: the same one.

    NOT_SUPPORTED where the device maps no host memory (attribute CAN_MAP_HOST_MEMORY); INVALID_VALUE for what
    cuMemAllocHost or cuMemHostAlloc did not give on this device.
    """
    here.require()
    context = current()
    opened = context.usable()
    if not context.device.facts.attributes.get("CAN_MAP_HOST_MEMORY"):
        raise CudaError(Result.ERROR_NOT_SUPPORTED, f"cuMemHostGetDevicePointer: {_NOT_MAPPED}")
    if unsigned(Flags, 32) != 0:
        raise invalid_value(f"cuMemHostGetDevicePointer takes no flags: 0, not {Flags}")
    with HostMemory(p) as memory:
        address = memory.address
    if not pinned.reached_by(opened.transport, address, 1):
        raise invalid_value(
            f"{address:#x} is not within what cuMemAllocHost or cuMemHostAlloc gave on device {context.device.number}"
        )
    return SUCCESS, CUdeviceptr(address)


def _allocate(bytesize: Any, flags: Any) -> int:
    size, bounded = unsigned(bytesize), _bounded()
    context = current()
    return pinned.allocate(size, unsigned(flags, 32), bounded, lambda wanted: share(context, wanted))


def _bounded() -> bool:
    """Whether /dev/shm bounds this process: a client of MPS that sees devices before Volta (then all of them are).

    Raises CudaError without a context that works.
    """
    current().usable()
    connection = here.require()
    return connection.provisions and not all(device.facts.is_volta_or_newer for device in connection.devices)
