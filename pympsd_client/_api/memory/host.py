"""Page-locked host memory (CUDA driver API, Memory Management): the calls over `_objects.memory.pinned`.

The device of the current context copies from and to allocated memory directly and asynchronously. Copies with another
device, and copies of registered memory, work as with pageable memory. Kernels can access registered memory after
cuMemHostGetDevicePointer, which replaces the program's pages by pages that the executor shares
(`_objects.memory.pinned`), and at an address other than the program's (device attribute
CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0). Before Volta the size of /dev/shm bounds both kinds of memory.
"""

from typing import Final

from pympsd_client._arguments.errors import invalid_value, not_supported
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.context import current, require_context
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.memory.shared_pages import share
from pympsd_client._objects.process import process

_NOT_MAPPED: Final = (
    "host memory is not mapped into this device's address space (device attribute CAN_MAP_HOST_MEMORY is 0). Use "
    "cuMemAlloc, and cuMemcpyHtoD and cuMemcpyDtoH"
)


def allocate(size: int, flags: int) -> int:
    """Return the address of new page-locked memory, 0 for 0 bytes; raise OUT_OF_MEMORY, INVALID_VALUE.

    Kernels of the current context's device access it at the same address. The flags CU_MEMHOSTALLOC_* have no effect.
    """
    bounded = _is_bounded()
    context = current()
    return pinned.allocate(size, flags, bounded, lambda count: share(context, count), context)


def free(address: int) -> None:
    """Free memory of cuMemAllocHost or cuMemHostAlloc; raise INVALID_VALUE for any other address."""
    pinned.free(address)


def register(memory: HostMemory, size: int, flags: int) -> None:
    """Count memory of the program, given as a buffer or an address, as page-locked.

    Copies do not get faster, because the device itself copies only memory of cuMemHostAlloc. Raise INVALID_VALUE if
    the memory is not mapped, HOST_MEMORY_ALREADY_REGISTERED if a part of it is registered, NOT_SUPPORTED for I/O
    memory and the flag READ_ONLY.
    """
    bounded = _is_bounded()
    if memory.size is not None and size > memory.size:
        raise invalid_value(f"{size} bytes are more than the host buffer has: {memory.size}")
    pinned.register(memory.address, size, flags, bounded, current())


def unregister(address: int) -> None:
    """Undo cuMemHostRegister; raise HOST_MEMORY_NOT_REGISTERED for an address that was not passed to it.

    Raise INVALID_VALUE for NULL.
    """
    check_not_null("the memory", address)
    pinned.unregister(address)


def flags(address: int) -> int:
    """Return the flags with which page-locked memory was allocated or registered.

    Raise INVALID_VALUE for any other address.
    """
    current()
    region = pinned.region_at(address)
    if region is None:
        raise invalid_value(f"{address:#x} is not within page-locked memory of cuMemHostAlloc or cuMemHostRegister")
    return region.flags


def device_pointer(address: int, flags: int) -> int:
    """Return the address at which kernels of the current context access page-locked memory.

    It is the same address for allocated memory, another one for registered memory. Raise NOT_SUPPORTED if the device
    cannot map host memory (attribute CAN_MAP_HOST_MEMORY), and for registered memory whose pages cannot be replaced:
    shared pages, this thread's stack, pages with other registered memory. Raise INVALID_VALUE for memory of another
    device or registered without CU_MEMHOSTREGISTER_DEVICEMAP, and OUT_OF_MEMORY.
    """
    context = require_context()
    if not context.device.properties.attributes.get("CAN_MAP_HOST_MEMORY"):
        raise not_supported(f"cuMemHostGetDevicePointer: {_NOT_MAPPED}")
    if flags != 0:
        raise invalid_value(f"cuMemHostGetDevicePointer takes no flags: they must be 0, not {flags}")
    return pinned.device_address(context, address)


def _is_bounded() -> bool:
    """Return whether the size of /dev/shm bounds this process: under MPS, if a visible device is older than Volta.

    Raise CudaError without a usable context.
    """
    current().usable()
    connection = process.require()
    return connection.provisions and not all(device.properties.is_volta_or_newer for device in connection.devices)
