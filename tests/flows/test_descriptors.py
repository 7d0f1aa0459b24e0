"""Running out of file descriptors, in each process: one request fails and reports what to do, all else continues."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

import pytest
from attrs import define
from processes import PYMPSD, ClientProcess, DaemonProcess, alive, children_of, wait_until

from pympsd.wire import frames

pytestmark = pytest.mark.long

MakeDaemon = Callable[..., DaemonProcess]
Start = Callable[[DaemonProcess], ClientProcess]
ADVICE = "raise the limit of open file descriptors to 16384 or more (ulimit -n)"
DOCUMENTED = "MPS Server failed to create/open SHM segment."
HARD = 200
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def limits(pid: int) -> tuple[int, int]:
    """A process's soft and hard limit of open descriptors."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


def set_limit(pid: int, soft: int) -> None:
    """Change a process's soft limit, as if it had been started with it."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, limits(pid)[1]))


def leave_room(pid: int, room: int) -> None:
    """Limit a process so that it can open only that many descriptors more."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    free = (number for number in count() if number not in used)
    set_limit(pid, next(islice(free, room, None)))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start clients, which are ended after the test."""
    client_processes: list[ClientProcess] = []

    def client(daemon: DaemonProcess) -> ClientProcess:
        client_processes.append(daemon.client())
        return client_processes[-1]

    yield client
    for client_process in client_processes:
        client_process.end()


@pytest.fixture
def limited(make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon that was started under limits of its own."""
    daemon = make_daemon()
    script = daemon.directory / "limited"
    script.write_text(f'#!/bin/sh\nulimit -S -n 64\nulimit -H -n {HARD}\nexec {PYMPSD} "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    return daemon


@define
class Sharing:
    """Processes under limits of their own: a daemon, its server with an executor, and a connected client."""

    daemon: DaemonProcess
    server: int
    executor: int
    client: ClientProcess
    start: Start

    def start_client(self) -> ClientProcess:
        """Start another client."""
        return self.start(self.daemon)


def logs(daemon: DaemonProcess, words: str) -> None:
    """Wait for a line in server.log, which comes through the server's link to the daemon."""
    wait_until(lambda: any(words in line for line in daemon.log("server.log")), f"a line with {words!r}")


@pytest.fixture
def sharing(limited: DaemonProcess, start: Start) -> Sharing:
    """A client is connected."""
    client = start(limited).connect()
    (server,) = limited.servers()
    (executor,) = children_of(server)
    return Sharing(limited, server, executor, client, start)


def test_daemon_servers_and_executors_use_the_hard_limit(sharing: Sharing) -> None:
    for pid in (sharing.daemon.pid, sharing.server, sharing.executor):
        assert limits(pid) == (HARD, HARD)


@pytest.mark.long
def test_a_next_daemon_that_may_not_open_what_is_left_to_it_refuses_and_nothing_is_lost(sharing: Sharing) -> None:
    daemon = sharing.daemon
    daemon.kill()
    script = Path(daemon.directory / "limited")
    script.write_text(script.read_text().replace(f"-H -n {HARD}", "-H -n 40").replace("-S -n 64", "-S -n 40"))
    daemon.command = str(script)
    refused = daemon.start()
    assert refused.returncode == 1
    assert f"are more than this daemon may open: {ADVICE} and start the daemon again" in refused.stderr
    assert sharing.client.call("add") == RIGHT
    daemon.command = PYMPSD
    assert daemon.start().returncode == 0
    assert daemon.servers() == [sharing.server]
    assert sharing.client.call("add") == RIGHT


@pytest.mark.long
def test_a_server_without_descriptors_refuses_one_client_and_serves_the_others(sharing: Sharing) -> None:
    leave_room(sharing.server, 4)
    refused = sharing.start_client()
    assert refused.call("init") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "the MPS server is out of file descriptors" in refused.call("error")
    assert ADVICE in refused.call("error")
    logs(sharing.daemon, DOCUMENTED)
    logs(
        sharing.daemon,
        f"Refusing client {refused.pid}: the MPS server is out of file descriptors: Too many open files",
    )
    assert sharing.client.call("add") == RIGHT
    assert sharing.daemon.run_command(f"get_server_status {sharing.server}") == "ACTIVE\n"
    set_limit(sharing.server, HARD)
    assert refused.connect().call("add") == RIGHT, "the same process can try again"
    assert sharing.daemon.servers() == [sharing.server]


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("room", [0, 1])
def test_a_server_that_cannot_even_take_a_session_continues(sharing: Sharing, room: int) -> None:
    leave_room(sharing.server, room)
    refused = sharing.start_client()
    assert refused.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    logs(sharing.daemon, DOCUMENTED)
    assert sharing.client.call("add") == RIGHT
    listed = f"{sharing.client.pid}\n"
    wait_until(
        lambda: sharing.daemon.run_command(f"get_client_list {sharing.server}") == listed,
        "the end of the refused client's row",
    )
    set_limit(sharing.server, HARD)
    assert refused.connect().call("add") == RIGHT
    assert sharing.daemon.servers() == [sharing.server]


def test_an_executor_without_descriptors_fails_one_context(sharing: Sharing) -> None:
    leave_room(sharing.executor, 0)
    second = sharing.start_client()
    assert second.call("init") == "CUDA_SUCCESS"
    assert second.call("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert ADVICE in second.call("error")
    logs(sharing.daemon, DOCUMENTED)
    assert sharing.client.call("add") == RIGHT
    set_limit(sharing.executor, HARD)
    assert second.call("ctx 0") == "CUDA_SUCCESS"
    assert second.call("add") == RIGHT
    assert children_of(sharing.server) == [sharing.executor]


def test_a_daemon_without_descriptors_keeps_its_servers_and_comes_back(sharing: Sharing) -> None:
    daemon = sharing.daemon
    leave_room(daemon.pid, 6)
    with ExitStack() as idle:
        # Operators' connections without a command: each holds descriptors of the daemon for as long as it likes.
        while not any(ADVICE in line for line in daemon.log()):
            operator = idle.enter_context(socket.socket(socket.AF_UNIX))
            operator.connect(str(daemon.directory / "pipe" / "control"))
            operator.settimeout(0.2)
            try:
                operator.sendall(frames.encode(frames.OPERATOR_HELLO) + frames.encode(frames.OPERATOR_LINE, b"ps"))
                operator.recv(1)
            except (TimeoutError, ConnectionError):
                pass
        assert f"Refusing a connection: Too many open files: {ADVICE}" in daemon.log()
        refused = sharing.start_client()
        assert refused.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert sharing.client.call("add") == RIGHT
        assert alive(sharing.server)
    wait_until(lambda: refused.call("init") == "CUDA_SUCCESS", "service after the operators have left")
    assert refused.call("ctx 0") == "CUDA_SUCCESS"
    assert refused.call("add") == RIGHT
    assert daemon.servers() == [sharing.server]


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("room", [1, 3])
def test_a_server_that_cannot_start_an_executor_fails_one_context(
    limited: DaemonProcess, start: Start, room: int
) -> None:
    client = start(limited)
    assert client.call("init") == "CUDA_SUCCESS"
    (server,) = limited.servers()
    leave_room(server, room)
    assert client.call("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "the executor of device 0 could not be started" in client.call("error")
    assert ADVICE in client.call("error")
    logs(limited, DOCUMENTED)
    logs(limited, ADVICE)
    set_limit(server, HARD)
    assert client.call("ctx 0") == "CUDA_SUCCESS"
    assert client.call("add") == RIGHT


def test_a_daemon_that_cannot_start_a_server_reports_it_and_can_later(limited: DaemonProcess, start: Start) -> None:
    # Room for a client's connection and its pidfd, not for a server's link and pipes as well.
    leave_room(limited.pid, 4)
    refused = start(limited)
    assert refused.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert ADVICE in refused.call("error")
    assert any("Failed to start a server for user 0" in line and ADVICE in line for line in limited.log())
    set_limit(limited.pid, HARD)
    assert refused.connect().call("add") == RIGHT


def test_a_client_without_descriptors_gets_a_reason(daemon: DaemonProcess, start: Start) -> None:
    client = start(daemon)
    assert client.call("count")  # all that it imports is there
    hard = limits(client.pid)[1]
    leave_room(client.pid, 0)
    assert client.call("init") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "this process is out of file descriptors" in client.call("error")
    assert ADVICE in client.call("error")
    set_limit(client.pid, hard)
    assert client.call("init") == "CUDA_SUCCESS"
    leave_room(client.pid, 1)
    assert client.call("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert ADVICE in client.call("error")
    set_limit(client.pid, hard)
    assert client.call("ctx 0") == "CUDA_SUCCESS"
    assert client.call("add") == RIGHT
    (server,) = daemon.servers()
    assert daemon.run_command(f"get_client_list {server}") == f"{client.pid}\n"
