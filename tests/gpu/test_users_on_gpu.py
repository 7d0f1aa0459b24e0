"""Clients of several users on a GPU: in turn on servers of their own, and together on one of root's."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, children_of, wait_until

A, B = 10001, 10002
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
Start = Callable[..., ClientProcess]


def owners(daemon: DaemonProcess) -> set[int]:
    """Return the uids of the server and its executors."""
    (server,) = daemon.servers()
    return {os.stat(f"/proc/{pid}").st_uid for pid in (server, *children_of(server))}


def test_users_take_turns_on_servers_of_their_own(daemon: DaemonProcess, start: Start) -> None:
    first = start(A)
    assert owners(daemon) == {A}
    second = daemon.client(B)
    second.send("init")
    wait_until(lambda: any(f"CLIENT {second.pid} " in line for line in daemon.log()), "the request")
    assert first.call("add") == RIGHT
    assert not second.has_result()
    first.end()
    assert second.result() == "CUDA_SUCCESS"
    assert second.call("ctx 0") == "CUDA_SUCCESS"
    assert second.call("add") == RIGHT
    assert owners(daemon) == {B}
    second.end()


@pytest.fixture
def shared(make_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon with one server, root's, for all users."""
    daemon = make_daemon()
    assert daemon.start("-d", "-multiuser-server").returncode == 0
    return daemon


def test_one_server_for_all_users_with_an_executor_for_each(shared: DaemonProcess, start_of: Start) -> None:
    clients = [start_of(shared, uid) for uid in (A, A, B, 0)]
    for client in clients:
        client.send("add")
    assert [client.result() for client in clients] == [RIGHT] * 4
    (server,) = shared.servers()
    assert os.stat(f"/proc/{server}").st_uid == 0
    assert len(children_of(server)) == 3, "users share no address space"


def test_a_fault_of_one_user_costs_no_other(shared: DaemonProcess, start_of: Start) -> None:
    culprit, neighbour, other = start_of(shared, A), start_of(shared, A), start_of(shared, B)
    (server,) = shared.servers()
    assert culprit.call("illegal") == "CUDA_SUCCESS"
    assert culprit.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    wait_until(lambda: shared.run_command(f"get_server_status {server}") == "FAULT\n", "the fault")
    wait_until(lambda: neighbour.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS", "the fault at the neighbour")
    assert other.call("add") == RIGHT
    for client in (culprit, neighbour):
        client.end()
    wait_until(lambda: shared.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    assert [start_of(shared, A).call("add"), other.call("add")] == [RIGHT] * 2
