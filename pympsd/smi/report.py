"""Write the report of -q on each device, complete or with the parts that -d names (recorded)."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from pympsd.process.version import cuda_version, driver_version
from pympsd.smi.machine import MIB, MonitoredDevice, MonitoredMachine
from pympsd.smi.options import BAD_VALUE, UnsupportedRequest
from pympsd.smi.summary import sort_processes

_COLUMN: Final = 55


def report(machine: MonitoredMachine, devices: Sequence[MonitoredDevice], display: str) -> str:
    """Return the report that ``-q`` prints.

    Args:
        machine: The machine, for the versions of driver and CUDA.
        devices: The devices that the report describes.
        display: The value of ``-d``: names of parts, separated by commas; empty for the whole report.

    Raises:
        UnsupportedRequest: ``-d`` names an unknown part.
    """
    displayed = parts(display)
    displays = [part for name, part in DISPLAYS.items() if not displayed or name in displayed]
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line(0, "Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        _line(0, "Driver Version", driver_version(machine.driver)),
        _line(0, "CUDA Version", cuda_version(machine.driver)),
        "",
        _line(0, "Attached GPUs", len(machine.devices)),
    ]
    for device in devices:
        lines.append(f"GPU {device.bus_id}")
        for part in displays if displayed else (_identity, *displays):
            lines += part(device)
        lines.append("")
    return "\n".join(lines) + "\n"


def parts(display: str) -> frozenset[str]:
    """Return the names of the parts that ``-d`` selects, in upper case; an empty set for the whole report.

    >>> sorted(parts("memory, PIDS"))
    ['MEMORY', 'PIDS']

    Raises:
        UnsupportedRequest: One of the parts does not exist.
    """
    requested = frozenset(word.strip().upper() for word in display.split(",")) if display else frozenset()
    if not requested <= DISPLAYS.keys():
        raise UnsupportedRequest("Failed to parse --display/-d flags\n", BAD_VALUE)
    return requested


def _identity(device: MonitoredDevice) -> Iterator[str]:
    yield _line(1, "Product Name", device.properties.name)
    yield _line(1, "GPU UUID", device.properties.uuid)
    yield _line(1, "CUDA Compute Capability", ".".join(map(str, device.properties.compute_capability)))
    yield _line(1, "Multiprocessors", device.properties.multiprocessors)
    yield "    PCI"
    yield _line(2, "Bus Id", device.bus_id)


def _memory(device: MonitoredDevice) -> Iterator[str]:
    yield "    FB Memory Usage"
    for name, mebibytes in device.memory_mib.items():
        yield _line(2, name.capitalize(), f"{mebibytes} MiB")


def _utilization(device: MonitoredDevice) -> Iterator[str]:
    yield "    Utilization"
    for name, percentage in (("GPU", device.utilization), ("Memory", 0)):
        yield _line(2, name, f"{percentage} %")


def _pids(device: MonitoredDevice) -> Iterator[str]:
    if not device.processes:
        yield _line(1, "Processes", "None")
        return
    yield "    Processes"
    for process in sort_processes(device.processes):
        yield _line(2, "GPU instance ID", "N/A")
        yield _line(2, "Compute instance ID", "N/A")
        yield _line(2, "Process ID", process.pid)
        yield _line(3, "Type", process.kind)
        yield _line(3, "Name", process.name)
        yield _line(3, "Used GPU Memory", f"{process.used // MIB} MiB")


DISPLAYS: Final = {
    "MEMORY": _memory,
    "COMPUTE": lambda device: iter([_line(1, "Compute Mode", device.shown_mode)]),
    "UTILIZATION": _utilization,
    "PIDS": _pids,
}


def _line(depth: int, name: str, value: object) -> str:
    return f"{'    ' * depth + name:<{_COLUMN}}: {value}"
