"""--query-gpu and --query-compute-apps: chosen fields as CSV (recorded)."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pympsd.process.version import driver_version
from pympsd.smi.fields import DEVICE_ALIASES, DEVICE_FIELDS, PROCESS_ALIASES, PROCESS_FIELDS
from pympsd.smi.machine import Device, Machine, Process
from pympsd.smi.options import BAD_VALUE, Refused
from pympsd.smi.summary import MIB

NOT_AVAILABLE: Final = "[N/A]"

_OF_DEVICES: Final[dict[str, Callable[[Device], object]]] = {
    "timestamp": lambda _: _now(),
    "index": lambda device: device.index,
    "uuid": lambda device: device.properties.uuid,
    "name": lambda device: device.properties.name,
    "pci.bus_id": lambda device: device.bus_id,
    "pci.domain": lambda device: f"0x{device.bus_id.split(':')[0][-4:]}",
    "pci.bus": lambda device: f"0x{device.bus_id.split(':')[1]}",
    "pci.device": lambda device: f"0x{device.bus_id.split(':')[2].partition('.')[0]}",
    "memory.total": lambda device: device.total // MIB,
    "memory.reserved": lambda _: 0,
    "memory.used": lambda device: device.used // MIB,
    "memory.free": lambda device: device.total // MIB - device.used // MIB,
    "utilization.gpu": lambda device: device.utilization,
    "utilization.memory": lambda _: 0,
    "compute_mode": lambda device: device.shown_mode,
    "compute_cap": lambda device: ".".join(map(str, device.properties.compute_capability)),
    "driver_version": lambda device: driver_version(device.properties.driver),
}
"""The fields that an emulated device has."""
_OF_PROCESSES: Final[dict[str, Callable[[Device, Process], object]]] = {
    "timestamp": lambda _, process: _now(),
    "pid": lambda _, process: process.pid,
    "process_name": lambda _, process: process.name,
    "used_gpu_memory": lambda _, process: process.used // MIB,
    "gpu_name": lambda device, _: device.properties.name,
    "gpu_uuid": lambda device, _: device.properties.uuid,
    "gpu_bus_id": lambda device, _: device.bus_id,
}


def of_devices(machine: Machine, devices: Sequence[Device], fields: str, form: frozenset[str]) -> str:
    """Return the answer to ``--query-gpu``: a header, and a line for each device.

    Args:
        machine: The machine, for the field ``count``.
        devices: The devices to list.
        fields: Names of fields, separated by commas; aliases are accepted.
        form: Modifiers of ``--format``: ``noheader`` leaves the header out, ``nounits`` the units of values.

    Returns:
        Lines of comma-separated values. Memory is in MiB; a value that an emulated device lacks is ``[N/A]``.

    Raises:
        Refused: nvidia-smi does not have one of the fields.
    """
    readers: dict[str, Callable[[Device], object]] = {**_OF_DEVICES, "count": lambda _: len(machine.devices)}
    names = _names(fields, DEVICE_FIELDS, DEVICE_ALIASES)
    rows = ([readers[name](device) if name in readers else None for name in names] for device in devices)
    return _csv(DEVICE_FIELDS, names, rows, form)


def of_processes(devices: Sequence[Device], fields: str, form: frozenset[str]) -> str:
    """Return the answer to ``--query-compute-apps``: a header, and a line for each process on each device.

    A server comes before its clients. Arguments and errors are those of `of_devices`.
    """
    names = _names(fields, PROCESS_FIELDS, PROCESS_ALIASES)
    rows = (
        [_OF_PROCESSES[name](device, process) if name in _OF_PROCESSES else None for name in names]
        for device in devices
        for process in device.processes
    )
    return _csv(PROCESS_FIELDS, names, rows, form)


def fields_help(fields: Mapping[str, str], aliases: Mapping[str, str]) -> str:
    """Return what ``--help-query-gpu`` or ``--help-query-compute-apps`` prints: a line for each field.

    Args:
        fields: The fields, each with its unit.
        aliases: Other names of fields, each with the field's name.
    """
    lines = ["List of valid properties to query:", ""]
    for name in fields:
        others = [f' or "{alias}"' for alias, field in aliases.items() if field == name]
        lines.append(f'"{name}"{"".join(others)}')
    return "".join(f"{line}\n" for line in lines)


def _now() -> str:
    seconds = time.time()
    return f"{time.strftime('%Y/%m/%d %H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03d}"


def _names(fields: str, all_fields: Iterable[str], others: Mapping[str, str]) -> list[str]:
    names = []
    for field in (word.strip() for word in fields.split(",")):
        name = others.get(field, field)
        if name not in all_fields:
            raise Refused(f'Field "{field}" is not a valid field to query.\n\n', BAD_VALUE)
        names.append(name)
    return names


def _csv(
    units: Mapping[str, str], names: Sequence[str], rows: Iterable[Sequence[object]], form: frozenset[str]
) -> str:
    """Return the lines; None in a row is a value that an emulated device does not have."""
    after = [f" {units[name]}" if units[name] and "nounits" not in form else "" for name in names]
    lines = [
        ", ".join(
            NOT_AVAILABLE if value is None else f"{value}{unit}" for value, unit in zip(row, after, strict=True)
        )
        for row in rows
    ]
    if "noheader" not in form:
        lines.insert(0, ", ".join(f"{name} [{units[name]}]" if units[name] else name for name in names))
    return "".join(f"{line}\n" for line in lines)
