"""Descriptions of CUDA arrays: those of cuda.bindings, or C's in memory, as plain values."""

import ctypes
import struct
from typing import Any, Final

from attrs import astuple, frozen

from pympsd_client._arguments.bindings import makers
from pympsd_client._arguments.values import address_of


@frozen
class ArrayDescription:
    """A CUDA_ARRAY3D_DESCRIPTOR, in elements: a height or depth of 0 is a missing dimension."""

    width: int
    height: int
    depth: int
    format: int
    channels: int
    flags: int


_DESCRIPTOR: Final = struct.Struct("=2QiI")
"""CUDA_ARRAY_DESCRIPTOR"""
_DESCRIPTOR_3D: Final = struct.Struct("=3Qi2I4x")
"""CUDA_ARRAY3D_DESCRIPTOR"""


def array_2d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY_DESCRIPTOR, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    data = ctypes.string_at(address_of(argument, "CUDA_ARRAY_DESCRIPTOR"), _DESCRIPTOR.size)
    width, height, format, channels = _DESCRIPTOR.unpack(data)
    return ArrayDescription(width, height, 0, format, channels, 0)


def array_3d(argument: Any) -> ArrayDescription | None:
    """Return the values of a CUDA_ARRAY3D_DESCRIPTOR, None for NULL; TypeError for anything else."""
    if argument is None:
        return None
    data = ctypes.string_at(address_of(argument, "CUDA_ARRAY3D_DESCRIPTOR"), _DESCRIPTOR_3D.size)
    return ArrayDescription(*_DESCRIPTOR_3D.unpack(data))


def pack_2d(of: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY_DESCRIPTOR."""
    return _DESCRIPTOR.pack(of.width, of.height, of.format, of.channels)


def pack_3d(of: ArrayDescription) -> bytes:
    """Return the bytes of a CUDA_ARRAY3D_DESCRIPTOR."""
    return _DESCRIPTOR_3D.pack(*astuple(of))


WRAPPERS: Final = {
    **makers("CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR"),
}
"""Converts an output's value to the type that cuda.bindings returns."""
