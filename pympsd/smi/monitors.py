"""Write the tables of ``dmon``, ``pmon`` and ``topo``, which nvidia-smi prints line by line, at an interval.

An emulated GPU has values for its utilization and for the memory of processes. Other columns have a dash, as in
nvidia-smi for values that a GPU lacks. Among the processes only servers have a utilization, which is the sum for
their clients; 0 is shown as a dash.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from pympsd.smi.machine import MIB, MonitoredDevice
from pympsd.smi.options import BAD_OPTION, BAD_VALUE, NOT_SUPPORTED, UnsupportedRequest, interval, refuse
from pympsd.smi.summary import sort_processes

COMMANDS: Final = ("dmon", "pmon")
OPTIONS: Final = {"-i": "ID", "-d": "SECONDS", "-c": "COUNT", "-s": "METRICS", "-o": "DT", "-f": "FILE"}
_GROUPS: Final = {
    "dmon": {
        "p": (("pwr", "W"), ("gtemp", "C"), ("mtemp", "C")),
        "u": (("sm", "%"), ("mem", "%"), ("enc", "%"), ("dec", "%"), ("jpg", "%"), ("ofa", "%")),
        "c": (("mclk", "MHz"), ("pclk", "MHz")),
        "v": (("pviol", "%"), ("tviol", "bool")),
        "m": (("fb", "MB"), ("bar1", "MB"), ("ccpm", "MB")),
        "e": (("sbecc", "errs"), ("dbecc", "errs"), ("pci", "errs")),
        "t": (("rxpci", "MB/s"), ("txpci", "MB/s")),
    },
    "pmon": {
        "u": (("sm", "%"), ("mem", "%"), ("enc", "%"), ("dec", "%"), ("jpg", "%"), ("ofa", "%")),
        "m": (("fb", "MB"), ("ccpm", "MB")),
    },
}
"""The columns for each letter of -s, with their units."""
_DEFAULTS: Final = {"dmon": "puc", "pmon": "u"}
_HEADER_EVERY: Final = 20
"""The number of reports after which the header is printed again."""
_TOPOLOGY_LEGEND: Final = """
Legend:

  X    = Self
  NODE = The GPUs of an emulated machine have its node in common
"""


@frozen
class Monitor:
    """The command line of ``dmon`` or ``pmon``, parsed.

    ``ids`` is the value of ``-i`` (None means all devices), ``seconds`` the interval, ``count`` the number of reports
    (None if unlimited), ``metrics`` the letters of ``-s`` and ``file`` the path of ``-f``.

    >>> parse(["dmon", "-s", "m", "-c", "3"]).columns
    [('fb', 'MB'), ('bar1', 'MB'), ('ccpm', 'MB')]
    """

    command: str
    ids: str | None = None
    seconds: int = 1
    count: int | None = None
    metrics: str = ""
    stamps: str = ""
    """The columns at the beginning of a line: D for the date, T for the time."""
    file: str = ""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns and their units, in the order in which ``-s`` names their groups."""
        return [column for letter in self.metrics for column in _GROUPS[self.command][letter]]


def parse(arguments: Sequence[str]) -> Monitor | None:
    """Parse a command line of ``dmon`` or ``pmon``.

    Args:
        arguments: The command and its options.

    Returns:
        The parsed command line, or None if it asks for help.

    Raises:
        UnsupportedRequest: An option does not exist, lacks its value or has an invalid one.
    """
    command, *remaining = arguments
    values: dict[str, str] = {}
    while remaining:
        option = remaining.pop(0)
        if option in ("-h", "--help"):
            return None
        if option not in OPTIONS:
            refuse(f"Option {option} is not recognized. Please run '{{program}} -h'.", BAD_OPTION)
        if not remaining:
            refuse(f"Option {option} is missing its value. Please run '{{program}} -h' for help.", BAD_OPTION)
        values[option] = remaining.pop(0)
    metrics, stamps = values.get("-s", _DEFAULTS[command]), values.get("-o", "")
    for option, text, letters in (("-s", metrics, "".join(_GROUPS[command])), ("-o", stamps, "DT")):
        if not set(text) <= set(letters):
            refuse(f"Option {option} of {command} takes letters of {letters}, not {text!r}.", BAD_VALUE)
    count = interval("-c", values["-c"]) if "-c" in values else None
    seconds = interval("-d", values["-d"]) if "-d" in values else 1
    return Monitor(command, values.get("-i"), seconds, count, metrics, stamps, values.get("-f", ""))


