"""Launches as before CUDA 4: the block's shape, shared memory and parameters are set on the kernel before a launch.

Programs of that time, and later ones modelled on them, call these functions, which drivers continue to provide (CUDA
driver API, Execution Control [DEPRECATED])::

    cuFuncSetBlockShape(kernel, 256, 1, 1);
    cuParamSetv(kernel, 0, &address, 8); cuParamSeti(kernel, 8, count); cuParamSetSize(kernel, 12);
    cuLaunchGrid(kernel, 40, 1);

As on an H100, a kernel without settings has one thread and zero bytes as parameters.
"""

import ctypes
import struct
from typing import Final
from weakref import WeakKeyDictionary

from attrs import define

from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.host_pointer import HostMemory
from pympsd_client._objects.code.launch import check_shape
from pympsd_client._objects.code.launch import launch as launch_kernel
from pympsd_client._objects.code.library import function_of
from pympsd_client._objects.code.module import Function
from pympsd_client._objects.context import require_context

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0
"""The keys in the array that cuLaunchKernel takes as ``extra``."""


@define
class _Settings:
    """A kernel's settings: the block's shape, the dynamic shared memory in bytes, and the buffer of parameters."""

    parameters: bytearray
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0


_settings: Final[WeakKeyDictionary[Function, _Settings]] = WeakKeyDictionary()


def _find_with_settings(function: int) -> tuple[Function, _Settings]:
    require_context()
    entry = function_of(function)
    entry.context.usable()
    if entry not in _settings:
        _settings[entry] = _Settings(bytearray(entry.layout.parameter_bytes))
    return entry, _settings[entry]


def set_block(function: int, x: int, y: int, z: int) -> None:
    """Set the shape of a kernel's blocks, in threads; raise INVALID_VALUE beyond the limits of device and kernel."""
    entry, settings = _find_with_settings(function)
    check_shape(entry, (1, 1, 1, x, y, z, settings.shared_bytes))
    settings.block = x, y, z


def set_shared(function: int, count: int) -> None:
    """Set the size of a kernel's dynamic shared memory in bytes; raise INVALID_VALUE for more than it may use."""
    entry, settings = _find_with_settings(function)
    check_shape(entry, (1, 1, 1, *settings.block, count))
    settings.shared_bytes = count


def set_size(function: int, count: int) -> None:
    """Check the size of the parameters in bytes; raise INVALID_VALUE for more than the kernel has."""
    _check_place(_find_with_settings(function)[0], 0, count)


def set_integer(function: int, offset: int, value: int) -> None:
    """Set a parameter of 4 bytes at an offset; raise INVALID_VALUE beyond the kernel's parameters."""
    _set(function, offset, struct.pack("=I", value))


def set_float(function: int, offset: int, value: float) -> None:
    """Set a parameter of single precision at an offset; raise INVALID_VALUE beyond the kernel's parameters."""
    _set(function, offset, struct.pack("=f", value))


def set_bytes(function: int, offset: int, source: HostMemory, count: int) -> None:
    """Set ``count`` bytes of the parameters at an offset; raise INVALID_VALUE beyond them, and for NULL."""
    source.check(count, to_be_written=False)
    _check_place(_find_with_settings(function)[0], offset, count)
    _set(function, offset, ctypes.string_at(source.address, count))


def _set(function: int, offset: int, data: bytes) -> None:
    entry, settings = _find_with_settings(function)
    _check_place(entry, offset, len(data))
    settings.parameters[offset : offset + len(data)] = data


def _check_place(function: Function, offset: int, count: int) -> None:
    size = function.layout.parameter_bytes
    if offset < 0 or offset + count > size:
        raise invalid_value(f"the parameters of {function.layout.name} have {size} bytes, not {offset} + {count}")


def launch(function: int, width: int, height: int, stream: int) -> None:
    """Start a kernel with its settings in a grid of ``width`` by ``height`` blocks, as cuLaunchKernel does."""
    _, settings = _find_with_settings(function)
    parameters, size = (
        ctypes.create_string_buffer(bytes(settings.parameters)),
        ctypes.c_size_t(len(settings.parameters)),
    )
    extra = (ctypes.c_void_p * 5)(
        _BUFFER_POINTER, ctypes.addressof(parameters), _BUFFER_SIZE, ctypes.addressof(size), _END
    )
    shape = (width, height, 1, *settings.block, settings.shared_bytes)
    launch_kernel(function, shape, stream, None, ctypes.addressof(extra))
