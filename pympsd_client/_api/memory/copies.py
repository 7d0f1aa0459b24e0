"""Copies and fills of device memory (CUDA driver API, Memory Management). Sizes are in bytes.

A host pointer is an address or an object with a buffer; its size is checked if it is known. As in CUDA with unified
addressing, it may also be an address on a device. A stream is, as in CUDA, NULL or CU_STREAM_LEGACY,
CU_STREAM_PER_THREAD, or one that the program has created.
"""

import ctypes

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.transport import intercepted
from pympsd_client._objects import copies
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import context_of, current
from pympsd_client._objects.memory import allocations as device_memory
from pympsd_client._objects.memory import region_copy
from pympsd_client._objects.memory.pinned import is_memory, pinned
from pympsd_client._objects.memory.region_copy import CopyExtent, CopyRegion
from pympsd_client._objects.stream import resolve


def copy_any(destination: int, source: int, count: int, stream: int, wait: bool = False) -> None:
    """Copy between device and host memory; an address that is not on a device is the host's.

    The asynchronous form keeps stream order. Raise INVALID_VALUE for an address that is not in this process's memory.
    """
    current()
    to_host, from_host = (count and is_hosts(address) for address in (destination, source))
    for address, is_host in ((destination, to_host), (source, from_host)):
        if is_host:
            check_host(address, count)
    if to_host and from_host:
        copy_on_host(destination, source, count, stream)
    elif to_host:
        copy_device_to_host(HostMemory(destination), source, count, stream, wait)
    elif from_host:
        copy_host_to_device(destination, HostMemory(source), count, stream, wait)
    else:
        copy_device_to_device(destination, source, count, stream, wait)


def copy_on_host(destination: int, source: int, count: int, stream: int) -> None:
    """Copy host memory after a stream's earlier work, because that may access page-locked and managed memory."""
    of_destination, of_source = (CopyRegion(True, address, count, count) for address in (destination, source))
    region_copy.copy(of_destination, of_source, CopyExtent(count, 1, 1), stream, True)


def is_hosts(address: int) -> bool:
    """Return whether an address is the host's, because it is in page-locked memory or not on a visible device."""
    return pinned.region_at(address) is not None or not device_memory.is_on_a_device(address)


def is_devices_only(address: int) -> bool:
    """Return whether an address is a visible device's, and the CPU cannot access it."""
    return not is_memory(address, 1) and device_memory.is_on_a_device(address)


def check_host(address: int, count: int) -> None:
    """Raise INVALID_VALUE unless a range of host addresses is within this process's memory."""
    region = pinned.region_at(address)
    if region is None and not is_memory(address, count):
        raise invalid_value(f"{count} bytes from {address:#x} are neither all this process's nor a visible device's")
    if region is not None and count > region.address + region.size - address:
        raise invalid_value(f"{count} bytes from {address:#x} are not all within page-locked memory")


def copy_peer_to_peer(
    destination: int, destination_context: int, source: int, source_context: int, count: int, stream: int
) -> None:
    """Copy between the devices of two contexts, through this process, so that no peer access is needed.

    The asynchronous form keeps stream order; between two devices it waits. The addresses determine the devices, so
    the contexts may be of other devices, or NULL, as on a GPU with unified addresses. Raise INVALID_CONTEXT, and
    STREAM_CAPTURE_UNSUPPORTED in a capturing stream if the devices differ.
    """
    for handle in (destination_context, source_context):
        if handle:
            context_of(handle)
    if device_memory.ordinal_at(source) != device_memory.ordinal_at(destination):
        refuse_in_capture(stream, "cuMemcpyPeer")
    copy_device_to_device(destination, source, count, stream)


def refuse_in_capture(stream: int, call: str) -> None:
    """Raise STREAM_CAPTURE_UNSUPPORTED in a capturing stream, whose capture becomes invalid: a copy between devices.

    On a GPU cuMemcpyPeer is refused, and cuMemcpy between two devices becomes a node.
    """
    if (by := intercepted.by) is not None:
        by.refuse(*resolve(stream), f"{call} between two devices")


