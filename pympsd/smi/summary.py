"""Write the table and the list of devices in the layout of nvidia-smi 580 (recorded)."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from pympsd.process.version import DRIVER, VERSION, cuda_version, driver_version
from pympsd.smi.machine import MIB, MonitoredDevice, MonitoredProcess

_WIDTH: Final = 89
_CELLS: Final = (41, 24, 22)
_NAME_WIDTH: Final = 36
_SHOWN_MODES: Final = {"DEFAULT": "Default", "PROHIBITED": "Prohibited", "EXCLUSIVE_PROCESS": "E. Process"}
_HEADINGS: Final = (
    " GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC ",
    " Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. ",
    "                                         |                        |               MIG M. ",
)
_PROCESS_HEADINGS: Final = (
    " Processes:                                                                              ",
    "  GPU   GI   CI              PID   Type   Process name                        GPU Memory ",
    "        ID   ID                                                               Usage      ",
)


def listing(devices: Sequence[MonitoredDevice]) -> str:
    """Return the output of ``-L``: a line for each device, with its index, name and UUID."""
    return "".join(
        f"GPU {device.index}: {device.properties.name} (UUID: {device.properties.uuid})\n" for device in devices
    )


def table(devices: Sequence[MonitoredDevice]) -> str:
    """Return the output of pympsd-smi without options: a table of the devices and a table of the processes on them.

    The layout is that of nvidia-smi 580. Memory is in MiB, and values that an emulated device lacks are ``N/A``.
    """
    lines = [time.strftime("%a %b %e %H:%M:%S %Y       "), *_device_lines(devices), "", *_process_lines(devices)]
    return "\n".join(lines) + "\n"


def _device_lines(devices: Sequence[MonitoredDevice]) -> Iterator[str]:
    driver = devices[0].properties.driver if devices else DRIVER
    versions = f"{f'Driver Version: {driver_version(driver)}':<31}{f'CUDA Version: {cuda_version(driver)}':<23}"
    title = f" {f'PYMPSD-SMI {VERSION}':<34}{versions}"
    rule = "+" + "+".join("-" * width for width in _CELLS) + "+"
    yield "+" + "-" * _WIDTH + "+"
    yield f"|{title}|"
    yield rule
    yield from (f"|{heading}|" for heading in _HEADINGS)
    yield "|" + "+".join("=" * width for width in _CELLS) + "|"
    for device in devices:
        yield from (f"|{line}|" for line in _cells(device))
        yield rule


def _cells(device: MonitoredDevice) -> Iterator[str]:
    used, total = device.memory_mib["used"], device.memory_mib["total"]
    mode = _SHOWN_MODES[device.mode]
    yield f" {device.index:>3}  {device.properties.name[:30]:<30}N/A  |{device.bus_id:>19} Off |{'N/A':>21} "
    utilization = f"{device.utilization}%"
    yield f" N/A   N/A    N/A            N/A /  N/A  |{used:>8}MiB / {total:>6}MiB |{utilization:>8} {mode:>12} "
    yield f"{'':41}|{'':24}|{'N/A':>21} "


def _process_lines(devices: Sequence[MonitoredDevice]) -> Iterator[str]:
    edge = "+" + "-" * _WIDTH + "+"
    yield edge
    yield from (f"|{heading}|" for heading in _PROCESS_HEADINGS)
    yield "|" + "=" * _WIDTH + "|"
    rows = [_process_line(device, process) for device in devices for process in sort_processes(device.processes)]
    yield from rows or [f"|{'  No running processes found':<{_WIDTH}}|"]
    yield edge


def sort_processes(processes: Sequence[MonitoredProcess]) -> list[MonitoredProcess]:
    """Return processes in the order in which tables and reports list them: by PID."""
    return sorted(processes, key=lambda process: process.pid)


def _process_line(device: MonitoredDevice, process: MonitoredProcess) -> str:
    name = process.name
    if len(name) >= _NAME_WIDTH:
        name = "..." + name[-(_NAME_WIDTH - 4) :]
    used = f"{process.used // MIB}MiB"
    return f"|{device.index:>5}   N/A  N/A {process.pid:>15} {process.kind:>6}   {name:<{_NAME_WIDTH}}{used:>10} |"
