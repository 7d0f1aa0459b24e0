"""A daemon of protocol 3 under test: its commands, and the directories of its servers and namespaces."""

from __future__ import annotations

from pathlib import Path

from processes import DaemonProcess


def ctl(daemon: DaemonProcess, line: str, status: int = 0) -> str:
    """Give a command; return its output."""
    done = daemon.run(line.split())
    assert done.returncode == status, done
    return done.stdout.removesuffix("\n")


def pipe(daemon: DaemonProcess, place: str) -> Path:
    """Return the pipe directory of a server or a namespace."""
    return daemon.directory / "pipe" / place


def start(daemon: DaemonProcess, *more: str) -> DaemonProcess:
    """Start a daemon of protocol 3, or replace it by another."""
    done = daemon.start("-d", "-p", "3", *more)
    assert (done.returncode, done.stderr) == (0, "")
    return daemon
