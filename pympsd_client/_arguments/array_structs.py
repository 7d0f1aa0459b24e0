"""Descriptions of CUDA arrays: those of cuda.bindings, or C's in memory, as plain values."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.bindings import bindings, makers
from pympsd_client._arguments.values import address_of


@frozen
class ArrayDescription:
    """A CUDA_ARRAY3D_DESCRIPTOR, in elements: a height or depth of 0 is a dimension that the array does not have."""

    width: int
    height: int
    depth: int
    format: int
    channels: int
    flags: int


class _Descriptor(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class _Descriptor3D(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


def array_2d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY_DESCRIPTOR, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    raw: Any = _Descriptor.from_address(address_of(argument, "CUDA_ARRAY_DESCRIPTOR"))
    return ArrayDescription(raw.width, raw.height, 0, raw.format, raw.channels, 0)


def array_3d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY3D_DESCRIPTOR, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    raw: Any = _Descriptor3D.from_address(address_of(argument, "CUDA_ARRAY3D_DESCRIPTOR"))
    return ArrayDescription(raw.width, raw.height, raw.depth, raw.format, raw.channels, raw.flags)


def pack_2d(of: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY_DESCRIPTOR."""
    return bytes(_Descriptor(of.width, of.height, of.format, of.channels))


def pack_3d(of: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY3D_DESCRIPTOR."""
    return bytes(_Descriptor3D(of.width, of.height, of.depth, of.format, of.channels, of.flags))


WRAPPERS: Final = {
    "CUarray": bindings.CUarray,
    "CUmipmappedArray": bindings.CUmipmappedArray,
    **makers("CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR"),
}
"""Converts an output's value to the type that cuda.bindings returns."""
