"""PID namespaces (containers): clients are known by the daemon's view of their PID; where it has none, by id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from processes import CLIENT, PYMPSD, SECONDS, ClientProcess, DaemonProcess, children_of, wait_until

MakeDaemon = Callable[..., DaemonProcess]
MakeInside = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
INSIDE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")


def start_inside(daemon: DaemonProcess, *within: str) -> ClientProcess:
    """A client in a PID namespace of its own; ``process`` is unshare, which stands outside."""
    process = subprocess.Popen(
        [*within, *INSIDE, sys.executable, CLIENT],
        env={**daemon.environment, "PYMPSD_REQUIRE_MPS": "1", "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return ClientProcess(process)


def pid_outside(client: ClientProcess) -> int:
    """The PID that a client in a namespace of its own has out here."""
    wait_until(lambda: children_of(client.pid), "the client's process")
    (pid,) = children_of(client.pid)
    return pid


def namespace(pid: int) -> str:
    return str(os.stat(f"/proc/{pid}/ns/pid").st_ino)


def rows(daemon: DaemonProcess) -> list[list[str]]:
    """The rows of ps, in columns."""
    return [line.split(maxsplit=5) for line in daemon.run_command("ps").splitlines()[1:]]


@pytest.fixture
def make_inside(daemon: DaemonProcess) -> Iterator[MakeInside]:
    """Start clients in namespaces of their own; they are ended after the test."""
    client_processes: list[ClientProcess] = []

    def make() -> ClientProcess:
        client_processes.append(start_inside(daemon))
        return client_processes[-1]

    yield make
    for client in client_processes:
        client.end()


def test_ps_shows_the_daemons_view_of_the_pid_and_the_clients_namespace(
    daemon: DaemonProcess, make_inside: MakeInside
) -> None:
    clients = [make_inside().connect() for _ in range(2)]
    pids = [pid_outside(client) for client in clients]
    assert [client.call("pid") for client in clients] == ["1", "1"], "inside each is the first"
    (server,) = daemon.servers()
    daemon.wait_for_server_messages()
    shown = rows(daemon)
    assert [(row[0], row[4]) for row in shown] == [(str(pid), namespace(pid)) for pid in pids]
    assert len({row[4] for row in shown} | {namespace(os.getpid())}) == 3, "three namespaces"
    assert all(CLIENT in row[5] for row in shown)
    assert daemon.run_command(f"get_client_list {server}").split() == [str(pid) for pid in pids]
    listed = daemon.run_command("get_device_client_list").splitlines()[1:]
    assert listed == [f"{pid}.1" for pid in pids]
    assert daemon.log().count("NEW CLIENT 1 from user 0: Server already exists") == 0, "never the inner PID"


def test_terminate_client_takes_that_pid(daemon: DaemonProcess, make_inside: MakeInside) -> None:
    first, second = make_inside().connect(), make_inside().connect()
    (server,) = daemon.servers()
    assert daemon.run_command(f"terminate_client {server} 1") == "201\n", "an inner PID is not a client's"
    assert first.call("add") == second.call("add") == RIGHT
    assert daemon.run_command(f"terminate_client {server} {pid_outside(first)}") == "0\n"
    assert first.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert second.call("add") == RIGHT
    first.call("newctx 0")
    assert first.call("sync") == "CUDA_SUCCESS"


def test_a_container_that_is_killed_takes_its_clients_with_it(daemon: DaemonProcess, make_inside: MakeInside) -> None:
    killed, other = make_inside().connect(), make_inside().connect()
    (server,) = daemon.servers()
    other_pid = pid_outside(other)
    os.kill(pid_outside(killed), signal.SIGKILL)
    wait_until(
        lambda: daemon.run_command(f"get_client_list {server}") == f"{other_pid}\n", "the end of the killed one"
    )
    assert other.call("add") == RIGHT


@pytest.fixture
def daemon_inside(make_daemon: MakeDaemon) -> Iterator[DaemonProcess]:
    """A daemon that is the first process of a PID namespace: it sees no process out here."""
    daemon = make_daemon()
    process = subprocess.Popen(
        [*INSIDE, PYMPSD, "-f"],
        env={**daemon.environment, "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: daemon.run([], "ps\n").returncode == 0, "the daemon's sockets")
        yield daemon
        daemon.run_command("quit -t 0")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def invisible(daemon_inside: DaemonProcess) -> Iterator[list[ClientProcess]]:
    """Two clients that the daemon cannot see: one out here, one in a sibling of its namespace."""
    clients = [daemon_inside.client(), start_inside(daemon_inside)]
    yield clients
    for client in clients:
        client.end()


@pytest.mark.long
def test_clients_that_the_daemon_cannot_see_are_distinguished_by_id(
    daemon_inside: DaemonProcess, invisible: list[ClientProcess]
) -> None:
    out_here, sibling = (client.connect() for client in invisible)
    assert out_here.call("add") == sibling.call("add") == RIGHT
    daemon_inside.wait_for_server_messages()
    shown = rows(daemon_inside)
    assert [row[0] for row in shown] == ["0", "0"]
    assert [row[1] for row in shown] == ["1", "2"], "the ids of their first contexts"
    assert [row[4] for row in shown] == [namespace(os.getpid()), namespace(pid_outside(sibling))], "as they reported"
    assert all(re.search(r"client_program\.py$", row[5]) for row in shown)


@pytest.mark.long
def test_no_client_is_terminated_by_a_pid_that_belongs_to_none(
    daemon_inside: DaemonProcess, invisible: list[ClientProcess]
) -> None:
    out_here, sibling = (client.connect() for client in invisible)
    (server,) = daemon_inside.servers()
    for word in ("0", "abc", str(out_here.pid)):
        done = daemon_inside.run([], f"terminate_client {server} {word}\n")
        assert done.stdout == "201\n"
    assert out_here.call("add") == sibling.call("add") == RIGHT


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["out here", "sibling"])
def test_the_end_of_a_client_that_cannot_be_seen_is_noticed(
    daemon_inside: DaemonProcess, invisible: list[ClientProcess], which: int
) -> None:
    for client in invisible:
        client.connect()
    invisible[which].end(signal.SIGKILL)
    wait_until(lambda: [row[1] for row in rows(daemon_inside)] == [str(2 - which)], "the end of that one")
    assert invisible[1 - which].call("add") == RIGHT
