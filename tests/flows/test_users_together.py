"""--users together: real processes of several users, each with a server of its own at the same time."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, clients_of, wait_until

NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[[int], ClientProcess]


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon in which users are together."""
    running = make_daemon()
    done = running.start("-d", "--users", "together")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return running


def servers_by_user(daemon: DaemonProcess) -> dict[int, int]:
    """Return the PID of each user's server; its executors are that user's too."""
    servers = {os.stat(f"/proc/{pid}").st_uid: pid for pid in daemon.servers()}
    assert all(
        os.stat(f"/proc/{executor}").st_uid == uid for uid, pid in servers.items() for executor in children_of(pid)
    )
    return servers


def test_clients_of_two_users_compute_at_the_same_time_and_quit_ends_both_servers(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    clients = {uid: make_client(uid).connect() for uid in (NOBODY, OTHER)}
    for client in clients.values():
        client.send("add")
    assert [client.result() for client in clients.values()] == [RIGHT] * 2
    servers = servers_by_user(daemon)
    assert set(servers) == {NOBODY, OTHER}
    daemon.wait_for_server_messages()
    rows = {tuple(row.split()[:3:2]) for row in daemon.run_command("ps").splitlines()[1:]}
    assert rows == {(str(client.pid), str(servers[uid])) for uid, client in clients.items()}
    assert daemon.run_command("start_server -uid 0") == ""
    assert set(servers_by_user(daemon)) == {0, NOBODY, OTHER}
    assert not [line for line in daemon.log() if "turn" in line]
    for client in clients.values():
        client.end()
    every = daemon.servers()
    assert daemon.run_command("quit") == ""
    assert not any(alive(pid) for pid in (daemon.pid, *every))


def test_a_fault_or_a_death_in_one_users_server_does_not_reach_the_others(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    culprit, other = make_client(NOBODY).connect(), make_client(OTHER).connect()
    servers = servers_by_user(daemon)
    culprit.call("illegal")
    assert culprit.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    wait_until(lambda: daemon.run_command(f"get_server_status {servers[NOBODY]}") == "FAULT\n", "the fault")
    assert daemon.run_command(f"get_server_status {servers[OTHER]}") == "ACTIVE\n"
    assert other.call("add") == RIGHT
    assert make_client(OTHER).connect().call("add") == RIGHT
    assert daemon.run_command(f"shutdown_server {servers[NOBODY]} -f") == ""
    wait_until(lambda: not alive(servers[NOBODY]), "its end")
    assert other.call("add") == RIGHT
    assert make_client(NOBODY).connect().call("add") == RIGHT
    assert servers_by_user(daemon)[OTHER] == servers[OTHER]


@pytest.mark.long
def test_both_servers_are_taken_over_by_the_next_daemon(daemon: DaemonProcess, make_client: MakeClient) -> None:
    clients = [make_client(uid).connect() for uid in (NOBODY, OTHER)]
    servers = servers_by_user(daemon)
    daemon.kill()
    assert daemon.start("-d", "--users=together").returncode == 0
    assert servers_by_user(daemon) == servers
    assert [client.call("add") for client in clients] == [RIGHT] * 2
    assert make_client(NOBODY).connect().call("add") == RIGHT


def test_an_exclusive_device_has_room_for_one_users_server(make_daemon: MakeDaemon, directory: Path) -> None:
    machine = directory / "machine.toml"
    machine.write_text('[[device]]\ncompute_mode = "EXCLUSIVE_PROCESS"\n')
    running = make_daemon(PYMPSD_EMULATED_DEVICES=str(machine), PYMPSD_USERS="together")
    assert running.start().returncode == 0
    with clients_of(running) as make_client:
        first, second = make_client(NOBODY), make_client(OTHER)
        first.connect()
        server = servers_by_user(running)[NOBODY]
        assert second.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
        assert f"it is in compute mode EXCLUSIVE_PROCESS and process {server} uses it" in second.call("error")
        assert first.call("add") == RIGHT


def test_what_cannot_be_keeps_the_daemon_from_starting(make_daemon: MakeDaemon) -> None:
    done = make_daemon().start("-d", "--users", "both")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--users must be one of in-turn, together, not 'both'\n"
    done = make_daemon(PYMPSD_USERS="both").start()
    assert (done.returncode, done.stderr) == (1, "PYMPSD_USERS must be one of in-turn, together, not 'both'\n")
    together = make_daemon(PYMPSD_USERS="together")
    done = together.start("-d", "-multiuser-server")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("-multiuser-server: it has one server for all users, and --users together")
    assert together.start("-d", "-multiuser-server", "--users", "in-turn").returncode == 0
