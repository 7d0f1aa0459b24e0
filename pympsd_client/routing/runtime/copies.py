"""Copies (CUDA runtime API, Memory Management).

The cudaMemcpyKind determines which sides of a copy are device memory; with cudaMemcpyDefault the addresses do. An
address that only devices can access is device memory whatever the kind, and host memory for which the kind requires
device memory is refused (recorded on an H200). A copy from host to host is made here, after the stream's work. All
others are made by the driver's functions, which copy bytes, rows or slices, also of arrays. In 3D copies with an
array the width is in elements of the array, as in CUDA.
"""

import ctypes
from typing import Any, Final

from pympsd_client._api.memory.arrays import address_at
from pympsd_client._api.memory.copies import copy_on_host, is_devices_only, refuse_in_capture
from pympsd_client._arguments.copy_structs import Memcpy3D
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.values import check_not_null
from pympsd_client._objects.arrays.array import arrays
from pympsd_client._objects.arrays.shapes import element_bytes
from pympsd_client._objects.process import process
from pympsd_client.routing.driver import api
from pympsd_client.routing.runtime.memory import is_device

_BY_KIND: Final = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}
"""Whether (destination, source) are device memory, for each cudaMemcpyKind."""
_HOST_TO_HOST, _DEFAULT = 0, 4
TO_DEVICE: Final = (1, 3, _DEFAULT)
FROM_DEVICE: Final = (2, 3, _DEFAULT)
"""The cudaMemcpyKinds of copies to and from an array or a variable."""
_INVALID_DIRECTION: Final = 21
"""cudaErrorInvalidMemcpyDirection, which only the runtime has."""
_INVALID_PITCH: Final = 12
"""cudaErrorInvalidPitchValue, which only the runtime has."""
_HOST, _DEVICE, _ARRAY = 1, 2, 3
"""Values of CUmemorytype."""


def copy(destination: int, source: int, count: int, kind: int, stream: int | None = None) -> None:
    """Copy bytes in stream order; without a stream, return when the copy is complete."""
    if not count:
        return
    to_device, from_device = _sides(destination, source, kind)
    if not destination or not source:
        raise invalid_value("an address of the copy is NULL")
    if not to_device and not from_device:
        copy_on_host(destination, source, count, stream or 0)
        return
    name = "cuMemcpyDtoD" if to_device and from_device else "cuMemcpyHtoD" if to_device else "cuMemcpyDtoH"
    if stream is None:
        getattr(api, name)(destination, source, count)
    else:
        getattr(api, f"{name}Async")(destination, source, count, stream)


def copy_peer(
    destination: int, destination_device: int, source: int, source_device: int, count: int, stream: int = 0
) -> None:
    """Copy between two devices in stream order; raise INVALID_DEVICE."""
    process.device(destination_device)
    process.device(source_device)
    if count:
        api.cuMemcpyPeerAsync(destination, 0, source, 0, count, stream)


def _side_fields(name: str) -> tuple[tuple[str, Any], ...]:
    """Return the fields of one side: an array, the position in the array or memory, and a cudaPitchedPtr."""
    size = ctypes.c_size_t
    return (f"{name}Array", size), (f"{name}Pos", size * 3), (f"{name}Ptr", size * 4)


class _Parameters(ctypes.Structure):
    """cudaMemcpy3DParms."""

    _fields_ = (*_side_fields("src"), *_side_fields("dst"), ("extent", ctypes.c_size_t * 3), ("kind", ctypes.c_int))


class _PeerParameters(ctypes.Structure):
    """cudaMemcpy3DPeerParms."""

    _fields_ = (
        *_side_fields("src"),
        ("srcDevice", ctypes.c_int),
        *_side_fields("dst"),
        ("dstDevice", ctypes.c_int),
        ("extent", ctypes.c_size_t * 3),
    )
    kind = _DEFAULT


