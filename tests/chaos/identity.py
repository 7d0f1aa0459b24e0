"""Keys of processes: a PID alone is reused before long (many machines have 32,768 of them)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

GONE: Final = -1


class ProcessKey(NamedTuple):
    """A process: its PID and when it started, in clock ticks since boot (proc(5), stat, field 22)."""

    pid: int
    started: int = 0
    """The start time; GONE if the process had ended before this was read."""


NO_PROCESS: Final = ProcessKey(0, GONE)


def key_of(pid: int) -> ProcessKey:
    """Return the process that now has a PID."""
    return ProcessKey(pid, _state_and_start(pid)[1])


def there(process: ProcessKey) -> bool:
    """Whether a process still exists and is not a zombie."""
    state, started = _state_and_start(process.pid)
    return process.started == started != GONE and state not in "ZX"


@contextmanager
def open_pidfd(pid: int) -> Iterator[int]:
    """Hold a descriptor of a process for a block; it never refers to a later process of the same PID.

    Raise OSError if no process has the PID.
    """
    watched = os.pidfd_open(pid)
    try:
        yield watched
    finally:
        os.close(watched)


def strike(process: ProcessKey, number: int) -> bool:
    """Send a signal to a process if it is still the same; return whether it was sent."""
    with suppress(OSError), open_pidfd(process.pid) as watched:
        # The check comes after the descriptor is opened, so both are about the same process.
        if there(process):
            signal.pidfd_send_signal(watched, number)
            return True
    return False


def _state_and_start(pid: int) -> tuple[str, int]:
    try:
        # The second field, the name in parentheses, may contain blanks, so the fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError):
        return "X", GONE
