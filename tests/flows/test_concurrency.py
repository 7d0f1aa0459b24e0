"""Many user interfaces at the same time: whatever a hundred of them do, the others are answered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from operators import CONVERSATION, Operator, line_frame, run_on_many_connections
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, wait_until

from pympsd.cli.daemon_connection import TIMEOUT

PROMPT = TIMEOUT
"""Seconds: the command line gives up an answer that takes longer, on any machine."""
MakeClient = Callable[..., ClientProcess]


def control(daemon: DaemonProcess) -> str:
    return str(daemon.directory / "pipe" / "control")


def descriptors(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


@pytest.fixture
def at_its_end_no_descriptor_is_left(daemon: DaemonProcess) -> Iterator[None]:
    """The daemon has as many descriptors after the test as before."""
    daemon.run_command("ps")
    wait_until(lambda: daemon.log()[-1] == "UI closed", "the end of the first session")
    before = descriptors(daemon)
    yield
    wait_until(lambda: descriptors(daemon) <= before, "the daemon's descriptors back to before")


def is_prompt(daemon: DaemonProcess) -> None:
    """The command line, and a new session by hand, are answered promptly."""
    began = time.monotonic()
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"
    with Operator.at(control(daemon)) as operator:
        assert operator.run_command("get_server_list") == ""
    assert time.monotonic() - began < PROMPT


def test_a_hundred_that_say_nothing(daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None) -> None:
    with ExitStack() as stack:
        for number in range(100):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(control(daemon))
            # Nothing at all, half a hello, a hello without a command, half a command.
            sock.sendall((CONVERSATION + line_frame("ps")[:9])[: (0, 5, 8, 15)[number % 4]])
        is_prompt(daemon)


@pytest.mark.long
def test_a_hundred_that_read_nothing(daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(control(daemon))
            sock.setblocking(False)
            sock.sendall(CONVERSATION)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            _pour(sock, line_frame("device_query --csv") * 100)
        is_prompt(daemon)
        is_prompt(daemon)


def _pour(sock: socket.socket, data: bytes) -> int:
    """Send as much as goes without waiting."""
    sent = 0
    while sent < len(data):
        try:
            sent += sock.send(data[sent:])
        except BlockingIOError:
            break
    return sent


def test_operators_are_answered_while_others_flood_the_daemon(
    daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None
) -> None:
    """Ten that give commands without end and never read, while others are answered."""
    flooders = []
    line = line_frame("x" * 1000)
    with ExitStack() as stack:
        for _ in range(10):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(control(daemon))
            sock.sendall(CONVERSATION)
            sock.setblocking(False)
            flooders.append(sock)
        for _ in range(10):
            for sock in flooders:
                _pour(sock, line * 100)
            is_prompt(daemon)


def test_floods_that_read(daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None) -> None:
    """A hundred user interfaces with a thousand commands between them, one other in the middle of it."""
    with ExitStack() as stack:
        busy = [stack.enter_context(Operator.at(control(daemon))) for _ in range(100)]
        for operator in busy:
            operator.send(*["get_default_client_priority"] * 10)
        is_prompt(daemon)
        for operator in busy:
            assert [operator.answer()[0] for _ in range(10)] == ["0\n"] * 10


def test_a_thousand_simultaneous_connections_are_all_answered(
    daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None
) -> None:
    seconds = run_on_many_connections(control(daemon), 1000, "get_default_active_thread_percentage")
    assert len(seconds) == 1000
    assert max(seconds) < SECONDS
    is_prompt(daemon)


def test_a_pending_quit_delays_no_other_command(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    quits = [subprocess.Popen([PYMPSD], env=daemon.environment, stdin=subprocess.PIPE) for _ in range(3)]
    for entry in quits:
        assert entry.stdin is not None
        entry.stdin.write(b"quit\n")
        entry.stdin.close()
    wait_until(lambda: daemon.log().count("Cmd:quit") == 3, "three quits")
    with ExitStack() as stack:
        busy = [stack.enter_context(Operator.at(control(daemon))) for _ in range(50)]
        began = time.monotonic()
        for operator in busy:
            operator.send("get_server_list", f"get_client_list {server}")
        for operator in busy:
            assert [operator.answer()[0] for _ in range(2)] == [f"{server}\n", f"{client.pid}\n"]
        assert time.monotonic() - began < PROMPT
    assert [process.poll() for process in quits] == [None] * 3
    client.end(signal.SIGKILL)
    assert [process.wait(SECONDS) for process in quits] == [0] * 3


def test_operators_that_hang_up_in_the_middle(daemon: DaemonProcess, at_its_end_no_descriptor_is_left: None) -> None:
    frames = CONVERSATION + line_frame("device_query") + line_frame("get_server_list")
    for length in range(1, len(frames) + 1):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(control(daemon))
            sock.sendall(frames[:length])
    is_prompt(daemon)
