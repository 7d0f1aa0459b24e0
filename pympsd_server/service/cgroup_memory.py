"""The memory of this process's cgroup (cgroups(7), v2 and v1), for the report on an executor that was killed.

The kernel kills the process that holds most when memory runs out, and does not report that to its parent: all that
a server sees is SIGKILL. The counter of such kills, before and after, and the cgroup's limit distinguish it from a
kill by an operator. Server and executors are in the same cgroup.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen

_UNLIMITED: Final = 1 << 60
"""A limit from here on is none: version 1 has a large number in place of "max"."""
_MEMINFO: Final = Path("/proc/meminfo")


@frozen
class _Files:
    """The names of the files of a version of cgroups."""

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
    """The files to read; the defaults are this process's."""

    own_group: Path = Path("/proc/self/cgroup")
    groups: Path = Path("/sys/fs/cgroup")

    def oom_kills(self) -> int | None:
        """Return how many processes of the cgroup the kernel has killed for lack of memory; None if unknown."""
        for files, folder, _ in self._folders():
            for line in _read(folder / files.events).splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdecimal():
                    return int(count)
        return None

    def describe(self, oom_kills_before: int | None) -> str:
        """Return the numbers of the cgroup, or of the one above it that has the least limit; those of the machine if
        no cgroup accounts for memory.

        ``oom_kills_before``: what ``oom_kills`` returned before the kill.
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
        """Yield the folder and the name of the process's cgroup, and of each above it."""
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
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            yield f"{name} {_mebibytes(int(rest.split()[0]) << 10)}"


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int:
    text = _read(file)
    return int(text) if text.isdecimal() else _UNLIMITED


def _mebibytes(count: int) -> str:
    return "max" if count >= _UNLIMITED else f"{count >> 20} MiB"
