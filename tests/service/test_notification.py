"""What a daemon reports to the service manager that started it: readiness, watchdog, reload, stop."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, kill_after

Next = Callable[[], str]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Next]]:
    """Yield what NOTIFY_SOCKET is, and a function that awaits the next message but the watchdog's."""
    name = f"{tmp_path}/notify" if request.param == "path" else f"@pympsd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))

        def receive() -> str:
            assert select.select([sock], [], [], SECONDS)[0], "the daemon says nothing"
            return sock.recv(4096).decode()

        yield name, receive


def test_a_service_manager_is_notified(manager: tuple[str, Next], tmp_path: Path) -> None:
    name, receive = manager

    def after_watchdogs() -> str:
        while (output := receive()) == "WATCHDOG=1":
            pass
        return output

    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
        "PYMPSD_BACKEND": "emulated",
        "NOTIFY_SOCKET": name,
        "WATCHDOG_USEC": "20000",
    }
    for folder in ("pipe", "log"):
        (tmp_path / folder).mkdir()
    command = [PYMPSD, "-f"]
    with kill_after(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)) as daemon:
        assert receive() == "READY=1"
        ask = [PYMPSD, "get_default_active_thread_percentage"]
        assert subprocess.run(ask, env=environment, capture_output=True).stdout == b"100.0\n"
        assert [receive() for _ in range(3)] == ["WATCHDOG=1"] * 3
        os.kill(daemon.pid, signal.SIGHUP)
        assert after_watchdogs().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert after_watchdogs() == "READY=1"
        os.kill(daemon.pid, signal.SIGTERM)
        assert after_watchdogs() == "STOPPING=1"
        assert daemon.wait(SECONDS) == 0
