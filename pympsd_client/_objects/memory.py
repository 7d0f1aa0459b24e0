"""Device memory: allocation, whose an address is, fills (CUDA driver API, Memory Management)."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_facts import ordinal_of
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._command_stream import operations
from pympsd_client._objects.context import Context, context_on, current
from pympsd_client._objects.handle_table import HandleTable
from pympsd_client._objects.module import modules
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import synchronize

_ELEMENT_BYTES: Final = (4, 8, 16)
_PITCH_ALIGNMENT: Final = 512
"""Of rows that cuMemAllocPitch gives, as on devices of compute capability 2.0 and later."""


@frozen(eq=False)
class Allocation:
    """An allocation by its address, with the context that made it."""

    handle: int
    context: Context


allocations: Final[HandleTable[Allocation]] = HandleTable("allocation", "freed, or never made")


def allocate(count: int) -> int:
    """Return the address of new device memory; OUT_OF_MEMORY (a limit of MPS counts too), INVALID_VALUE for 0."""
    context = current()
    context.usable()
    if count == 0:
        raise invalid_value("an allocation has at least 1 byte")
    (address,) = operations.ALLOCATE.answer.unpack_from(context.call(operations.ALLOCATE, count))
    return allocations.add(Allocation(int(address), context)).handle


def allocate_pitch(width: int, height: int, element_bytes: int) -> tuple[int, int]:
    """Return the address of new device memory for rows, and the bytes between them, a multiple of 512.

    INVALID_VALUE for elements of other than 4, 8 or 16 bytes and for an empty extent; OUT_OF_MEMORY.
    """
    if element_bytes not in _ELEMENT_BYTES:
        raise invalid_value(f"the element size is 4, 8 or 16 bytes, not {element_bytes}")
    pitch = -(-width // _PITCH_ALIGNMENT) * _PITCH_ALIGNMENT
    if pitch * height >= 1 << 64:
        raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"{height} rows of {pitch} bytes are more than any device has")
    return allocate(pitch * height), pitch


def free(address: int) -> None:
    """Free what cuMemAlloc gave; INVALID_VALUE for any other address. Address 0 is nothing to free."""
    # Taken out first: once it is free another thread may be given the same address.
    allocation = allocations.remove(address)
    if allocation is None:
        current().usable()
        if address:
            raise invalid_value(f"{address:#x} is not the start of an allocation of this process")
        return
    try:
        allocation.context.call(operations.FREE, address)
    except BaseException:
        allocations.put_back(allocation)
        raise


def info() -> tuple[int, int]:
    """Return free and total bytes for the current context; total is the MPS limit where there is one."""
    rest, total = operations.MEMORY_INFO.answer.unpack_from(current().call(operations.MEMORY_INFO))
    return int(rest), int(total)


def ordinal_at(address: int) -> int:
    """Return the ordinal of the device an address is on: by its window, else as a module's variable.

    A real GPU's driver places variables itself, outside of every device's window.
    """
    ordinal = ordinal_of(address)
    if all(device.ordinal != ordinal for device in process.require().devices):
        for module in modules.all():
            if module.holds(address):
                return module.context.device.ordinal
    return ordinal


def owner(address: int) -> Context:
    """Return a context on the device that an address belongs to; INVALID_VALUE when it is on none."""
    current().usable()
    ordinal = ordinal_at(address)
    if all(device.ordinal != ordinal for device in process.require().devices):
        raise invalid_value(f"{address:#x} is no address of a visible device (a host pointer, perhaps)")
    context = context_on(ordinal)
    context.usable()
    return context


def place(address: int, context: Context, stream: int, handle: int) -> tuple[Context, int]:
    """Return (context, stream) for work on an address that is to come after a stream's work so far.

    That is the stream itself, unless the address is on another device: then the stream is waited for.
    """
    if context.device.ordinal == ordinal_at(address):
        return context, stream
    synchronize(handle)
    return owner(address), 0


def fill(
    context: Context, stream: int, destination: int, value: int, width: int, count: int, pitch: int, height: int
) -> None:
    """Set ``count`` elements of ``width`` bytes in each row, in stream order; return at once.

    Rows begin ``pitch`` bytes apart.
    """
    if destination % width:
        raise invalid_value(f"{destination:#x} is not aligned to the element's {width} bytes")
    if height == 1:
        pitch = 0
    elif pitch % width or pitch < width * count:
        raise invalid_value(
            f"the pitch is {pitch} bytes; it is a multiple of the element's {width} and holds a row: {width * count}"
        )
    elif destination + pitch * height > 1 << 64:
        raise invalid_value(f"{height} rows {pitch} bytes apart do not end within the address space")
    context.post(operations.FILL, stream, destination, value, width, count, pitch, height)
