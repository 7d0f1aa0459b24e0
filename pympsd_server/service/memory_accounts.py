"""Account for the memory of clients on each device, in this server's executors and in other servers.

Each executor is sent the number of bytes that clients hold elsewhere.

`CgroupMemory` describes the memory of this process's cgroup (cgroups(7), v2 and v1), for the log line about a killed
executor.

If memory runs out, the kernel kills the process that uses most, and does not report that to the parent: a server sees
only SIGKILL. The counter of such kills, before and after, and the cgroup's limit distinguish this from a kill by an
operator. Server and executors are in the same cgroup.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from pympsd.wire.executor_messages import OthersMemory
from pympsd_server.service.executor import Executor
from pympsd_server.state_machine.executor_slots import ExecutorSlot


@define
class MemoryAccounts:
    """The bytes of device memory that clients hold, as last reported."""

    groups_of: Callable[[int, int], Iterable[str]] = lambda client, device: ()
    """A function of a client's id and a device that returns the client's groups whose limits apply there."""
    changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    """The tasks that wait for the next report."""
    _held: dict[ExecutorSlot, dict[int, int]] = field(factory=dict, init=False)
    """The bytes that clients hold: by slot, and in each slot by client id."""
    _other_servers: dict[int, Counter[str]] = field(factory=dict, init=False)
    """The bytes that clients of other servers hold, by device and group.

    The total of a device has an empty group name.
    """
    _sent: dict[ExecutorSlot, OthersMemory] = field(factory=dict, init=False)
    _executors: dict[ExecutorSlot, Executor] = field(factory=dict, init=False)

    def usage(self, device: int) -> dict[int, int]:
        """Return the bytes that clients hold on a device, by client id."""
        of_device = (usage for slot, usage in self._held.items() if slot.device == device)
        return {client: count for usage in of_device for client, count in usage.items()}

    def count_in_slot(self, slot: ExecutorSlot) -> dict[int, int]:
        """Return the bytes that the clients in a slot hold, by client id."""
        return self._held.get(slot, {})

    def report(self, slot: ExecutorSlot, bytes_by_client: dict[int, int]) -> None:
        """Store the memory that a slot's clients hold, and send it to the other executors of its device."""
        self._held[slot] = bytes_by_client
        self.changed.unpark_all()
        self._send(slot.device)

    def set_other_servers(self, device: int, count: int, groups: dict[str, int]) -> None:
        """Store the bytes that clients of other servers hold, and send them to the executors of the device."""
        self._other_servers[device] = Counter({**groups, "": count})
        self._send(device)

    def add_executor(self, executor: Executor) -> None:
        """Send a new executor the bytes that clients of other executors hold."""
        self._executors[executor.slot] = executor
        self._send(executor.device)

    def remove_executor(self, slot: ExecutorSlot) -> None:
        """Remove the executor of a slot, and its clients' memory."""
        self._executors.pop(slot, None)
        self._sent.pop(slot, None)
        self.report(slot, {})

    def _send(self, device: int) -> None:
        for slot, executor in self._executors.items():
            if slot.device != device:
                continue
            bytes_of_others = Counter(self._other_servers.get(slot.device, Counter()))
            for other_slot, clients in self._held.items():
                if other_slot.device == slot.device and other_slot != slot:
                    for client, count in clients.items():
                        bytes_of_others.update(dict.fromkeys(("", *self.groups_of(client, slot.device)), count))
            message = OthersMemory(bytes_of_others.pop("", 0), dict(bytes_of_others))
            if message != self._sent.get(slot, OthersMemory(0, {})):
                self._sent[slot] = message
                executor.channel.send(message)


_UNLIMITED: Final = 1 << 60
"""The smallest limit in bytes that means "no limit": version 1 of cgroups has a large number instead of "max"."""
_MEMINFO: Final = Path("/proc/meminfo")


@frozen
class _Files:
    """The names of the memory files of a version of cgroups."""

    limit: str
    current: str
    peak: str
    events: str


_V2: Final = _Files("memory.max", "memory.current", "memory.peak", "memory.events")
_V1: Final = _Files(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
)


@frozen
class CgroupMemory:
    """Reads the memory of a cgroup; by default, of this process's."""

    own_group: Path = Path("/proc/self/cgroup")
    groups: Path = Path("/sys/fs/cgroup")

    def oom_kills(self) -> int | None:
        """Return the number of the cgroup's processes that were killed for lack of memory; None if it is unknown."""
        for files, folder, _ in self._folders():
            for line in _read(folder / files.events).splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdecimal():
                    return int(count)
        return None

    def describe(self, oom_kills_before: int | None) -> str:
        """Return a text with the limit and use of the cgroup, or of the cgroup above it that has the lowest limit.

        If no cgroup accounts for memory, the text describes the machine.

        ``oom_kills_before``: the result of ``oom_kills`` before the kill.
        """
        limits = [(_number(folder / files.limit), files, folder, name) for files, folder, name in self._folders()]
        accounted = [row for row in limits if _read(row[2] / row[1].current)]
        if not accounted:
            return f"this machine: {', '.join(_machine())}"
        limit, files, folder, name = min(accounted, key=lambda row: row[0])
        numbers = [f"{files.limit} {_mebibytes(limit)}"]
        for file in (files.current, files.peak):
            if text := _read(folder / file):
                numbers.append(f"{file} {_mebibytes(int(text))}")
        after = self.oom_kills()
        if None not in (oom_kills_before, after):
            numbers.append(f"oom_kill {oom_kills_before} before and {after} after")
        return f"cgroup {name}: {', '.join(numbers)}"

    def _folders(self) -> Iterator[tuple[_Files, Path, str]]:
        """Yield file names, folder and name of the process's cgroup, and of each cgroup above it."""
        for line in _read(self.own_group).splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0":
                files, top = _V2, self.groups
            elif "memory" in controllers.split(","):
                files, top = _V1, self.groups / "memory"
            else:
                continue
            name = Path(path)
            for level in (name, *name.parents):
                yield files, top / str(level).lstrip("/"), str(level)


def _machine() -> Iterator[str]:
    for line in _read(_MEMINFO).splitlines():
        name, _, amount = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            yield f"{name} {_mebibytes(int(amount.split()[0]) << 10)}"


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int:
    text = _read(file)
    return int(text) if text.isdecimal() else _UNLIMITED


def _mebibytes(count: int) -> str:
    return "max" if count >= _UNLIMITED else f"{count >> 20} MiB"
