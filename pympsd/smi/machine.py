"""Read the machine's current state: the devices with their compute modes, and the processes on them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from pympsd.devices.machine import COMPUTE_MODES, describe, set_driver
from pympsd.devices.registrations import GONE, Registered, list_registered
from pympsd.devices.state_folder import StateFolder, apply_current_modes, state_folder_of
from pympsd.errors import InputError
from pympsd.vocabulary.device_properties import DeviceProperties, combine_utilization
from pympsd.vocabulary.untrusted import printable

MODE_NAMES: Final = {number: name for name, number in COMPUTE_MODES.items()}
_COMMAND_BYTES: Final = 1 << 12
MIB: Final = 1 << 20


class NoSuchDevice(InputError):
    """Raised when ``-i`` names a device that the machine does not have; the message is the given word.

    pympsd-smi then prints ``No devices were found`` and ends with status 6, as nvidia-smi does.
    """


@frozen
class MonitoredProcess:
    """A process on a device: a server, or one of its clients.

    ``pid`` is the PID in this program's PID namespace; ``kind`` is ``C`` for a server and ``M+C`` for a client, as
    nvidia-smi prints them under MPS.

    >>> MonitoredProcess(pid=4711, kind="M+C", used=64 << 20).used
    67108864
    """

    pid: int
    kind: str
    used: int
    """The device memory that the process uses, in bytes."""
    utilization: int = 0
    """The percentage of the last second in which the process's kernels ran.

    For a server it counts the kernels of all its clients.
    """

    @property
    def name(self) -> str:
        """The path by which the program was started, which is the first word of its command line.

        It is ``[Not Found]`` if the process has exited or its command line cannot be read. Unprintable characters are
        escaped.
        """
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as file:
                first = file.read(_COMMAND_BYTES).partition(b"\0")[0].decode(errors="replace")
        except OSError:
            first = ""
        return printable(first) or "[Not Found]"


@frozen
class MonitoredDevice:
    """One device of the machine, with its current compute mode and the processes on it.

    ``index`` counts the machine's devices from 0 and ignores CUDA_VISIBLE_DEVICES, as in nvidia-smi.
    """

    index: int
    properties: DeviceProperties
    processes: tuple[MonitoredProcess, ...]
    """The servers by PID, each followed by its clients by PID; empty if processes were not looked up."""
    utilization: int = 0
    """The percentage of the last second in which kernels of any server ran."""

    @property
    def bus_id(self) -> str:
        """The device's PCI address as nvidia-smi prints it, such as ``00000000:06:00.0``."""
        return self.properties.bus_id

    @property
    def mode(self) -> str:
        """The compute mode: DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS."""
        return MODE_NAMES[self.properties.attributes["COMPUTE_MODE"]]

    @property
    def shown_mode(self) -> str:
        """The compute mode as it is printed: Default, Prohibited or Exclusive_Process."""
        return "_".join(word.capitalize() for word in self.mode.split("_"))

    @property
    def total(self) -> int:
        """The device's memory in bytes, including the driver's own, as NVML counts it."""
        return self.properties.memory_bytes + self.properties.reserved_bytes

    @property
    def memory_mib(self) -> dict[str, int]:
        """The device's total, reserved, used and free memory in MiB, by these names and in this order."""
        reserved, free = self.properties.reserved_bytes, self.properties.memory_bytes - self.used
        counts = {"total": self.total, "reserved": reserved, "used": self.used, "free": free}
        return {name: count // MIB for name, count in counts.items()}

    @property
    def used(self) -> int:
        """The device memory that the processes use, in bytes.

        It is 0 if processes were not looked up (``MonitoredMachine.of`` with ``with_processes=False``).
        """
        return sum(process.used for process in self.processes)


@frozen
class MonitoredMachine:
    """The current state of an emulated machine: its devices and the folder of its state.

    ``text`` is the value of PYMPSD_EMULATED_DEVICES that describes the machine: the short form, or a machine file's
    path.

    >>> machine = MonitoredMachine.of("2xH200", with_processes=False)
    >>> [device.total >> 30 for device in machine.devices], machine.select("1")[0].index
    ([140, 140], 1)
    """

    text: str
    devices: tuple[MonitoredDevice, ...]
    folder: StateFolder

    @property
    def driver(self) -> int:
        """The driver branch that the devices report, such as 580 or 590."""
        return self.devices[0].properties.driver

    @classmethod
    def of(cls, text: str, with_processes: bool = True) -> MonitoredMachine:
        """Read the state of a machine.

        Args:
            text: The short form, such as ``2xH200``, or the path of a machine file.
            with_processes: Whether to look up the processes on each device too, which locks the machine's folder
                briefly.

        Raises:
            BadMachine: The description is invalid, or its folder cannot be read.
        """
        folder = state_folder_of(text)
        properties = apply_current_modes(set_driver(describe(text), os.environ), text)
        devices = []
        for index, device in enumerate(properties):
            servers = list_registered(folder, device.uuid) if with_processes else []
            utilization = combine_utilization(server.utilization for server in servers)
            devices.append(MonitoredDevice(index, device, _processes(servers, device), utilization))
        return cls(text, tuple(devices), folder)

    def select(self, ids: str | None) -> tuple[MonitoredDevice, ...]:
        """Return the devices that ``-i`` names, in the machine's order; without ``-i`` all devices.

        Args:
            ids: Indexes, UUIDs or PCI addresses, separated by commas; None if ``-i`` was not given.

        Raises:
            NoSuchDevice: One of the words does not name a device.
        """
        if ids is None:
            return self.devices
        requested = [self._find(word.strip()) for word in ids.split(",")]
        return tuple(device for device in self.devices if device in requested)

    def _find(self, word: str) -> MonitoredDevice:
        for device in self.devices:
            if word in (str(device.index), device.properties.uuid) or word.upper() == device.bus_id:
                return device
        raise NoSuchDevice(word)


def _processes(servers: Iterable[Registered], properties: DeviceProperties) -> tuple[MonitoredProcess, ...]:
    """Return the processes on a device: each server, followed by its clients."""
    processes: list[MonitoredProcess] = []
    for server in servers:
        if properties.is_volta_or_newer:
            used_by_pid: Counter[int] = Counter()
            for pid, used in server.clients:
                used_by_pid[pid] += used
            # The memory of exited clients counts as the server's.
            processes.append(MonitoredProcess(server.pid, "C", used_by_pid.pop(GONE, 0), server.utilization))
            processes += [MonitoredProcess(pid, "M+C", used) for pid, used in sorted(used_by_pid.items())]
        else:
            # Before Volta the memory of all clients is the server's (MPS documents, 2.3.1.1).
            used = sum(used for _, used in server.clients)
            processes.append(MonitoredProcess(server.pid, "C", used, server.utilization))
    return tuple(processes)
