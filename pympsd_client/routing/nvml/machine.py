"""NVML's functions about a device's place in the machine, and about its hardware.

An emulated device is near the CPUs and the memory of the NUMA node that it names, because the CPUs do its work. It
has no display, no fan, no counters, and no state to persist. For a GPU most of this is unknown, and NOT_SUPPORTED.
"""

import os
from ctypes import c_int32, c_uint32, c_uint64
from pathlib import Path
from typing import Final

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd_client._connect.connection import Device
from pympsd_client.routing.nvml import devices as nvml
from pympsd_client.routing.nvml.devices import NvmlError

_BRAND_TESLA, _BRAND_NVIDIA, _BRAND_UNKNOWN = 2, 14, 0
_SCOPES: Final = (0, 1)
"""NVML_AFFINITY_SCOPE_NODE and _SOCKET."""
_NODES: Final = Path("/sys/devices/system/node")
_LEVELS: Final = (0, 10, 20, 30, 40, 50)
"""nvmlGpuTopologyLevel_t."""
_SAME_NODE: Final = 40
_WORD_BITS: Final = 64
_FIELD_BYTES, _FIELD_RESULT_AT = 40, 28
"""The size of a nvmlFieldValue_t."""


def emulated_device(handle: int) -> Device:
    """Return an emulated device; NvmlError for a GPU, which is recognized by its lack of managed memory."""
    device = nvml.device(handle)
    if not device.properties.attributes.get("MANAGED_MEMORY"):
        raise NvmlError(nvml.UNSUPPORTED, "it is known of emulated devices only")
    return device


def brand(properties: DeviceProperties) -> int:
    """Return a nvmlBrandType_t: the first word of the name."""
    return {"Tesla": _BRAND_TESLA, "NVIDIA": _BRAND_NVIDIA}.get(properties.name.partition(" ")[0], _BRAND_UNKNOWN)


def near_cpus(handle: int, size: int, place: int, scope: int = 0) -> None:
    """Write the CPUs of a device's node as ``size`` words of bits."""
    _write(place, size, _cpus(_node(handle, scope)))


def near_nodes(handle: int, size: int, place: int, scope: int) -> None:
    """Write the NUMA node of a device as ``size`` words of bits."""
    _write(place, size, frozenset({_node(handle, scope)}))


def _node(handle: int, scope: int) -> int:
    node = nvml.properties(handle).attributes.get("HOST_NUMA_ID", -1)
    if scope not in _SCOPES:
        raise NvmlError(nvml.INVALID, f"there is no scope {scope}")
    if node < 0:
        raise NvmlError(nvml.UNSUPPORTED, "the device names no NUMA node of the host")
    return node


def _cpus(node: int) -> frozenset[int]:
    """Return the CPUs of a node (Linux, sysfs-devices-node); a machine without nodes has one."""
    try:
        text = (_NODES / f"node{node}" / "cpulist").read_text()
    except OSError:
        return frozenset(range(os.cpu_count() or 1))
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def _write(place: int, size: int, numbers: frozenset[int]) -> None:
    nvml.place(place)
    if size <= max(numbers) // _WORD_BITS:
        raise NvmlError(nvml.TOO_SMALL, f"{size} words are too few for the number {max(numbers)}")
    words = (c_uint64 * size).from_address(place)
    for index in range(size):
        words[index] = sum(1 << number % _WORD_BITS for number in numbers if number // _WORD_BITS == index)


def near_gpus(cpu: int, count: int, places: int) -> None:
    """Write the devices near a CPU, as many as there is space for, and their number."""
    handles = [nvml.handle_of(entry.number) for entry in nvml.devices()]
    _handles(count, places, [entry for entry in handles if cpu in _cpus(_node(entry, 0))])


def nearest(handle: int, level: int, count: int, places: int) -> None:
    """Write the other devices at a level of nearness: all devices of an emulated machine share a node."""
    own = emulated_device(handle).number
    if level not in _LEVELS:
        raise NvmlError(nvml.INVALID, f"there is no level {level}")
    others = [device.number for device in nvml.devices() if device.number != own and level == _SAME_NODE]
    _handles(count, places, [nvml.handle_of(number) for number in others])


def _handles(count: int, places: int, handles: list[int]) -> None:
    room = c_uint32.from_address(nvml.place(count))
    if places:
        for index, handle in enumerate(handles[: room.value]):
            c_uint64.from_address(places + 8 * index).value = handle
    room.value = len(handles)


def field_values(handle: int, count: int, place: int) -> None:
    """Write NOT_SUPPORTED into each of ``count`` nvmlFieldValue_t."""
    nvml.index(handle)
    if count <= 0:
        raise NvmlError(nvml.INVALID, f"{count} fields")
    for index in range(count):
        c_int32.from_address(nvml.place(place) + index * _FIELD_BYTES + _FIELD_RESULT_AT).value = nvml.UNSUPPORTED


def nothing(handle: int, place: int) -> None:
    """Write 0: an emulated device lacks it, or it is disabled."""
    emulated_device(handle)
    nvml.number(place, 0)


def minor_number(handle: int, place: int) -> None:
    """Write a device's index on the machine; it has no file in /dev."""
    nvml.number(place, emulated_device(handle).ordinal)


def set_persistence(handle: int, mode: int) -> None:
    """Leave persistence mode disabled; NvmlError if it is to be enabled."""
    emulated_device(handle)
    if mode:
        raise NvmlError(nvml.UNSUPPORTED, "an emulated device has no persistence mode")


def event_types(handle: int, place: int) -> None:
    """Write that a device reports no events."""
    emulated_device(handle)
    c_uint64.from_address(nvml.place(place)).value = 0
