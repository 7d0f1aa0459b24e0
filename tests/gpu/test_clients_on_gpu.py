"""Clients that share a GPU: at the same time, whatever their neighbours run, and across the daemon's death."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until

RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
SPINS = "CUDA_SUCCESS CUDA_ERROR_NOT_READY"
Start = Callable[..., ClientProcess]


def test_clients_compute_at_the_same_time_and_are_listed(daemon: DaemonProcess, start: Start) -> None:
    clients = [start() for _ in range(4)]
    for _ in range(5):
        for client in clients:
            client.send("add")
        assert [client.result() for client in clients] == [RIGHT] * 4
    (server,) = daemon.servers()
    pids = [str(client.pid) for client in clients]
    assert daemon.run_command(f"get_client_list {server}").split() == pids
    assert [row.split()[0] for row in daemon.run_command("ps").splitlines()[1:]] == pids
    assert len(children_of(server)) == 1, "one executor for all of them"


def test_one_computes_while_a_neighbours_kernel_never_ends(start: Start) -> None:
    endless, other = start(), start()
    assert endless.call("endless") == "CUDA_SUCCESS"
    endless.send("sync")
    for _ in range(5):
        assert other.call("add") == RIGHT
    assert not endless.has_result()


def test_kernels_of_two_clients_are_in_flight_together(start: Start) -> None:
    first, second = start(), start()
    assert first.call("spin") == SPINS
    assert second.call("busy 20") == "CUDA_SUCCESS"
    assert second.call("sync") == "CUDA_SUCCESS"
    assert first.call("release") == "CUDA_SUCCESS"
    assert first.call("spun") == "CUDA_SUCCESS wrong=0"


def test_a_kernel_in_flight_outlives_the_daemon(daemon: DaemonProcess, start: Start) -> None:
    spinner, other = start(), start()
    assert spinner.call("spin") == SPINS
    (server,) = daemon.servers()
    before = daemon.run_command("ps")
    daemon.kill()
    assert other.call("add") == RIGHT
    assert daemon.start().returncode == 0
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the server's return")
    assert daemon.run_command("ps") == before
    assert not spinner.has_result()
    assert spinner.call("release") == "CUDA_SUCCESS"
    assert spinner.call("spun") == "CUDA_SUCCESS wrong=0"
    assert [client.call("add") for client in (spinner, other, start())] == [RIGHT] * 3


@pytest.mark.parametrize("replaced", [False, True], ids=["killed", "replaced"])
def test_a_client_computes_on_while_daemons_come_and_go(daemon: DaemonProcess, start: Start, replaced: bool) -> None:
    client = start()
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    for _ in range(2):
        client.send("add")
        if not replaced:
            daemon.kill()
        assert daemon.start("-d", *(["--replace"] if replaced else [])).returncode == 0
        assert client.result() == RIGHT
    assert client.call("add") == RIGHT
    assert alive(executor)
    assert daemon.servers() == [server]
    client.end(signal.SIGKILL)
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")
