"""Faults of a GPU reach every client of the device (docs/decisions/004); then the same server serves again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until

READY = "CUDA_SUCCESS"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
ELSEWHERE = "CUDA_ERROR_LAUNCH_FAILED"
CODES = {"illegal": "CUDA_ERROR_ILLEGAL_ADDRESS", "trap": "CUDA_ERROR_LAUNCH_FAILED"}
Start = Callable[..., ClientProcess]


def status(daemon: DaemonProcess, server: int) -> str:
    return daemon.run_command(f"get_server_status {server}").strip()


def recovers(daemon: DaemonProcess, server: int, *clients: ClientProcess) -> None:
    """End the clients that a fault has reached, and wait until the server is active again."""
    for client in clients:
        client.end(signal.SIGKILL)
    wait_until(lambda: status(daemon, server) == "ACTIVE", "the recovery")


@pytest.mark.parametrize("fault", sorted(CODES))
def test_a_fault_reaches_the_neighbours_and_the_server_recovers(
    daemon: DaemonProcess, start: Start, fault: str
) -> None:
    culprit, neighbour, busy = start(), start(), start()
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    assert busy.call("endless") == READY
    busy.send("sync")
    assert culprit.call(fault) == READY
    assert culprit.call("sync") == CODES[fault]
    wait_until(lambda: neighbour.call("sync") == CODES[fault], "the fault at the neighbour")
    assert [client.call("sync") for client in (culprit, neighbour)] == [CODES[fault]] * 2
    assert busy.result() == CODES[fault]
    assert neighbour.call("alloc 4096").split()[0] == CODES[fault]
    wait_until(lambda: status(daemon, server) == "FAULT", "the fault")
    late = daemon.client()
    assert late.call("init") == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    late.end()
    assert "Volta MPS: Server is handling a fatal GPU error." in daemon.log("server.log")
    recovers(daemon, server, culprit, neighbour, busy)
    assert start().call("add") == RIGHT
    assert daemon.servers() == [server]
    assert children_of(server) != [executor]
    assert not alive(executor)


def test_a_fault_stays_in_a_partition_that_has_an_executor(
    make_daemon: Callable[..., DaemonProcess], start_of: Callable[..., ClientProcess]
) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    options = ["--server=a", "--device=0", "--chunks=2"]
    for words in (["server", "create", "a"], ["server", "set", "a", "--contain=partition"]):
        assert daemon.run(words).returncode == 0
    for name in ("one", "other"):
        assert daemon.run(["sm-partition", "create", name, *options]).returncode == 0
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.directory / "pipe" / "a")}
    culprit, mate, neighbour = (
        start_of(daemon, **pipe, CUDA_MPS_SM_PARTITION=name) for name in ("one", "one", "other")
    )
    assert culprit.call("illegal") == READY
    assert culprit.call("sync") == CODES["illegal"]
    wait_until(lambda: mate.call("sync") == CODES["illegal"], "the fault at who shares the partition")
    assert neighbour.call("add") == RIGHT
    assert daemon.run(["server", "get", "a", "status"]).stdout == "Ready\n"
    for client in (culprit, mate):
        client.end(signal.SIGKILL)
    again = start_of(daemon, **pipe, CUDA_MPS_SM_PARTITION="one")
    assert [client.call("add") for client in (again, neighbour)] == [RIGHT] * 2


def test_a_fault_is_seen_though_no_call_waits_for_it(daemon: DaemonProcess, start: Start) -> None:
    culprit = start()
    (server,) = daemon.servers()
    assert culprit.call("illegal") == READY
    wait_until(lambda: status(daemon, server) == "FAULT", "the fault")
    recovers(daemon, server, culprit)
    assert start().call("add") == RIGHT


def test_faults_again_and_again(daemon: DaemonProcess, start: Start) -> None:
    for fault in ("illegal", "trap", "illegal"):
        client = start()
        (server,) = daemon.servers()
        assert client.call(fault) == READY
        assert client.call("sync") == CODES[fault]
        wait_until(lambda: status(daemon, server) == "FAULT", "the fault")  # noqa: B023
        recovers(daemon, server, client)
    assert start().call("add") == RIGHT
    assert daemon.servers() == [server], "one server all the time"


def test_a_killed_executor_is_a_fault_of_its_device(daemon: DaemonProcess, start: Start) -> None:
    client, busy = start(), start()
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    assert busy.call("endless") == READY
    busy.send("sync")
    os.kill(executor, signal.SIGKILL)
    assert client.call("sync") == ELSEWHERE
    assert busy.result() == ELSEWHERE
    wait_until(lambda: status(daemon, server) == "FAULT", "the fault")
    recovers(daemon, server, client, busy)
    assert start().call("add") == RIGHT


def test_an_idle_executor_may_die_unnoticed(daemon: DaemonProcess, start: Start) -> None:
    start().end()
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")
    for executor in children_of(server):
        os.kill(executor, signal.SIGKILL)
    assert start().call("add") == RIGHT
    assert status(daemon, server) == "ACTIVE"


def test_a_killed_server_takes_its_executor_along_and_the_next_client_gets_another(
    daemon: DaemonProcess, start: Start
) -> None:
    client, busy = start(), start()
    (server,) = daemon.servers()
    workers = children_of(server)
    assert busy.call("endless") == READY
    busy.send("sync")
    os.kill(server, signal.SIGKILL)
    assert busy.result() == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    wait_until(lambda: not any(map(alive, workers)), "the executor's end")
    assert start().call("add") == RIGHT
    assert daemon.servers() != [server]


# --- clients that die


def free(client: ClientProcess) -> int:
    """Return the mebibytes of device memory that are free."""
    return int(client.call("mem").split()[0])


def test_a_client_killed_in_the_midst_of_a_kernel_gives_its_memory_back_when_that_ends(
    daemon: DaemonProcess, start: Start
) -> None:
    neighbour, dying = start(), start()
    before = free(neighbour)
    assert dying.call(f"alloc {1 << 30}").split()[0] == READY
    assert dying.call("busy 1500") == READY
    dying.send("sync")
    dying.end(signal.SIGKILL)
    for _ in range(3):
        assert neighbour.call("add") == RIGHT
    wait_until(lambda: str(dying.pid) not in daemon.run_command("ps").split(), "its end in ps")
    wait_until(lambda: free(neighbour) >= before, "the memory's return")
    assert start().call("add") == RIGHT


def test_a_client_killed_with_a_kernel_that_never_ends_harms_no_neighbour(
    daemon: DaemonProcess, start: Start
) -> None:
    neighbour, dying = start(), start()
    before = free(neighbour)
    assert dying.call(f"alloc {1 << 30}").split()[0] == READY
    assert dying.call("endless") == READY
    dying.end(signal.SIGKILL)
    wait_until(lambda: str(dying.pid) not in daemon.run_command("ps").split(), "its end in ps")
    for _ in range(3):
        assert neighbour.call("add") == RIGHT
    assert free(neighbour) < before, "its memory is kept, for its kernel still runs"
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    neighbour.end()
    wait_until(lambda: not alive(executor), "the end of the process that runs the kernel: no client is left on it")
    assert start().call("add") == RIGHT, "the GPU is usable"
    assert status(daemon, server) == "ACTIVE"
