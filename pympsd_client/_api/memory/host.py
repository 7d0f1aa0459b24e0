"""Page-locked host memory (CUDA driver API, Memory Management): the calls over `_objects.memory.pinned`.

The device of the current context copies from and to allocated memory directly and asynchronously; copies with another
device, and of registered memory, work as for any memory. Kernels access registered memory, by an address other than
the program (device attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0), from cuMemHostGetDevicePointer on, which
puts pages that the executor shares in the place of the program's (`_objects.memory.pinned`). Before Volta the size of
/dev/shm bounds both.
"""

from typing import Final

from pympsd_client._arguments.errors import invalid_value, not_supported
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects.context import current, require_context
from pympsd_client._objects.memory.pinned import pinned
from pympsd_client._objects.memory.shared_pages import share
from pympsd_client._objects.process import process

_NOT_MAPPED: Final = (
    "host memory is not mapped into this device's address space (device attribute CAN_MAP_HOST_MEMORY is 0). Use "
    "cuMemAlloc, and cuMemcpyHtoD and cuMemcpyDtoH"
)


def allocate(size: int, flags: int) -> int:
    """Return the address of new page-locked memory; raise OUT_OF_MEMORY, INVALID_VALUE for 0.

    Kernels of the current context's device reach it by the same address. The flags CU_MEMHOSTALLOC_* make no
    difference here: other devices copy it, and their kernels do not reach it.
    """
    bounded = _is_bounded()
    context = current()
    return pinned.allocate(size, flags, bounded, lambda count: share(context, count), context)


def free(address: int) -> None:
    """Free memory of cuMemAllocHost or cuMemHostAlloc; raise INVALID_VALUE for any other address."""
    pinned.free(address)


def register(memory: HostMemory, size: int, flags: int) -> None:
    """Count memory of the program as page-locked: a buffer, or an address. Raise INVALID_VALUE if it is not mapped.

    Copies from and to it are as fast as of any memory: only memory of cuMemHostAlloc is copied by the device itself.
    HOST_MEMORY_ALREADY_REGISTERED if a part of the memory is registered; NOT_SUPPORTED for I/O memory and the flag
    READ_ONLY.
    """
    bounded = _is_bounded()
    if memory.size is not None and size > memory.size:
        raise invalid_value(f"{size} bytes are more than the host buffer has: {memory.size}")
    pinned.register(memory.address, size, flags, bounded, current())


def unregister(address: int) -> None:
    """Undo cuMemHostRegister; raise HOST_MEMORY_NOT_REGISTERED for an address it was not called with."""
    pinned.unregister(address)


def flags(address: int) -> int:
    """Return the flags that page-locked memory was allocated with; raise INVALID_VALUE for any other address."""
    region = pinned.region_at(address)
    if region is None or region.pages is None:
        raise invalid_value(f"{address:#x} is not within memory that cuMemAllocHost or cuMemHostAlloc returned")
    return region.flags


def device_pointer(address: int, flags: int) -> int:
    """Return the address at which kernels of the current context access page-locked memory; allocated: the same one.

    NOT_SUPPORTED if the device maps no host memory (attribute CAN_MAP_HOST_MEMORY), and for registered memory whose
    pages cannot be replaced: shared ones, this thread's stack, those of other registered memory. INVALID_VALUE for
    memory of another device, or registered without CU_MEMHOSTREGISTER_DEVICEMAP; OUT_OF_MEMORY.
    """
    context = require_context()
    if not context.device.properties.attributes.get("CAN_MAP_HOST_MEMORY"):
        raise not_supported(f"cuMemHostGetDevicePointer: {_NOT_MAPPED}")
    if flags != 0:
        raise invalid_value(f"cuMemHostGetDevicePointer takes no flags: they must be 0, not {flags}")
    return pinned.device_address(context, address)


def _is_bounded() -> bool:
    """Return whether /dev/shm bounds this process: a client of MPS that sees devices before Volta (then all are).

    Raise CudaError without a usable context.
    """
    current().usable()
    connection = process.require()
    return connection.provisions and not all(device.properties.is_volta_or_newer for device in connection.devices)
