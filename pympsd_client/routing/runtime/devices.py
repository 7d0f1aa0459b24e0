"""Devices and their primary contexts (CUDA runtime API, Device Management)."""

import threading
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError
from pympsd_client._objects.context import this_thread
from pympsd_client._objects.process import process
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime.properties import write


class _Thread(threading.local):
    device = 0


_this_thread: Final = _Thread()
_retained: Final[set[int]] = set()
"""The devices whose primary contexts the runtime has retained."""


def ready() -> None:
    """Make the primary context of this thread's device current, unless a usable context is current."""
    stack = this_thread.stack
    if stack and (stack[-1].active or not stack[-1].primary):
        return
    _use(_this_thread.device)


def _use(device: int) -> None:
    if process.connection is None:
        process.initialize(0)
    primary = process.primary(device)
    if device not in _retained or primary.context is None or not primary.context.active:
        api.cuDevicePrimaryCtxRetain(device)
        _retained.add(device)
    context = primary.context
    if context is not None:
        api.cuCtxSetCurrent(context.handle)


def current() -> int:
    """Return the device of the current context, or the one that this thread has chosen (0 at first)."""
    process.initialize(0)
    return this_thread.stack[-1].device.number if this_thread.stack else _this_thread.device


def set_current(device: int) -> None:
    """Choose a device for this thread, and make its primary context current; INVALID_DEVICE."""
    process.initialize(0)
    process.device(device)
    _use(device)
    _this_thread.device = device


def initialize(device: int, device_flags: int, flags: int) -> None:
    """Open the primary context of a device without making it current; INVALID_DEVICE."""
    process.initialize(0)
    if flags:
        api.cuDevicePrimaryCtxSetFlags(device, device_flags)
    process.device(device)
    if device not in _retained:
        api.cuDevicePrimaryCtxRetain(device)
        _retained.add(device)


def reset() -> None:
    """Free everything of this process on this thread's device."""
    process.initialize(0)
    device = current()
    _retained.discard(device)
    api.cuDevicePrimaryCtxReset(device)


def flags() -> int:
    """Return the flags of this thread's device."""
    process.initialize(0)
    value, _ = api.cuDevicePrimaryCtxGetState(current())
    return int(value)


def set_flags(flags: int) -> None:
    """Set the flags of this thread's device."""
    process.initialize(0)
    api.cuDevicePrimaryCtxSetFlags(current(), flags)


def properties(place: int, device: int) -> None:
    """Write the cudaDeviceProp of a device; INVALID_DEVICE."""
    process.initialize(0)
    write(place, process.device(device))


def enable_peer_access(peer: int, flags: int) -> None:
    """Allow kernels of the current device to reach memory of a peer; INVALID_DEVICE for the device itself."""
    ready()
    if peer == current():
        raise CudaError(Result.ERROR_INVALID_DEVICE, f"device {peer} is not a peer of itself")
    api.cuCtxEnablePeerAccess(_primary_handle(peer), flags)


def disable_peer_access(peer: int) -> None:
    """Undo cudaDeviceEnablePeerAccess."""
    ready()
    api.cuCtxDisablePeerAccess(_primary_handle(peer))


def _primary_handle(device: int) -> int:
    initialize(device, 0, 0)
    context = process.primary(device).context
    assert context is not None
    return context.handle
