"""The remains of a soak, of which there must be none: processes, descriptors, shared memory, files."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen
from processes import POLL_SECONDS, alive, children_of

from tests.chaos.identity import ProcessKey, key_of

PUBLIC: Final = ("/dev/shm", "/tmp", "/var/tmp")
STAYS: Final = frozenset({"control", "control_lock", "control_privileged"})
"""The files that an orderly end leaves in the pipe directory (recorded)."""
VENDOR_STAYS: Final = STAYS | {"pympsd.control"}
"""The files that an orderly end leaves there if the daemon manages the driver's server."""

GOING_SECONDS: Final = 15.0
"""Seconds within which ending processes, and temporary files of other tests, must disappear."""

DAEMON_NEEDS, SERVER_NEEDS, SERVER_NEEDS_EACH, EXECUTOR_NEEDS = 24, 15, 4, 8
"""Descriptors of the processes without clients: measured, with some to spare."""


@frozen
class Before:
    """The processes and files at the start of a soak."""

    descriptors: frozenset[str]
    files: frozenset[str]
    processes: frozenset[ProcessKey]
    """The processes of this run; other tests have executors, too."""

    @classmethod
    def now(cls) -> Before:
        """Return the present processes and files."""
        return cls(frozenset(_descriptors()), frozenset(_files()), frozenset(map(key_of, _processes(()))))


def leaks(
    before: Before,
    directory: Path,
    uids: Collection[int],
    seconds: float = GOING_SECONDS,
    stays: frozenset[str] = STAYS,
) -> list[str]:
    """Return a text for each thing that is left, was not there before, and does not disappear."""
    gc.collect()
    give_up = time.monotonic() + seconds
    while (leftovers := _list_left(before, directory, uids, stays)) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)
    return leftovers


def _list_left(before: Before, directory: Path, uids: Collection[int], stays: frozenset[str]) -> list[str]:
    processes = set(map(key_of, _processes(uids))) - before.processes
    leftovers = [f"process {process.pid}: {_command(process.pid)}" for process in sorted(processes)]
    leftovers += [f"descriptor {descriptor}" for descriptor in sorted(set(_descriptors()) - before.descriptors)]
    leftovers += [f"file {path}" for path in sorted(set(_files()) - before.files) if _is_ours(path, directory, uids)]
    leftovers += [f"temporary file {path}" for path in sorted((directory / "tmp").iterdir())]
    leftovers += [f"{name} in the pipe directory" for name in sorted(_list_names(directory / "pipe") ^ stays)]
    leftovers += [
        f"{name} in the log directory"
        for name in sorted(_list_names(directory / "log") - {"control.log", "server.log"})
        if not (directory / "log" / name / "server.log").exists()  # the log of a named server stays
    ]
    return leftovers


def find_crowded(daemon: int, server: int, executors: Collection[int]) -> Iterator[str]:
    """Yield our processes that have more descriptors than they need without clients."""
    needs = {daemon: DAEMON_NEEDS, server: SERVER_NEEDS + SERVER_NEEDS_EACH * len(executors)}
    needs |= dict.fromkeys(executors, EXECUTOR_NEEDS)
    for pid, most in needs.items():
        if pid and alive(pid) and len(has := _descriptors_of(pid)) > most:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(has).items()))
            name = f"process {pid} ({_command(pid)})"
            yield f"{name} has {len(has)} descriptors and no client, {most} would do: {kinds}"


def _descriptors_of(pid: int) -> list[str]:
    """Return what each descriptor of a process refers to, without inode numbers."""
    targets = []
    with suppress(OSError):  # the process, or the descriptor, may have ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                targets.append(os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")[0])
    return targets


def _processes(uids: Collection[int]) -> Iterator[int]:
    mine = _descendants(os.getpid())
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            ours = pid in mine or os.stat(f"/proc/{pid}").st_uid in uids
        except OSError:
            continue
        if ours and alive(pid):
            yield pid


def _descendants(pid: int) -> set[int]:
    family: list[int] = [pid]
    for parent in family:
        try:
            family += children_of(parent)
        except OSError:
            continue  # it is gone
    return set(family) - {pid}


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield f"{name}: {os.readlink(f'/proc/self/fd/{name}')}"
        except FileNotFoundError:
            continue  # the descriptor of this very listing


def _files() -> Iterator[str]:
    for folder in PUBLIC:
        if os.path.isdir(folder):
            yield from (entry.path for entry in os.scandir(folder))


def _is_ours(path: str, directory: Path, uids: Collection[int]) -> bool:
    """Whether a file is ours, by its user or the product's name; other programs use these folders too."""
    if Path(path) == directory:
        return False
    try:
        return os.lstat(path).st_uid in uids or (path.startswith("/dev/shm/") and "pympsd" in path)
    except OSError:
        return False


def _list_names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone"
