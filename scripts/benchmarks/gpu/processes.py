"""Cleanup of processes: daemons and their descendants become the benchmark's children, and are ended with it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_SECONDS_TO_LEAVE: Final = 5.0
_SECONDS_TO_DIE: Final = 10.0
_PAUSE: Final = 0.02


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> list[int]:
    """Wait a while for all children to end, then kill them; return those that had to be killed."""
    if _ends_within(_SECONDS_TO_LEAVE):
        return []
    killed: set[int] = set()
    give_up = time.monotonic() + _SECONDS_TO_DIE
    while time.monotonic() < give_up:  # a child that ends may leave its own children to this process
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        if _ends_within(_PAUSE):
            break
    return sorted(killed)


def _ends_within(seconds: float) -> bool:
    give_up = time.monotonic() + seconds
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return True
        if time.monotonic() >= give_up:
            return False
        time.sleep(_PAUSE)


def _children() -> list[int]:
    result = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    result.append(int(place.name))
    return result
