"""Page-locked host memory (CUDA driver API, Memory Management): what `_pinned` keeps, by its calls.

It is ordinary memory whose copies work as any other's; on devices before Volta the size of /dev/shm bounds it.
"""

from __future__ import annotations

from typing import Any

from pympsd_client._doors import door
from pympsd_client._errors import DONE, SUCCESS, invalid_value
from pympsd_client._host import HostMemory
from pympsd_client._numbers import unsigned
from pympsd_client._pinned import pinned
from pympsd_client._process import current, here


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


def _allocate(bytesize: Any, flags: Any) -> int:
    size, bounded = unsigned(bytesize), _bounded()
    return pinned.allocate(size, unsigned(flags, 32), bounded)


def _bounded() -> bool:
    """Whether /dev/shm bounds this process: a client of MPS that sees devices before Volta (then all of them are).

    Raises CudaError without a context that works.
    """
    current().usable()
    connection = here.require()
    return connection.provisions and not all(device.facts.is_volta_or_newer for device in connection.devices)
