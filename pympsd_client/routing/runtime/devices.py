"""Devices and their primary contexts (CUDA runtime API, Device Management).

After a fault cudaDeviceReset succeeds but does not help: every later call that needs the device returns
cudaErrorDevicesUnavailable (`_retain`), while functions of the driver return the fault. Recorded on an H200 (driver
580.159, CUDA 13.0).
"""

import ctypes
import threading
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._api.conversions import not_permitted
from pympsd_client._arguments.errors import CudaError
from pympsd_client._arguments.values import check_count, check_not_null
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects.context import lost, this_thread
from pympsd_client._objects.process import process
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime.arrays import CHANNELS, format_of
from pympsd_client.routing.runtime.properties import OF_BINDINGS, Layout, read_requirements, write
from pympsd_client.routing.runtime.symbols import check_linked


class _Thread(threading.local):
    device: int | None = None
    """The device that the thread has chosen."""


_MAP_HOST: Final = 8
"""cudaDeviceMapHost."""
_this_thread: Final = _Thread()
_retained: Final[set[int]] = set()
"""The devices whose primary contexts the runtime has retained."""
_valid: Final[list[int]] = [0]
"""The devices of cudaSetValidDevices. Threads that have not chosen a device use the first."""


def _initialize_driver() -> None:
    """Call cuInit; raise NOT_PERMITTED in a host function, where cuInit itself is allowed."""
    if this_thread.in_host_function:
        raise not_permitted()
    api.cuInit(0)


def ready() -> None:
    """Make the primary context of this thread's device current, unless a usable context is current."""
    stack = this_thread.stack
    if stack and (stack[-1].active or not stack[-1].primary):
        return
    _use(_current_device())


def _current_device() -> int:
    """Return the device that this thread has chosen with cudaSetDevice, or the first valid one."""
    return _valid[0] if _this_thread.device is None else _this_thread.device


def _use(device: int) -> None:
    if process.connection is None:
        api.cuInit(0)
    primary = process.primary(device)
    if device not in _retained or primary.context is None or not primary.context.active:
        _retain(device)
    context = primary.context
    if context is not None:
        api.cuCtxSetCurrent(context.handle)
        try:
            check_linked()
        except CudaError:
            api.cuCtxSetCurrent(0)
            raise


def _retain(device: int) -> None:
    try:
        api.cuDevicePrimaryCtxRetain(device)
    except CudaError as error:
        if not lost:
            raise
        reason = f"an earlier fault made device {device} unusable for this process ({error.reason}); end the process"
        raise CudaError(Result.ERROR_DEVICE_UNAVAILABLE, reason) from None
    _retained.add(device)


def current() -> int:
    """Return the device of the current context; without one, the device that this thread has chosen (initially 0)."""
    _initialize_driver()
    return this_thread.stack[-1].device.number if this_thread.stack else _current_device()


def set_current(device: int) -> None:
    """Choose a device for this thread, and make its primary context current; raise INVALID_DEVICE."""
    _initialize_driver()
    process.device(device)
    _use(device)
    _this_thread.device = device


def initialize(device: int, device_flags: int, flags: int) -> None:
    """Open the primary context of a device without making it current; raise INVALID_DEVICE."""
    _initialize_driver()
    if flags:
        api.cuDevicePrimaryCtxSetFlags(device, device_flags & ~_MAP_HOST)
    process.device(device)
    if device not in _retained:
        _retain(device)


def reset() -> None:
    """Free everything of this process on this thread's device."""
    _initialize_driver()
    device = current()
    _retained.discard(device)
    api.cuDevicePrimaryCtxReset(device)


def flags() -> int:
    """Return the flags of this thread's device, always with cudaDeviceMapHost (recorded on an H200)."""
    _initialize_driver()
    value, _ = api.cuDevicePrimaryCtxGetState(current())
    return int(value) | _MAP_HOST


def set_flags(flags: int) -> None:
    """Set the flags of this thread's device."""
    _initialize_driver()
    api.cuDevicePrimaryCtxSetFlags(current(), flags & ~_MAP_HOST)


def _list_known() -> list[VisibleDevice]:
    """Return the visible devices, also in a host function and in a forked child, where other functions fail.

    So does the runtime on an H200.
    """
    if not (process.forked and process.primaries):
        process.initialize(0)
    return [primary.device for primary in process.primaries.values()]


def count() -> int:
    """Return the number of visible devices."""
    return len(_list_known())


def properties(address: int, device: int, layout: Layout = OF_BINDINGS) -> None:
    """Write the cudaDeviceProp of a device to an address; raise INVALID_DEVICE."""
    devices = _list_known()
    write(address, devices[device] if 0 <= device < len(devices) else process.device(device), layout)


def set_valid(address: int, count: int) -> None:
    """Set the devices, in order of preference, for threads that do not choose one.

    Raise INVALID_DEVICE, INVALID_VALUE.
    """
    _initialize_driver()
    if count:
        check_not_null("the array of devices", address)
        check_count(count, "the array of devices")
    devices = list((ctypes.c_int * count).from_address(address)) if count else [0]
    for device in devices:
        process.device(device)
    _valid[:] = devices


def choose(address: int, layout: Layout = OF_BINDINGS) -> int:
    """Return the device that meets most requirements in a cudaDeviceProp."""
    devices = _list_known()
    minimums = read_requirements(address, layout)

    def score(device: VisibleDevice) -> int:
        own = ctypes.create_string_buffer(layout.size)
        write(ctypes.addressof(own), device, layout)
        has = read_requirements(ctypes.addressof(own), layout)
        return sum(least <= number for least, number in zip(minimums, has, strict=True))

    return max(devices, key=score).number


def max_texture_width(channels: int, device: int) -> int:
    """Return the maximum number of elements of a texture in linear memory.

    Raise INVALID_DEVICE, INVALID_CHANNEL_DESCRIPTOR.
    """
    _initialize_driver()
    check_not_null("the cudaChannelFormatDesc", channels)
    format, count = format_of(ctypes.string_at(channels, CHANNELS.size))
    return int(api.cuDeviceGetTexture1DLinearMaxWidth(format, count, device))


def enable_peer_access(peer: int, flags: int) -> None:
    """Allow kernels of the current device to access memory of a peer."""
    ready()
    api.cuCtxEnablePeerAccess(primary_handle(peer), flags)


def disable_peer_access(peer: int) -> None:
    """Undo cudaDeviceEnablePeerAccess."""
    ready()
    api.cuCtxDisablePeerAccess(primary_handle(peer))


def primary_handle(device: int) -> int:
    """Return the primary context of a device, which is also its execution context; raise INVALID_DEVICE."""
    initialize(device, 0, 0)
    context = process.primary(device).context
    assert context is not None
    return context.handle
