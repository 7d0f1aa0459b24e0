"""Structures: conversion between plain values and those of cuda.bindings."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.bindings import CUexecAffinityParam, CUexecAffinityType, CUuuid, bindings

SM_COUNT: Final = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)


def uuid(digits: bytes) -> Any:
    """Return a CUuuid of 16 bytes."""
    made = CUuuid()
    ctypes.memmove(made.getPtr(), digits, 16)
    return made


def sm_affinity(count: int) -> Any:
    """Return a CUexecAffinityParam of type SM_COUNT."""
    made = CUexecAffinityParam()
    made.type = CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    made.param.smCount.val = count
    return made


@frozen
class CopySide:
    """One side of a copy of rows and slices. ``pitch`` and ``rows`` are 0 if the program gave none."""

    memory_type: int
    host: int
    device: int
    pitch: int
    """Bytes between rows."""
    rows: int
    """Rows between slices."""
    x: int
    y: int
    z: int
    level: int
    """The level of a mipmapped array."""


@frozen
class Copy3D:
    """A copy of ``depth`` slices of ``height`` rows of ``width`` bytes; in 2D of one slice."""

    destination: CopySide
    source: CopySide
    width: int
    height: int
    depth: int


def _fields(names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_int if name.endswith("MemoryType") else ctypes.c_size_t) for name in names.split())


class _Memcpy2D(ctypes.Structure):
    _fields_ = _fields(
        "srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray srcPitch "
        "dstXInBytes dstY dstMemoryType dstHost dstDevice dstArray dstPitch WidthInBytes Height"
    )


class _Memcpy3D(ctypes.Structure):
    _fields_ = _fields(
        "srcXInBytes srcY srcZ srcLOD srcMemoryType srcHost srcDevice srcArray reserved0 srcPitch srcHeight "
        "dstXInBytes dstY dstZ dstLOD dstMemoryType dstHost dstDevice dstArray reserved1 dstPitch dstHeight "
        "WidthInBytes Height Depth"
    )


def copy_2d(given: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY2D, None for None; TypeError for anything else."""
    return None if given is None else _copy_at(_address(given, "CUDA_MEMCPY2D"), _Memcpy2D)


def copy_3d(given: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY3D, None for None; TypeError for anything else."""
    return None if given is None else _copy_at(_address(given, "CUDA_MEMCPY3D"), _Memcpy3D)


def _address(given: Any, name: str) -> int:
    if not isinstance(given, getattr(bindings, f"{name}_st")):
        raise TypeError(f"a {name} is required, not {type(given).__name__}")
    return int(given.getPtr())


def _copy_at(address: int, layout: type[_Memcpy2D | _Memcpy3D]) -> Copy3D:
    """Return the values of a C structure in memory."""
    raw: Any = layout.from_address(address)

    def side(name: str) -> CopySide:
        def value(field: str) -> int:
            return int(getattr(raw, name + field, 0))

        return CopySide(
            value("MemoryType"), value("Host"), value("Device"), value("Pitch"), value("Height"),
            value("XInBytes"), value("Y"), value("Z"), value("LOD"),
        )  # fmt: skip

    return Copy3D(side("dst"), side("src"), raw.WidthInBytes, raw.Height, getattr(raw, "Depth", 1))
