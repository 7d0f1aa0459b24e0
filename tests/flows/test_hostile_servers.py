"""Users who take the link of their own server and speak for it: they delay nobody, and forge no lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, kill_after, wait_until

from pympsd.wire import link_messages as link
from pympsd.wire import messages

EXECUTED = True
"""The processes that are attacked are what users have (see `prepared`)."""
A, B = 10001, 10002
PROGRAM = str(Path(__file__).parents[1] / "support" / "hostile_server.py")
FORGED = "[2026-11-28 16:00:00.000 Control     1] Exit with status 0"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@contextmanager
def taken_link(server: int) -> Iterator[Callable[..., None]]:
    """Yield a function that sends messages over the link of user A's server, which a process of A also has."""
    program = subprocess.Popen(
        [sys.executable, PROGRAM, str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=A
    )
    with kill_after(program):
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "has the link\n"

        def send(*sent: object) -> None:
            print(*(messages.encode(message).hex() for message in sent), file=program.stdin, flush=True)
            assert program.stdout is not None
            assert program.stdout.readline() == "sent\n"

        yield send


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_server_that_was_killed_has_ended_whoever_has_its_link(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess], is_taken_over: bool
) -> None:
    client = make_client(A).connect()
    (server,) = daemon.servers()
    if is_taken_over:
        daemon.kill()
        assert daemon.start().returncode == 0
        wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "its return")
    with taken_link(server):
        os.kill(server, signal.SIGKILL)
        assert make_client(B).call("init") == "CUDA_SUCCESS"
        assert not alive(server)
        assert f"Server {server} exited with status -9" in daemon.log() or is_taken_over
        client.end(signal.SIGKILL)


@pytest.mark.parametrize(
    "message",
    [link.LogRecord(f"event\n{FORGED}", {}, 0.0), link.StatusChanged(f"status\n{FORGED}")],
    ids=["unknown event", "unknown status"],
)
def test_a_server_that_is_ended_for_its_message_forges_no_line(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess], message: object
) -> None:
    client = make_client(A).connect()
    (server,) = daemon.servers()
    with taken_link(server) as send:
        send(message)
        wait_until(lambda: not alive(server), "the end of the server")
    text = (daemon.directory / "log" / "control.log").read_text()
    assert f"Protocol violation by server {server}: " in text
    assert FORGED not in text.splitlines()
    client.end(signal.SIGKILL)


def test_reports_of_dropped_lines_are_limited_like_all_lines(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess]
) -> None:
    make_client(A).connect()
    (server,) = daemon.servers()
    with taken_link(server) as send:
        for _ in range(8):
            send(*[link.LogDropped(1)] * 1000)
        send(link.LogRecord("server_exiting", {}, time.time()))
        wait_until(lambda: "Exiting" in daemon.log("server.log"), "the last line")
    dropped = [line for line in daemon.log("server.log") if line.startswith("Dropped ")]
    assert dropped == ["Dropped 8000 log lines: too many in a short time"]
