"""Device memory: allocation, copies, fills (CUDA driver API, Memory Management). Sizes in bytes.

A host pointer is an address or anything with a buffer; its size is checked where it is known. Streams as in CUDA:
NULL and CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, or one that was created.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pympsd_client._api.entry_point import door
from pympsd_client._arguments.bindings import CUdeviceptr
from pympsd_client._arguments.errors import DONE, SUCCESS, invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._arguments.numbers import number, unsigned
from pympsd_client._objects import memory as device_memory
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import context_of
from pympsd_client._objects.pinned_memory import pinned
from pympsd_client._objects.process import here
from pympsd_client._objects.stream import resolve


@door(1)
def cuMemAlloc(bytesize: Any) -> tuple[Any, ...]:
    """Return the address of new device memory; OUT_OF_MEMORY (a limit of MPS counts too), INVALID_VALUE for 0."""
    return SUCCESS, CUdeviceptr(device_memory.allocate(unsigned(bytesize)))


@door()
def cuMemFree(dptr: Any) -> tuple[Any, ...]:
    """Free what cuMemAlloc gave; INVALID_VALUE for any other address."""
    device_memory.free(number(dptr))
    return DONE


@door(2)
def cuMemGetInfo() -> tuple[Any, ...]:
    """Return free and total bytes for the current context; total is the MPS limit where there is one."""
    return SUCCESS, *device_memory.info()


@door()
def cuMemcpyHtoD(dstDevice: Any, srcHost: Any, ByteCount: Any) -> tuple[Any, ...]:
    """Copy from the host; returns when the bytes have arrived."""
    return _host_to_device(dstDevice, srcHost, ByteCount, 0, wait=True)


@door()
def cuMemcpyHtoDAsync(dstDevice: Any, srcHost: Any, ByteCount: Any, hStream: Any) -> tuple[Any, ...]:
    """Copy from the host in stream order; the source may change as soon as this returns, unless it is page-locked."""
    return _host_to_device(dstDevice, srcHost, ByteCount, hStream, wait=False)


@door()
def cuMemcpyDtoH(dstHost: Any, srcDevice: Any, ByteCount: Any) -> tuple[Any, ...]:
    """Copy to the host; returns when the bytes are there."""
    return _device_to_host(dstHost, srcDevice, ByteCount, 0, wait=True)


@door()
def cuMemcpyDtoHAsync(dstHost: Any, srcDevice: Any, ByteCount: Any, hStream: Any) -> tuple[Any, ...]:
    """Copy to the host in stream order; this too returns when the bytes are there, unless they are page-locked."""
    return _device_to_host(dstHost, srcDevice, ByteCount, hStream, wait=False)


@door()
def cuMemcpyDtoD(dstDevice: Any, srcDevice: Any, ByteCount: Any) -> tuple[Any, ...]:
    """Copy from device memory to device memory, of one device or of two."""
    return _device_to_device(dstDevice, srcDevice, ByteCount, 0)


@door()
def cuMemcpyDtoDAsync(dstDevice: Any, srcDevice: Any, ByteCount: Any, hStream: Any) -> tuple[Any, ...]:
    """Copy from device memory to device memory in stream order (between two devices: waits)."""
    return _device_to_device(dstDevice, srcDevice, ByteCount, hStream)


@door()
def cuMemcpy(dst: Any, src: Any, ByteCount: Any) -> tuple[Any, ...]:
    """Copy between addresses of devices and of page-locked host memory; INVALID_VALUE for any other."""
    return _between_any(dst, src, ByteCount, 0, wait=True)


@door()
def cuMemcpyAsync(dst: Any, src: Any, ByteCount: Any, hStream: Any) -> tuple[Any, ...]:
    """Copy between addresses of devices and of page-locked host memory, in stream order."""
    return _between_any(dst, src, ByteCount, hStream, wait=False)


@door()
def cuMemcpyPeer(dstDevice: Any, dstContext: Any, srcDevice: Any, srcContext: Any, ByteCount: Any) -> tuple[Any, ...]:
    """Copy from a context's device to another's; staged here, so that no peer access is needed."""
    return _peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, 0)


@door()
def cuMemcpyPeerAsync(
    dstDevice: Any, dstContext: Any, srcDevice: Any, srcContext: Any, ByteCount: Any, hStream: Any
) -> tuple[Any, ...]:
    """Copy from a context's device to another's in stream order (between two devices: waits)."""
    return _peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream)


@door()
def cuMemsetD8(dstDevice: Any, uc: Any, N: Any) -> tuple[Any, ...]:
    """Set N bytes."""
    return _fill(dstDevice, uc, 1, N, 0)


@door()
def cuMemsetD16(dstDevice: Any, us: Any, N: Any) -> tuple[Any, ...]:
    """Set N elements of 2 bytes; the address is aligned to 2."""
    return _fill(dstDevice, us, 2, N, 0)


@door()
def cuMemsetD32(dstDevice: Any, ui: Any, N: Any) -> tuple[Any, ...]:
    """Set N elements of 4 bytes; the address is aligned to 4."""
    return _fill(dstDevice, ui, 4, N, 0)


@door()
def cuMemsetD8Async(dstDevice: Any, uc: Any, N: Any, hStream: Any) -> tuple[Any, ...]:
    """Set N bytes in stream order."""
    return _fill(dstDevice, uc, 1, N, hStream)


@door()
def cuMemsetD16Async(dstDevice: Any, us: Any, N: Any, hStream: Any) -> tuple[Any, ...]:
    """Set N elements of 2 bytes in stream order."""
    return _fill(dstDevice, us, 2, N, hStream)


@door()
def cuMemsetD32Async(dstDevice: Any, ui: Any, N: Any, hStream: Any) -> tuple[Any, ...]:
    """Set N elements of 4 bytes in stream order."""
    return _fill(dstDevice, ui, 4, N, hStream)


def _between_any(dst: Any, src: Any, size: Any, stream: Any, wait: bool) -> tuple[Any, ...]:
    """Unified addressing: what an address is says which way the copy goes."""
    to_host, from_host = (pinned.region_at(number(one)) is not None for one in (dst, src))
    if to_host and from_host:
        # In stream order: after the work before it, and done when this returns.
        streams.synchronize(stream)
        _within(dst, size)
        _within(src, size)
        ctypes.memmove(number(dst), number(src), unsigned(size))
        return DONE
    if to_host:
        _within(dst, size)
        return _device_to_host(number(dst), src, size, stream, wait)
    if from_host:
        _within(src, size)
        return _host_to_device(dst, number(src), size, stream, wait)
    return _device_to_device(dst, src, size, stream)


def _within(host: Any, size: Any) -> None:
    address = number(host)
    region = pinned.region_at(address)
    if region is None or unsigned(size) > region.address + region.size - address:
        raise invalid_value(f"{unsigned(size)} bytes from {address:#x} are not all within page-locked memory")


def _peer(to: Any, to_context: Any, source: Any, source_context: Any, size: Any, stream: Any) -> tuple[Any, ...]:
    here.require()
    for address, handle in ((to, to_context), (source, source_context)):
        context = context_of(number(handle))
        if unsigned(size) and device_memory.ordinal_at(number(address)) != context.device.ordinal:
            raise invalid_value(f"{number(address):#x} is not on the device of the context that was given for it")
    return _device_to_device(to, source, size, stream)


def _host_to_device(device: Any, host: Any, size: Any, stream: Any, wait: bool) -> tuple[Any, ...]:
    count, destination = unsigned(size), number(device)
    context, its_stream = resolve(stream)
    with HostMemory(host) as memory:
        if count == 0:
            context.usable()
            return DONE
        memory.check(count, to_be_written=False)
        device_memory.owner(destination)
        at, at_stream = device_memory.place(destination, context, its_stream, stream)
        if pinned.reached_by(at.usable().transport, memory.address, count):
            # Elsewhere than in the caller's stream nobody would wait for it.
            device_memory.from_pinned(at, at_stream, destination, memory.address, count, wait or at is not context)
        else:
            device_memory.to_device(at, at_stream, destination, memory.address, count, wait)
    return DONE


def _device_to_host(host: Any, device: Any, size: Any, stream: Any, wait: bool) -> tuple[Any, ...]:
    count, source = unsigned(size), number(device)
    context, its_stream = resolve(stream)
    with HostMemory(host) as memory:
        if count == 0:
            context.usable()
            return DONE
        memory.check(count, to_be_written=True)
        device_memory.owner(source)
        at, at_stream = device_memory.place(source, context, its_stream, stream)
        if pinned.reached_by(at.usable().transport, memory.address, count):
            device_memory.to_pinned(at, at_stream, memory.address, source, count, wait or at is not context)
        else:
            device_memory.from_device(at, at_stream, memory.address, source, count)
    return DONE


def _device_to_device(to: Any, source: Any, size: Any, stream: Any) -> tuple[Any, ...]:
    count, destination, start = unsigned(size), number(to), number(source)
    context, its_stream = resolve(stream)
    if count == 0:
        context.usable()
        return DONE
    device_memory.owner(destination)
    device_memory.owner(start)
    reading = device_memory.place(start, context, its_stream, stream)
    if device_memory.ordinal_at(start) == device_memory.ordinal_at(destination):
        device_memory.on_device(*reading, destination, start, count)
    else:
        writing = device_memory.place(destination, context, its_stream, stream)
        device_memory.between_devices(writing, reading, destination, start, count)
    return DONE


def _fill(device: Any, value: Any, width: int, size: Any, stream: Any) -> tuple[Any, ...]:
    count, destination, pattern = unsigned(size), number(device), unsigned(value, 8 * width)
    context, its_stream = resolve(stream)
    if count == 0:
        context.usable()
        return DONE
    device_memory.owner(destination)
    context, its_stream = device_memory.place(destination, context, its_stream, stream)
    device_memory.fill(context, its_stream, destination, pattern, width, count)
    return DONE