def report(monitor: Monitor, devices: Sequence[MonitoredDevice], number: int) -> str:
    """Return the lines of one report, with line ends.

    Args:
        monitor: The columns, and whether lines begin with the date or the time.
        devices: The devices, with the processes on them.
        number: The number of the report, counted from 0. A header is printed before every 20th report.
    """
    lines = _header(monitor) if number % _HEADER_EVERY == 0 else []
    forms = (form for letter, form in (("D", " %Y%m%d  "), ("T", " %H:%M:%S  ")) if letter in monitor.stamps)
    stamp = time.strftime("".join(forms))
    rows = (
        (f"{device.index:>5}{_cells(monitor, _values(device))}" for device in devices)
        if monitor.command == "dmon"
        else _process_rows(monitor, devices)
    )
    return "".join(f"{line}\n" for line in (*lines, *(f"{stamp}{row}" for row in rows)))


def topology(arguments: Sequence[str], devices: Sequence[MonitoredDevice]) -> str:
    """Return the matrix that ``topo -m`` prints: how each pair of devices is connected.

    The devices of an emulated machine share one NUMA node, so each pair is ``NODE``.

    Raises:
        UnsupportedRequest: The only argument is not ``-m`` or ``--matrix``.
    """
    if list(arguments) not in (["-m"], ["--matrix"]):
        raise UnsupportedRequest("ERROR: of topo only -m is supported by emulated GPUs.\n\n", NOT_SUPPORTED)
    names = [f"GPU{device.index}" for device in devices]
    lines = ["\t".join(("", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))]
    for name in names:
        cells = (" X " if column == name else "NODE" for column in names)
        lines.append("\t".join((name, *cells, "N/A", "N/A", "N/A")))
    return "".join(f"{line}\n" for line in lines) + _TOPOLOGY_LEGEND


def _header(monitor: Monitor) -> list[str]:
    stamps = "".join(f"{name:<11}" for letter, name in (("D", "Date"), ("T", "Time")) if letter in monitor.stamps)
    units = "".join(
        f"{name:<11}" for letter, name in (("D", "YYYYMMDD"), ("T", "HH:MM:SS")) if letter in monitor.stamps
    )
    process = ("        pid   type", "          #    C/G") if monitor.command == "pmon" else ("", "")
    command = ("    command", "    name") if monitor.command == "pmon" else ("", "")
    first = "".join(f"{name:>7}" for name, _ in monitor.columns)
    second = "".join(f"{unit:>7}" for _, unit in monitor.columns)
    return [f"#{stamps} gpu{process[0]}{first}{command[0]}", f"#{units} Idx{process[1]}{second}{command[1]}"]


def _process_rows(monitor: Monitor, devices: Sequence[MonitoredDevice]) -> Iterator[str]:
    for device in devices:
        for process in sort_processes(device.processes):
            name = process.name.rpartition("/")[2][:15]
            busy = {"sm": process.utilization, "mem": 0} if process.utilization else {}
            cells = _cells(monitor, {"fb": process.used // MIB, **busy})
            yield f"{device.index:>5}{process.pid:>11}{process.kind:>7}{cells}    {name}"
        if not device.processes:
            yield f"{device.index:>5}{'-':>11}{'-':>7}{_cells(monitor, {})}    -"


def _values(device: MonitoredDevice) -> dict[str, int]:
    return {"sm": device.utilization, "mem": 0, "fb": device.used // MIB}


def _cells(monitor: Monitor, values: Mapping[str, int]) -> str:
    return "".join(f"{values.get(name, '-'):>7}" for name, _ in monitor.columns)