def copy_2d(
    destination: int,
    to_pitch: int,
    source: int,
    pitch: int,
    width: int,
    height: int,
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy rows in stream order; without a stream, return when the copy is complete."""
    _submit(rows(destination, to_pitch, source, pitch, width, height, kind), stream)


def rows(destination: int, to_pitch: int, source: int, pitch: int, width: int, height: int, kind: int) -> Any:
    """Return the driver's description of a copy of rows."""
    to_device, from_device = _sides(destination, source, kind)
    _check_pitches(width, height, to_pitch, pitch)
    description: Any = Memcpy3D(WidthInBytes=width, Height=height, Depth=1, dstPitch=to_pitch, srcPitch=pitch)
    _side(description, "dst", destination, to_device)
    _side(description, "src", source, from_device)
    return description


def copy_3d(place: int, stream: int | None = None) -> None:
    """Copy slices of rows in stream order; without a stream, return when the copy is complete."""
    _submit(slices(place), stream)


def slices(place: int) -> Any:
    """Return the driver's description of a cudaMemcpy3DParms."""
    check_not_null("the cudaMemcpy3DParms", place)
    return _slices(_Parameters.from_address(place))


def write_slices(place: int, data: bytes) -> None:
    """Write the cudaMemcpy3DParms of a driver's CUDA_MEMCPY3D to an address; the inverse of `slices`."""
    check_not_null("the cudaMemcpy3DParms", place)
    description: Any = Memcpy3D.from_buffer_copy(data)
    parameters: Any = _Parameters.from_address(place)
    ctypes.memset(place, 0, ctypes.sizeof(_Parameters))
    handles = [handle for handle in (description.dstArray, description.srcArray) if handle]
    element = _element_bytes(handles[0]) if handles else 1
    parameters.extent[:] = description.WidthInBytes // element, description.Height, description.Depth
    sides = []
    for name in ("dst", "src"):
        handle, x = getattr(description, f"{name}Array"), getattr(description, f"{name}XInBytes")
        kind = getattr(description, f"{name}MemoryType")
        setattr(parameters, f"{name}Array", handle)
        position = x // (_element_bytes(handle) if handle else 1), *(getattr(description, name + at) for at in "YZ")
        getattr(parameters, f"{name}Pos")[:] = position
        if not handle:
            address = getattr(description, name + ("Host" if kind == _HOST else "Device"))
            pitch, rows = (getattr(description, name + field) for field in ("Pitch", "Height"))
            getattr(parameters, f"{name}Ptr")[:] = address, pitch, description.WidthInBytes, rows
        sides.append(kind != _HOST)
    parameters.kind = next(
        (kind for kind, in_device_memory in _BY_KIND.items() if in_device_memory == tuple(sides)), _DEFAULT
    )


def copy_3d_peer(place: int, stream: int = 0) -> None:
    """Copy slices of rows between devices in stream order; raise INVALID_DEVICE."""
    check_not_null("the cudaMemcpy3DPeerParms", place)
    parameters: Any = _PeerParameters.from_address(place)
    if process.device(parameters.dstDevice) is not process.device(parameters.srcDevice):
        refuse_in_capture(stream, "cudaMemcpy3DPeer")
    _submit(_slices(parameters), stream)


def _slices(parameters: Any) -> Any:
    """Return the driver's description of a cudaMemcpy3DParms or cudaMemcpy3DPeerParms."""
    to_device, from_device = _sides(parameters.dstPtr[0], parameters.srcPtr[0], parameters.kind)
    width, height, depth = parameters.extent
    # In a copy with an array the width is a number of elements of the array.
    elements = [_element_bytes(handle) for handle in (parameters.dstArray, parameters.srcArray) if handle]
    description: Any = Memcpy3D(WidthInBytes=width * (elements or [1])[0], Height=height, Depth=depth)
    for name, is_device_memory in (("dst", to_device), ("src", from_device)):
        handle = getattr(parameters, f"{name}Array")
        x, y, z = getattr(parameters, f"{name}Pos")
        address, pitch, _, rows = getattr(parameters, f"{name}Ptr")
        if handle and address:
            raise invalid_value(f"{name}Array and {name}Ptr are both set; one of them has to be NULL")
        if handle:
            _array_side(description, name, handle, x * _element_bytes(handle), y, z)
            continue
        if height and depth:
            _check_pitches(x + description.WidthInBytes, height * depth, pitch)
        if depth > 1 and description.WidthInBytes and rows < y + height:
            raise CudaError(
                _INVALID_PITCH, f"the slices of {name}Ptr have {rows} rows, and the copy needs {y + height}"
            )
        _side(description, name, address, is_device_memory)
        _place(description, name, x, y, z)
        setattr(description, f"{name}Pitch", pitch)
        setattr(description, f"{name}Height", rows)
    return description


def _element_bytes(handle: int) -> int:
    return element_bytes(arrays.find(handle).description)


def _check_pitches(width: int, rows: int, *pitches: int) -> None:
    """Raise INVALID_PITCH_VALUE if several rows of a width do not fit their pitches, in bytes."""
    if rows > 1 and min(pitches) < width:
        raise CudaError(_INVALID_PITCH, f"a pitch of {min(pitches)} bytes is less than a row, {width}")


def _place(description: Any, name: str, x: int, y: int, z: int = 0) -> None:
    for field, value in zip(("XInBytes", "Y", "Z"), (x, y, z), strict=True):
        setattr(description, name + field, value)


def _array_side(description: Any, name: str, handle: int, x: int, y: int, z: int = 0) -> None:
    setattr(description, f"{name}MemoryType", _ARRAY)
    setattr(description, f"{name}Array", handle)
    _place(description, name, x, y, z)


def rows_to_array(
    handle: int,
    x: int,
    y: int,
    source: int,
    pitch: int,
    width: int,
    height: int,
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy rows to an array, from byte ``x`` of row ``y`` on, in stream order; without a stream, wait."""
    check_kind(kind, TO_DEVICE)
    _check_pitches(width, height, pitch)
    description: Any = Memcpy3D(WidthInBytes=width, Height=height, Depth=1, srcPitch=pitch)
    _array_side(description, "dst", handle, x, y)
    _side(description, "src", source, _sides(0, source, kind)[1])
    _submit(description, stream)


def rows_from_array(
    destination: int,
    pitch: int,
    handle: int,
    x: int,
    y: int,
    width: int,
    height: int,
    kind: int,
    stream: int | None = None,
) -> None:
    """Copy rows of an array, from byte ``x`` of row ``y`` on, in stream order; without a stream, wait."""
    check_kind(kind, FROM_DEVICE)
    _check_pitches(width, height, pitch)
    description: Any = Memcpy3D(WidthInBytes=width, Height=height, Depth=1, dstPitch=pitch)
    _array_side(description, "src", handle, x, y)
    _side(description, "dst", destination, _sides(destination, 0, kind)[0])
    _submit(description, stream)


def rows_between_arrays(
    destination: int, to_x: int, to_y: int, source: int, x: int, y: int, width: int, height: int, kind: int
) -> None:
    """Copy rows of an array to an array; offsets ``x`` and widths are in bytes."""
    _sides(0, 0, kind)
    description: Any = Memcpy3D(WidthInBytes=width, Height=height, Depth=1)
    _array_side(description, "dst", destination, to_x, to_y)
    _array_side(description, "src", source, x, y)
    _submit(description, None)


def copy_to_array(handle: int, x: int, y: int, source: int, count: int, kind: int, stream: int | None = None) -> None:
    """Copy bytes to an array, from byte ``x`` of row ``y`` on."""
    copy(_bytes_at(handle, x, y, count), source, count, kind, stream)


def copy_from_array(
    destination: int, handle: int, x: int, y: int, count: int, kind: int, stream: int | None = None
) -> None:
    """Copy bytes of an array, from byte ``x`` of row ``y`` on."""
    copy(destination, _bytes_at(handle, x, y, count), count, kind, stream)


def copy_between_arrays(
    destination: int, to_x: int, to_y: int, source: int, x: int, y: int, count: int, kind: int
) -> None:
    """Copy bytes of an array to an array."""
    to, start = _bytes_at(destination, to_x, to_y, count), _bytes_at(source, x, y, count)
    copy(to, start, count, kind, None)


def _bytes_at(handle: int, x: int, y: int, count: int) -> int:
    return address_at(handle, y * arrays.find(handle).pitch + x, count)


def _side(description: Any, name: str, address: int, is_device_memory: bool) -> None:
    setattr(description, f"{name}MemoryType", _DEVICE if is_device_memory else _HOST)
    setattr(description, f"{name}Device" if is_device_memory else f"{name}Host", address)


def _submit(description: Any, stream: int | None) -> None:
    if stream is None:
        api.cuMemcpy3D(ctypes.addressof(description))
    else:
        api.cuMemcpy3DAsync(ctypes.addressof(description), stream)


def check_kind(kind: int, allowed: tuple[int, ...] = (*_BY_KIND, _DEFAULT)) -> None:
    """Raise INVALID_MEMCPY_DIRECTION unless a cudaMemcpyKind is one of ``allowed``."""
    if kind not in allowed:
        kinds = ", ".join(map(str, allowed))
        raise CudaError(_INVALID_DIRECTION, f"cudaMemcpyKind must be one of {kinds} here, not {kind}")


def _sides(destination: int, source: int, kind: int) -> tuple[bool, bool]:
    if kind == _DEFAULT:
        return is_device(destination), is_device(source)
    check_kind(kind)
    if kind != _HOST_TO_HOST:
        return _BY_KIND[kind]
    return is_devices_only(destination), is_devices_only(source)
