"""--query-gpu and --query-compute-apps: chosen fields as CSV (recorded)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pympsd.smi.machine import Device, Machine, Process
from pympsd.smi.options import BAD_VALUE, Refused
from pympsd.smi.summary import MIB
from pympsd.version import DRIVER_VERSION

MEMORY_UNIT: Final = "MiB"

_OF_DEVICES: Final[dict[str, Callable[[Device], object]]] = {
    "index": lambda device: device.index,
    "uuid": lambda device: device.facts.uuid,
    "name": lambda device: device.facts.name,
    "pci.bus_id": lambda device: device.bus_id,
    "memory.total": lambda device: device.total // MIB,
    "memory.used": lambda device: device.used // MIB,
    "memory.free": lambda device: device.total // MIB - device.used // MIB,
    "compute_mode": lambda device: device.shown_mode,
    "compute_cap": lambda device: ".".join(map(str, device.facts.compute_capability)),
    "driver_version": lambda _: DRIVER_VERSION,
}
_OF_PROCESSES: Final[dict[str, Callable[[Device, Process], object]]] = {
    "pid": lambda _, process: process.pid,
    "process_name": lambda _, process: process.name,
    "used_gpu_memory": lambda _, process: process.used // MIB,
    "gpu_name": lambda device, _: device.facts.name,
    "gpu_uuid": lambda device, _: device.facts.uuid,
    "gpu_bus_id": lambda device, _: device.bus_id,
}
_OTHER_NAMES: Final = {
    "gpu_uuid": "uuid",
    "gpu_name": "name",
    "gpu_bus_id": "pci.bus_id",
}
_OTHER_PROCESS_NAMES: Final = {"used_memory": "used_gpu_memory", "name": "process_name"}
_IN_MIB: Final = frozenset({"memory.total", "memory.used", "memory.free", "used_gpu_memory"})


def of_devices(machine: Machine, devices: Sequence[Device], fields: str, form: frozenset[str]) -> str:
    """Return a row for each device; raise Refused for an unknown field."""
    known: dict[str, Callable[[Device], object]] = {**_OF_DEVICES, "count": lambda _: len(machine.devices)}
    names = _names(fields, known, _OTHER_NAMES)
    return _csv(names, ([known[name](device) for name in names] for device in devices), form)


def of_processes(devices: Sequence[Device], fields: str, form: frozenset[str]) -> str:
    """Return a row for each process, servers before their clients; raise Refused for an unknown field."""
    names = _names(fields, _OF_PROCESSES, _OTHER_PROCESS_NAMES)
    rows = (
        [_OF_PROCESSES[name](device, process) for name in names] for device in devices for process in device.processes
    )
    return _csv(names, rows, form)


def _names(fields: str, known: Iterable[str], others: dict[str, str]) -> list[str]:
    names = []
    for field in (word.strip() for word in fields.split(",")):
        name = others.get(field, field)
        if name not in known:
            raise Refused(f'Field "{field}" is not a valid field to query.\n\n', BAD_VALUE)
        names.append(name)
    return names


def _csv(names: Sequence[str], rows: Iterable[Sequence[object]], form: frozenset[str]) -> str:
    units = [f" {MEMORY_UNIT}" if name in _IN_MIB and "nounits" not in form else "" for name in names]
    lines = [", ".join(f"{value}{unit}" for value, unit in zip(row, units, strict=True)) for row in rows]
    if "noheader" not in form:
        lines.insert(0, ", ".join(f"{name} [{MEMORY_UNIT}]" if name in _IN_MIB else name for name in names))
    return "".join(f"{line}\n" for line in lines)
