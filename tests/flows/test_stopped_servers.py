"""A server that is stopped, or that has no descriptor to spare: it delays only its own user."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, alive, wait_until

from pympsd.channel.descriptors import close_all
from pympsd.wire.framing import FrameReader
from pympsd.wire.messages import ClientHello, Refused, SessionGranted, Versions, decode, encode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")

MakeDaemon = Callable[..., DaemonProcess]
A, B = 10001, 10002
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MAX_CONNECTIONS = 2000
"""Far more than a socket holds of what a server has not read."""


@pytest.fixture
def clients() -> Iterator[list[ClientProcess]]:
    """End the clients in the list after the test; requested before the daemon's fixture, so that it ends later."""
    client_processes: list[ClientProcess] = []
    yield client_processes
    for client in client_processes:
        if client.process.returncode is None:
            client.end(signal.SIGKILL)


def descriptors(pid: int) -> set[int]:
    """Return the descriptors of a process."""
    return set(map(int, os.listdir(f"/proc/{pid}/fd")))


def set_limit(pid: int, soft: int) -> None:
    """Change a process's soft limit of open descriptors."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


def connect(daemon: DaemonProcess) -> object:
    """Connect as a client of this process's user; return the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(daemon.directory / "pipe" / "control"))
        connection.sendall(encode(ClientHello(Versions(), os.getpid(), "connects", 1, {})))
        reader, frames = FrameReader(fds_allowed=1), []
        while not frames:
            data, fds, _, _ = socket.recv_fds(connection, 65536, 1)
            assert data, "the daemon has hung up"
            frames = list(reader.feed(data, tuple(fds)))
        close_all(frames[0].fds)
        return decode(frames[0])


@pytest.mark.long
def test_clients_that_died_behind_a_stopped_server_hold_no_turn(
    clients: list[ClientProcess], daemon: DaemonProcess
) -> None:
    clients.extend((daemon.client(A).connect(), daemon.client(A).connect(), daemon.client(B)))
    (server,) = daemon.servers()
    os.kill(server, signal.SIGSTOP)
    for client in clients[:2]:
        client.end(signal.SIGKILL)
    waiting = clients[2]
    waiting.send("init")
    assert waiting.result() == "CUDA_SUCCESS"
    assert not alive(server)
    log = daemon.log()
    silent = log.index(f"All clients of server {server} have exited, but the server has not reported this for 10 s")
    assert log[silent:].count(f"Server {server} does not respond; killing it") == 1


@pytest.mark.long
def test_clients_that_died_behind_a_stopped_server_do_not_delay_a_quit_of_the_next_daemon(
    clients: list[ClientProcess], daemon: DaemonProcess
) -> None:
    clients.append(daemon.client(A).connect())
    (server,) = daemon.servers()
    daemon.kill()
    assert daemon.start().returncode == 0
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "its return")
    os.kill(server, signal.SIGSTOP)
    clients[0].end(signal.SIGKILL)
    assert daemon.run([], "quit").returncode == 0
    assert not alive(server)
    daemon.await_end()


def test_a_stopped_server_takes_only_a_share_of_the_daemons_descriptors(
    clients: list[ClientProcess], daemon: DaemonProcess
) -> None:
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    daemon.wait_for_server_messages()
    before = len(descriptors(daemon.pid))
    set_limit(daemon.pid, 256)
    os.kill(server, signal.SIGSTOP)
    answers = (connect(daemon) for _ in range(MAX_CONNECTIONS))
    refused = next(answer for answer in answers if not isinstance(answer, SessionGranted))
    assert isinstance(refused, Refused)
    assert refused.reason.endswith("the server of user 0 accepts no clients: it is stopped or stuck")
    # A quarter of them waits for the server, and a sixteenth are pidfds of clients.
    most = before + 256 // 4 + 256 // 16
    wait_until(lambda: len(descriptors(daemon.pid)) <= most, "the end of the connection that was refused")
    assert str(first.pid) in daemon.run_command("ps").split()
    os.kill(server, signal.SIGCONT)
    assert first.call("add") == RIGHT
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == f"{first.pid}\n", "the others' end")
    wait_until(lambda: len(descriptors(daemon.pid)) <= before, "the end of their descriptors")
    assert isinstance(connect(daemon), SessionGranted)


def test_a_server_without_room_for_a_descriptor_outlives_its_daemon(
    clients: list[ClientProcess], daemon: DaemonProcess
) -> None:
    first = daemon.client().connect()
    clients.append(first)
    (server,) = daemon.servers()
    set_limit(server, 3)
    daemon.kill()
    assert first.call("add") == RIGHT
    assert daemon.start().returncode == 0
    # It keeps its link, and needs no other one.
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "its return")
    assert first.call("add") == RIGHT
    assert daemon.servers() == [server]
