"""Running out of file descriptors, in each process: one request fails and says what to do, all else goes on."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

import pytest
from processes import PYMPSD, ClientProcess, DaemonProcess, alive, children_of, wait_until

from pympsd.wire import frames

MakeDaemon = Callable[..., DaemonProcess]
ADVICE = "raise the limit of open file descriptors to 16384 or more (ulimit -n)"
DOCUMENTED = "MPS Server failed to create/open SHM segment."
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


def limits(pid: int) -> tuple[int, int]:
    """A process's soft and hard limit of open descriptors."""
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


def set_limit(pid: int, soft: int) -> None:
    """Change a process's soft limit, as if it had been started with it."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, limits(pid)[1]))


def leave_room(pid: int, room: int) -> None:
    """Limit a process so that it can open just so many descriptors more."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    free = (number for number in count() if number not in used)
    set_limit(pid, next(islice(free, room, None)))


def in_log(daemon: DaemonProcess, words: str) -> None:
    """A server's lines come through its link to the daemon: wait for one."""
    wait_until(lambda: any(words in line for line in daemon.log("server.log")), f"a line with {words!r}")


def starts_with(daemon: DaemonProcess, soft: int, hard: int) -> None:
    """Start the daemon under limits of its own."""
    script = daemon.directory / "limited"
    script.write_text(f'#!/bin/sh\nulimit -S -n {soft}\nulimit -H -n {hard}\nexec {PYMPSD} "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD


@pytest.fixture
def clients(make_daemon: MakeDaemon) -> Iterator[list[ClientProcess]]:
    """What is in the list is ended after the test."""
    made: list[ClientProcess] = []
    yield made
    for client in made:
        client.end()


def test_daemon_servers_and_executors_use_the_hard_limit(
    make_daemon: MakeDaemon, clients: list[ClientProcess]
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    clients.append(daemon.client().connect())
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    for pid in (daemon.pid, server, executor):
        assert limits(pid) == (200, 200)


def test_a_server_without_descriptors_refuses_one_client_and_serves_the_others(
    make_daemon: MakeDaemon, clients: list[ClientProcess]
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    leave_room(server, 4)
    refused = daemon.client()
    clients.append(refused)
    assert refused.do("init") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "the MPS server is out of file descriptors" in refused.do("error")
    assert ADVICE in refused.do("error")
    in_log(daemon, DOCUMENTED)
    in_log(daemon, f"Refusing client {refused.pid}: the MPS server is out of file descriptors: Too many open files")
    assert first.do("add") == RIGHT
    assert daemon.say(f"get_server_status {server}") == "ACTIVE\n"
    set_limit(server, 200)
    assert refused.connect().do("add") == RIGHT, "the same process can try again"
    assert daemon.servers() == [server]


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("room", [0, 1])
def test_a_server_that_cannot_even_take_a_session_goes_on(
    make_daemon: MakeDaemon, clients: list[ClientProcess], room: int
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    leave_room(server, room)
    refused = daemon.client()
    clients.append(refused)
    assert refused.do("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    in_log(daemon, DOCUMENTED)
    assert first.do("add") == RIGHT
    listed = f"{first.pid}\n"
    wait_until(lambda: daemon.say(f"get_client_list {server}") == listed, "the daemon to know that it is not there")
    set_limit(server, 200)
    assert refused.connect().do("add") == RIGHT
    assert daemon.servers() == [server]


def test_an_executor_without_descriptors_fails_one_context(
    make_daemon: MakeDaemon, clients: list[ClientProcess]
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    leave_room(executor, 0)
    second = daemon.client()
    clients.append(second)
    assert second.do("init") == "CUDA_SUCCESS"
    assert second.do("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert ADVICE in second.do("error")
    in_log(daemon, DOCUMENTED)
    assert first.do("add") == RIGHT
    set_limit(executor, 200)
    assert second.do("ctx 0") == "CUDA_SUCCESS"
    assert second.do("add") == RIGHT
    assert children_of(server) == [executor]


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("room", [1, 3])
def test_a_server_that_cannot_start_an_executor_fails_one_context(
    make_daemon: MakeDaemon, clients: list[ClientProcess], room: int
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    client = daemon.client()
    clients.append(client)
    assert client.do("init") == "CUDA_SUCCESS"
    (server,) = daemon.servers()
    leave_room(server, room)
    assert client.do("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "the executor of device 0 could not be started" in client.do("error")
    assert ADVICE in client.do("error")
    in_log(daemon, DOCUMENTED)
    in_log(daemon, ADVICE)
    set_limit(server, 200)
    assert client.do("ctx 0") == "CUDA_SUCCESS"
    assert client.do("add") == RIGHT


@pytest.mark.long
def test_a_client_without_descriptors_is_told(daemon: DaemonProcess, clients: list[ClientProcess]) -> None:
    client = daemon.client()
    clients.append(client)
    assert client.do("count")  # all that it imports is there
    hard = limits(client.pid)[1]
    leave_room(client.pid, 0)
    assert client.do("init") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert "this process is out of file descriptors" in client.do("error")
    assert ADVICE in client.do("error")
    set_limit(client.pid, hard)
    assert client.do("init") == "CUDA_SUCCESS"
    leave_room(client.pid, 1)
    assert client.do("ctx 0") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert ADVICE in client.do("error")
    set_limit(client.pid, hard)
    assert client.do("ctx 0") == "CUDA_SUCCESS"
    assert client.do("add") == RIGHT
    (server,) = daemon.servers()
    assert daemon.say(f"get_client_list {server}") == f"{client.pid}\n"


def test_a_daemon_without_descriptors_keeps_its_servers_and_comes_back(
    make_daemon: MakeDaemon, clients: list[ClientProcess]
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    leave_room(daemon.pid, 6)
    with ExitStack() as idle:
        # Operators who say nothing: each holds descriptors of the daemon for as long as it likes.
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
        refused = daemon.client()
        clients.append(refused)
        assert refused.do("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert first.do("add") == RIGHT
        assert alive(server)
    wait_until(lambda: refused.do("init") == "CUDA_SUCCESS", "service after the operators have left")
    assert refused.do("ctx 0") == "CUDA_SUCCESS"
    assert refused.do("add") == RIGHT
    assert daemon.servers() == [server]


@pytest.mark.long
def test_a_daemon_that_cannot_start_a_server_says_so_and_can_later(
    make_daemon: MakeDaemon, clients: list[ClientProcess]
) -> None:
    daemon = make_daemon()
    starts_with(daemon, soft=64, hard=200)
    # Room for a client at the door (the connection and its pidfd), not for a server's link and pipes as well.
    leave_room(daemon.pid, 4)
    refused = daemon.client()
    clients.append(refused)
    assert refused.do("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert ADVICE in refused.do("error")
    assert any("Failed to start a server for user 0" in line and ADVICE in line for line in daemon.log())
    set_limit(daemon.pid, 200)
    assert refused.connect().do("add") == RIGHT
