"""Notify a service manager of the daemon's state, as sd_notify(3) describes; without one all of this does nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import trio

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the socket that NOTIFY_SOCKET names. A manager that does not listen is not an error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock,
    ):
        sock.sendto(state.encode(), address)


def notify_reloading() -> None:
    """Report that the logs are opened again; READY follows."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


async def run_watchdog() -> None:
    """Report that the daemon's tasks run, at half of the interval that the manager set, if there is one."""
    interval = os.environ.get("WATCHDOG_USEC", "")
    if not interval.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await trio.sleep(int(interval) / 2_000_000)
