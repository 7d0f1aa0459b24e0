"""-multiuser-server: one server of root's for the clients of all users, logged as driver 580 does (recorded: G)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, clients_of, wait_until

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
UIDS = (0, NOBODY, OTHER)
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
OfUser = Callable[[int], ClientProcess]


@pytest.fixture
def daemon(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A multi-user daemon that logs as driver 580 does; in it, waiting users have no patience at all."""
    running = make_daemon(PYMPSD_LOG_DIALECT="r580", PYMPSD_TURN_PATIENCE="0")
    assert running.start("-d", "-multiuser-server").returncode == 0
    return running


@pytest.fixture
def clients(make_client: OfUser) -> list[ClientProcess]:
    """A client of each of three users, not connected yet."""
    return [make_client(uid) for uid in UIDS]


def test_clients_of_all_users_compute_concurrently_on_one_server_of_root(
    daemon: DaemonProcess, clients: list[ClientProcess]
) -> None:
    for client in clients:
        client.send("init")
    assert [client.result() for client in clients] == ["CUDA_SUCCESS"] * 3
    for client in clients:
        assert client.call("ctx 0") == "CUDA_SUCCESS"
        client.send("add")
    assert [client.result() for client in clients] == [RIGHT] * 3
    (server,) = daemon.servers()
    assert os.stat(f"/proc/{server}").st_uid == 0
    assert sorted(children_of(daemon.pid)) == sorted([server, daemon.keeper()])
    daemon.wait_for_server_messages()
    rows = sorted((row.split()[:3] for row in daemon.run_command("ps").splitlines()[1:]), key=lambda row: row[1])
    assert rows == [[str(client.pid), str(number), str(server)] for number, client in enumerate(clients, 1)]


@pytest.mark.long
def test_a_server_for_another_user_is_the_one_there_is(daemon: DaemonProcess, clients: list[ClientProcess]) -> None:
    clients[1].connect()
    (server,) = daemon.servers()
    assert daemon.run_command(f"start_server -uid {OTHER}") == ""
    assert daemon.servers() == [server]


@pytest.mark.long
def test_the_control_log_is_as_recorded(daemon: DaemonProcess, clients: list[ClientProcess]) -> None:
    for client in clients:
        client.connect()
        # The next one's request must not come before the line about its context.
        requested = f"NEW CLIENT {client.pid} "
        wait_until(lambda requested=requested: sum(requested in line for line in daemon.log()) == 2, "both its lines")
    (server,) = daemon.servers()
    daemon.run_command("start_server -uid 1000")
    for client in clients:
        client.end()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the end of all")
    assert daemon.run_command("quit") == ""
    assert not alive(daemon.pid)
    first, *others = (client.pid for client in clients)
    beginnings = ("NEW CLIENT", "NEW SERVER", "Starting new", "Try ", "Server", "Exit", "Client", "User", "Cmd:start")
    assert [line for line in daemon.log() if line.startswith(beginnings)] == [
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


# --- a device whose executors do not keep their clients' memory apart, as a real GPU


@pytest.fixture
def sharing(make_daemon: Callable[..., DaemonProcess], directory: Path) -> DaemonProcess:
    """A multi-user daemon of two such devices."""
    machine = directory / "machine.toml"
    machine.write_text("isolates_address_spaces = false\n[[device]]\ncount = 2\n")
    running = make_daemon(PYMPSD_EMULATED_DEVICES=str(machine))
    assert running.start("-d", "-multiuser-server").returncode == 0
    return running


@pytest.fixture
def of_user(sharing: DaemonProcess) -> Iterator[OfUser]:
    """Make clients of users."""
    with clients_of(sharing) as make:
        yield make


def _executors(daemon: DaemonProcess, server: int) -> dict[int, list[int]]:
    """Return the PIDs of each user's executors that are there, as server.log says; root's are those of no other."""
    daemon.wait_for_server_messages()
    executors: dict[int, list[int]] = {0: children_of(server)}
    for text in daemon.log("server.log"):
        if text.startswith("Executor ") and " serves user " in text:
            pid, uid = int(text.split()[1]), int(text.split()[-1])
            if pid in executors[0]:
                executors[0].remove(pid)
                executors.setdefault(uid, []).append(pid)
    return executors


@pytest.mark.long
def test_each_user_has_an_executor_of_his_own_on_each_device(sharing: DaemonProcess, of_user: OfUser) -> None:
    users = [of_user(uid).connect() for uid in UIDS]
    same = of_user(OTHER).connect()
    assert same.call("newctx 1") == "CUDA_SUCCESS"
    (server,) = sharing.servers()
    executors = _executors(sharing, server)
    assert {uid: len(pids) for uid, pids in executors.items()} == {0: 1, NOBODY: 1, OTHER: 2}
    for client in (*users, same):
        client.send("add")
    assert [client.result() for client in (*users, same)] == [RIGHT] * 4
    addresses = {client.call("alloc 4096") for client in users}
    assert len(addresses) == 1, "each user has the device's addresses for himself"
    assert len({client.call("alloc 4096") for client in (users[2], of_user(OTHER).connect())}) == 2


@pytest.mark.long
def test_a_fault_of_one_user_costs_no_other(sharing: DaemonProcess, of_user: OfUser) -> None:
    culprit, neighbour, other = of_user(NOBODY).connect(), of_user(NOBODY).connect(), of_user(OTHER).connect()
    (server,) = sharing.servers()
    before = _executors(sharing, server)
    culprit.call("illegal")
    assert culprit.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    wait_until(lambda: sharing.run_command(f"get_server_status {server}") == "FAULT\n", "the fault")
    assert neighbour.first_error() == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert other.call("add") == RIGHT
    assert other.call("newctx 0") == "CUDA_SUCCESS"
    assert of_user(NOBODY).call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    assert of_user(OTHER).connect().call("add") == RIGHT
    for client in (culprit, neighbour):
        client.end()
    wait_until(lambda: sharing.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    after = _executors(sharing, server)
    assert (after[OTHER] == before[OTHER], after[NOBODY] == before[NOBODY]) == (True, False)
    assert of_user(NOBODY).connect().call("add") == RIGHT
    assert other.call("add") == RIGHT


@pytest.mark.long
def test_a_user_that_has_gone_makes_room_for_the_next(sharing: DaemonProcess, of_user: OfUser) -> None:
    stays = of_user(OTHER).connect()
    (server,) = sharing.servers()
    before: dict[int, list[int]] = {}
    for _ in range(2):
        goes = of_user(NOBODY).connect()
        before = before or _executors(sharing, server)
        assert _executors(sharing, server) == before, "the user came again, and no other had wanted the room"
        goes.end()
        wait_until(lambda pid=goes.pid: f"Client {pid} disconnected" in sharing.log("server.log"), "its end")
    assert of_user(0).connect().call("add") == RIGHT
    after = _executors(sharing, server)
    assert (len(after[0]), after.get(NOBODY), after[OTHER]) == (1, None, before[OTHER])
    assert of_user(NOBODY).connect().call("add") == RIGHT
    assert _executors(sharing, server)[0] == after[0], "users with clients keep theirs"
    assert stays.call("add") == RIGHT


def test_a_multiuser_server_is_refused_before_volta(make_daemon: Callable[..., DaemonProcess]) -> None:
    done = make_daemon(PYMPSD_EMULATED_DEVICES="P100").run(["-d", "-multiuser-server"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("-multiuser-server: before Volta all clients of a server share one address space")
