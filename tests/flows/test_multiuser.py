"""-multiuser-server: one server of root's for the clients of all users, logged as driver 580 does (recorded: G)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
UIDS = (0, NOBODY, OTHER)
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A multi-user daemon that logs as driver 580 does; in it, whoever waits has no patience at all."""
    running = make_daemon(PYMPSD_LOG_DIALECT="r580", PYMPSD_TURN_PATIENCE="0")
    assert running.start("-d", "-multiuser-server").returncode == 0
    return running


@pytest.fixture
def clients(daemon: DaemonProcess) -> Iterator[list[ClientProcess]]:
    """A client of each of three users, not connected yet."""
    with ExitStack() as ends:
        made = []
        for uid in UIDS:
            client = daemon.client(uid)
            ends.callback(client.process.communicate)
            ends.callback(client.process.kill)
            made.append(client)
        yield made


def test_clients_of_all_users_compute_at_once_on_one_server_of_root(
    daemon: DaemonProcess, clients: list[ClientProcess]
) -> None:
    for client in clients:
        client.begin("init")
    assert [client.result() for client in clients] == ["CUDA_SUCCESS"] * 3
    for client in clients:
        assert client.do("ctx 0") == "CUDA_SUCCESS"
        client.begin("add")
    assert [client.result() for client in clients] == [RIGHT] * 3
    (server,) = daemon.servers()
    assert os.stat(f"/proc/{server}").st_uid == 0
    assert children_of(daemon.pid) == [server]
    rows = sorted((row.split()[:3] for row in daemon.say("ps").splitlines()[1:]), key=lambda row: row[1])
    assert rows == [[str(client.pid), str(number), str(server)] for number, client in enumerate(clients, 1)]


def test_a_server_for_another_user_is_the_one_there_is(daemon: DaemonProcess, clients: list[ClientProcess]) -> None:
    clients[1].connect()
    (server,) = daemon.servers()
    assert daemon.say(f"start_server -uid {OTHER}") == ""
    assert daemon.servers() == [server]


def test_the_control_log_is_as_recorded(daemon: DaemonProcess, clients: list[ClientProcess]) -> None:
    for client in clients:
        client.connect()
    (server,) = daemon.servers()
    daemon.say("start_server -uid 1000")
    for client in clients:
        client.end()
    assert daemon.say("quit") == ""
    assert not alive(daemon.pid)
    first, *others = (client.pid for client in clients)
    told = ("NEW CLIENT", "NEW SERVER", "Starting new", "Try ", "Server", "Exit", "Client", "User", "Cmd:start")
    assert [line for line in daemon.log() if line.startswith(told)] == [
        f"NEW CLIENT {first} from user 0: Server is not ready, push client to pending list",
        f"Starting new server {server} for user 0",
        f"NEW SERVER {server}: Ready",
        f"NEW CLIENT {first} from user 0: Server already exists",
        *(f"NEW CLIENT {pid} from user 0: Server already exists" for pid in others for _ in ("client", "context")),
        "Cmd:start_server -uid 1000",
        f"Try shutting down server {server}, backoff is disabled",
        f"Server {server} exited with status 0",
        "Exit with status 0",
    ]


def test_before_volta_there_is_none(make_daemon: Callable[..., DaemonProcess]) -> None:
    done = make_daemon(PYMPSD_EMULATED_DEVICES="P100").run(["-d", "-multiuser-server"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("-multiuser-server: before Volta all clients of a server share one address space")