def copy_host_to_device(destination: int, host: HostMemory, count: int, stream: int, wait: bool = False) -> None:
    """Copy from the host; the synchronous form returns when the copy is complete.

    The asynchronous form keeps stream order. When it returns, the source may change unless it is page-locked.
    """
    context, its_stream = resolve(stream)
    if count == 0:
        context.usable()
        return
    host.check(count, to_be_written=False)
    if host.size is None and is_devices_only(host.address):
        copy_device_to_device(destination, host.address, count, stream, wait)
        return
    device_memory.check_range(destination, count)
    wait = wait or device_memory.allocations.is_synchronous(destination)
    at, at_stream = device_memory.place(destination, context, its_stream, stream)
    if pinned.is_reached_by(at.usable().transport, host.address, count):
        # In another context the copy is not in the caller's stream, so later work would not wait for it.
        operation, waits = operations.COPY_TO_DEVICE_PINNED, wait or at is not context
        copies.copy_by_device(at, operation, at_stream, destination, host.address, count, wait=waits)
    elif source := device_memory.devices_address(at, host.address, count):
        # By the device, because earlier work of the stream may write to the source.
        operation, waits = operations.COPY_ON_DEVICE, wait or at is not context
        copies.copy_by_device(at, operation, at_stream, destination, source, count, wait=waits)
    else:
        copies.copy_to_device(at, at_stream, destination, host.address, count, wait)


def copy_device_to_host(host: HostMemory, source: int, count: int, stream: int, wait: bool = False) -> None:
    """Copy to the host; the synchronous form returns when the copy is complete.

    The asynchronous form keeps stream order, and waits too unless the host memory is page-locked.
    """
    context, its_stream = resolve(stream)
    if count == 0:
        context.usable()
        return
    host.check(count, to_be_written=True)
    if host.size is None and is_devices_only(host.address):
        copy_device_to_device(host.address, source, count, stream, wait)
        return
    device_memory.check_range(source, count)
    at, at_stream = device_memory.place(source, context, its_stream, stream)
    if pinned.is_reached_by(at.usable().transport, host.address, count):
        operation, waits = operations.COPY_FROM_DEVICE_PINNED, wait or at is not context
        copies.copy_by_device(at, operation, at_stream, host.address, source, count, wait=waits)
    else:
        copies.copy_from_device(at, at_stream, host.address, source, count)


def copy_device_to_device(destination: int, source: int, count: int, stream: int, wait: bool = False) -> None:
    """Copy from device memory to device memory in stream order; between two devices, wait until it is done.

    The synchronous form waits too if the CPU can access the source or the target.
    """
    context, its_stream = resolve(stream)
    if count == 0:
        context.usable()
        return
    device_memory.check_range(destination, count)
    device_memory.check_range(source, count)
    reading = device_memory.place(source, context, its_stream, stream)
    writing = device_memory.place(destination, context, its_stream, stream)
    if device_memory.ordinal_at(source) == device_memory.ordinal_at(destination) or writing == reading:
        copies.copy_on_device(*reading, destination, source, count)
    else:
        copies.copy_between_devices(writing, reading, destination, source, count)
    if device_memory.allocations.is_synchronous(destination, source) or (
        wait and (is_the_programs_too(destination) or is_the_programs_too(source))
    ):
        streams.synchronize(stream)


def fill(
    destination: int,
    value: int,
    width: int,
    count: int,
    stream: int,
    pitch: int = 0,
    height: int = 1,
    wait: bool = False,
) -> None:
    """Set N elements of 1, 2 or 4 bytes in stream order; the address must be aligned to their size.

    The 2D forms set Width elements in each of Height rows, which begin dstPitch bytes apart. The synchronous form
    waits if the CPU can access the memory. Page-locked host memory outside of the devices' windows is set by this
    process, which waits. Raise INVALID_VALUE for memory that kernels of the stream's context cannot access.
    """
    context, its_stream = resolve(stream)
    if count == 0 or height == 0:
        context.usable()
        return
    region = None if device_memory.is_on_a_device(destination) else pinned.region_at(destination)
    if region is not None and region.pages is not None:
        streams.synchronize(stream)
        device_memory.check_fill(destination, width, count, pitch, height)
        check_host(destination, (height - 1) * pitch + width * count)
        row = value.to_bytes(width, "little") * count
        for number in range(height):
            ctypes.memmove(destination + number * pitch, row, len(row))
        return
    device_memory.check_range(destination, (height - 1) * pitch + width * count, context)
    at, at_stream = device_memory.place(destination, context, its_stream, stream)
    device_memory.fill(at, at_stream, destination, value, width, count, pitch, height)
    is_elsewhere = at is not context  # the stream's later work would not wait for the fill
    if (
        is_elsewhere
        or device_memory.allocations.is_synchronous(destination)
        or (wait and is_the_programs_too(destination))
    ):
        at.call(operations.SYNCHRONIZE_STREAM, at_stream)


def is_the_programs_too(address: int) -> bool:
    """Return whether the CPU can access memory at a device's address, because it is page-locked or managed."""
    return pinned.holds(address) or device_memory.allocations.is_shared(address)
