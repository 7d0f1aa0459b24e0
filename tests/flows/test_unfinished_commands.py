"""A daemon that ends while it works on a command, here a fake one: only a quit is done then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import SECONDS, DaemonProcess, kill_after

from pympsd.wire import frames

WORKING = frames.encode(frames.OPERATOR_WORKING)
DAEMON = """
import socket, sys
path, awaited, answer = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    connection, _ = listener.accept()
    heard = b""
    while awaited.encode() not in heard:
        heard += connection.recv(65536)
    connection.sendall(bytes.fromhex(answer))
"""
"""A daemon that waits for a text, sends the answer in its last argument, and ends."""


@pytest.fixture
def end_after(directory: Path) -> Iterator[None]:
    """Have a daemon at the pipe directory that reports it works on a line, and ends."""
    with kill_after(
        subprocess.Popen(
            [sys.executable, "-c", DAEMON, directory / "pipe" / "control", "last", WORKING.hex()],
            stdout=subprocess.PIPE,
            text=True,
        )
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        yield
        daemon.communicate(timeout=SECONDS)


@pytest.mark.usefixtures("end_after")
@pytest.mark.parametrize("as_arguments", [True, False])
def test_a_command_whose_daemon_ends_has_failed(directory: Path, as_arguments: bool) -> None:
    line = "server create last"
    done = DaemonProcess(directory).run(line.split() if as_arguments else [], f"{line}\n")
    text = f"The MPS control daemon closed the connection before '{line}' was done; part of it may have been done\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", text)


@pytest.mark.usefixtures("end_after")
@pytest.mark.parametrize("line", ["quit", " quit -t 5 "])
def test_a_quit_whose_daemon_ends_is_done(directory: Path, line: str) -> None:
    done = DaemonProcess(directory).run([], f"{line}\nlast\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
