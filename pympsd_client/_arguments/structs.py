"""Structures: conversion between plain values and those of cuda.bindings."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from attrs import frozen

from pympsd_client._arguments.bindings import CUexecAffinityParam, CUexecAffinityType, CUuuid, bindings
from pympsd_client._arguments.values import InMemory

SM_COUNT: Final = int(CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)


def uuid(digits: bytes) -> Any:
    """Return a CUuuid of 16 bytes."""
    made = CUuuid()
    ctypes.memmove(made.getPtr(), digits, 16)
    return made


@frozen
class LaunchConfig:
    """A CUlaunchConfig; ``cluster`` are its dimensions in blocks, 1 where no attribute gives them."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int]


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("sizes", ctypes.c_uint32 * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("values", ctypes.c_uint32 * 16))


_CLUSTER_DIMENSION: Final = 4


def launch_config(given: Any) -> LaunchConfig | None:
    """Return the values of a CUlaunchConfig, None for None; TypeError for anything else."""
    if given is None:
        return None
    raw: Any = _LaunchConfig.from_address(address_of(given, "CUlaunchConfig"))
    sizes, cluster = tuple(raw.sizes), (1, 1, 1)
    for attribute in (_LaunchAttribute * raw.count).from_address(raw.attributes) if raw.attributes else ():
        if attribute.id == _CLUSTER_DIMENSION:
            x, y, z = attribute.values[:3]
            cluster = x, y, z
    return LaunchConfig(sizes[:3], sizes[3:6], sizes[6], cluster)


def stream_attribute(value: bytes) -> Any:
    """Return a CUstreamAttrValue of 64 bytes."""
    made = bindings.CUstreamAttrValue()
    ctypes.memmove(made.getPtr(), value, len(value))
    return made


def device_properties(value: bytes) -> Any:
    """Return a CUdevprop."""
    made = bindings.CUdevprop()
    ctypes.memmove(made.getPtr(), value, len(value))
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
    """0: a level of a mipmapped array is an array."""
    array: int = 0
    """The handle of an array."""


@frozen
class Copy3D:
    """A copy of ``depth`` slices of ``height`` rows of ``width`` bytes; in 2D of one slice."""

    destination: CopySide
    source: CopySide
    width: int
    height: int
    depth: int


_HOST, _DEVICE = 1, 2
"""CUmemorytype."""


def copy_side(is_host: bool, address: int, pitch: int = 0, rows: int = 0) -> CopySide:
    """Return one side of a copy."""
    kind = _HOST if is_host else _DEVICE
    return CopySide(kind, address if is_host else 0, 0 if is_host else address, pitch, rows, 0, 0, 0, 0)


def linear_copy(to_host: bool, destination: int, from_host: bool, source: int, count: int) -> Copy3D:
    """Return the description of a copy of ``count`` bytes."""
    return Copy3D(copy_side(to_host, destination), copy_side(from_host, source), count, 1, 1)


def _fields(names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_int if name.endswith("MemoryType") else ctypes.c_size_t) for name in names.split())


class _Memcpy2D(ctypes.Structure):
    _fields_ = _fields(
        "srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray srcPitch "
        "dstXInBytes dstY dstMemoryType dstHost dstDevice dstArray dstPitch WidthInBytes Height"
    )


class Memcpy3D(ctypes.Structure):
    """A CUDA_MEMCPY3D, or a CUDA_MEMCPY3D_PEER: the former reserves the places of the contexts."""

    _fields_ = _fields(
        "srcXInBytes srcY srcZ srcLOD srcMemoryType srcHost srcDevice srcArray srcContext srcPitch srcHeight "
        "dstXInBytes dstY dstZ dstLOD dstMemoryType dstHost dstDevice dstArray dstContext dstPitch dstHeight "
        "WidthInBytes Height Depth"
    )


def copy_2d(given: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY2D, None for None; TypeError for anything else."""
    return None if given is None else copy_at(address_of(given, "CUDA_MEMCPY2D"), _Memcpy2D)


def copy_3d(given: Any) -> Copy3D | None:
    """Return the values of a CUDA_MEMCPY3D, None for None; TypeError for anything else."""
    return None if given is None else copy_at(address_of(given, "CUDA_MEMCPY3D"), Memcpy3D)


def copy_3d_peer(given: Any) -> tuple[Copy3D, int, int] | None:
    """Return the values of a CUDA_MEMCPY3D_PEER with the contexts of destination and source, None for None."""
    if given is None:
        return None
    place = address_of(given, "CUDA_MEMCPY3D_PEER")
    raw: Any = Memcpy3D.from_address(place)
    return copy_at(place, Memcpy3D), raw.dstContext, raw.srcContext


def address_of(given: Any, name: str) -> int:
    """Return where a C structure lies that is given as cuda.bindings has it, or by its address; TypeError."""
    if isinstance(given, InMemory):
        return int(given)
    if not isinstance(given, getattr(bindings, f"{name}_st")):
        raise TypeError(f"a {name} is required, not {type(given).__name__}")
    return int(given.getPtr())


def copy_at(address: int, layout: type[_Memcpy2D | Memcpy3D]) -> Copy3D:
    """Return the values of a C structure in memory."""
    raw: Any = layout.from_address(address)

    def side(name: str) -> CopySide:
        def value(field: str) -> int:
            return int(getattr(raw, name + field, 0))

        return CopySide(
            value("MemoryType"), value("Host"), value("Device"), value("Pitch"), value("Height"),
            value("XInBytes"), value("Y"), value("Z"), value("LOD"), value("Array"),
        )  # fmt: skip

    return Copy3D(side("dst"), side("src"), raw.WidthInBytes, raw.Height, getattr(raw, "Depth", 1))
