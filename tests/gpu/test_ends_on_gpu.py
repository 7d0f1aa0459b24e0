"""Clients and daemons that end while kernels run: in bounded time, without remains, and with a usable GPU."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until

READY = "CUDA_SUCCESS"
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"
LOST = "CUDA_ERROR_MPS_RPC_FAILURE"
LAUNCH_TIMEOUT = 702
Start = Callable[..., ClientProcess]


def family(daemon: DaemonProcess) -> list[int]:
    """Return the daemon, its server and its executors."""
    (server,) = daemon.servers()
    return [daemon.pid, server, *children_of(server)]


def is_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), f"the end of {pids}")


def is_usable_again(daemon: DaemonProcess, start: Start) -> None:
    """Start another daemon in place of one that is gone, and check that its client computes."""
    daemon.await_end()
    assert daemon.start().returncode == 0
    assert start().call("add") == RIGHT


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_terminate_client_waits_for_the_kernels_that_run(daemon: DaemonProcess, start: Start, state: str) -> None:
    client, neighbour = start(), start()
    (server,) = daemon.servers()
    if state == "busy":
        assert client.call("busy 1000") == READY
    client.send("sync")
    assert state == "busy" or client.result() == READY
    assert daemon.run_command(f"terminate_client {server} {client.pid}") == "0\n"
    if state == "busy":
        assert client.result() == TERMINATED
    assert [client.call("sync") for _ in range(2)] == [TERMINATED] * 2
    assert neighbour.call("add") == RIGHT
    assert client.call("newctx 0") == READY
    assert client.call("add") == RIGHT
    assert daemon.servers() == [server]


def test_terminate_client_reports_that_a_kernel_which_never_ends_still_runs(
    daemon: DaemonProcess, start: Start
) -> None:
    client, neighbour = start(), start()
    (server,) = daemon.servers()
    executors = children_of(server)
    assert client.call("endless") == READY
    began = time.monotonic()
    assert daemon.run_command(f"terminate_client {server} {client.pid}") == f"{LAUNCH_TIMEOUT}\n"
    assert time.monotonic() - began < 25
    assert client.call("sync") == TERMINATED
    assert neighbour.call("add") == RIGHT
    # What then helps is the end of the executor, with all its clients.
    assert daemon.run_command(f"shutdown_server {server} -f") == ""
    is_gone([server, *executors])
    assert neighbour.call("sync") == LOST
    assert start().call("add") == RIGHT


def test_with_terminate_by_reset_the_device_is_reset_as_by_a_fault(
    make_daemon: Callable[..., DaemonProcess], start_of: Start
) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "--terminate-by-reset").returncode == 0
    client, neighbour = start_of(daemon), start_of(daemon)
    (server,) = daemon.servers()
    executors = children_of(server)
    assert client.call("endless") == READY
    client.send("sync")
    assert daemon.run_command(f"terminate_client {server} {client.pid}") == "0\n"
    assert client.result() == TERMINATED
    assert neighbour.call("sync") == "CUDA_ERROR_LAUNCH_FAILED"
    is_gone(executors)
    assert daemon.run_command(f"get_server_status {server}") == "FAULT\n"
    for program in (client, neighbour):
        program.end()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
    assert start_of(daemon).call("add") == RIGHT


@pytest.mark.parametrize("how", ["quit -t 1", "quit -t 0", "SIGTERM", "shutdown_server -f"])
def test_ends_by_force_with_a_kernel_that_never_ends(daemon: DaemonProcess, start: Start, how: str) -> None:
    client, waiting = start(), start()
    pids = family(daemon)
    assert client.call("endless") == READY
    waiting.send("sync")
    waiting.result()
    client.send("sync")
    if how == "SIGTERM":
        os.kill(daemon.pid, signal.SIGTERM)
    elif how.startswith("quit"):
        assert daemon.run([], how).returncode == 0
    else:
        assert daemon.run_command(f"shutdown_server {pids[1]} -f") == ""
        pids.remove(daemon.pid)
    is_gone(pids)
    assert client.result() == LOST
    assert waiting.call("sync") == LOST
    if daemon.pid in pids:
        is_usable_again(daemon, start)
    else:
        assert start().call("add") == RIGHT


def test_quit_waits_for_a_client_that_computes(daemon: DaemonProcess, start: Start) -> None:
    client = start()
    pids = family(daemon)
    assert client.call("busy 500") == READY
    quitting = daemon.start_command("quit")
    wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit")
    assert client.call("sync") == READY
    assert client.call("add") == RIGHT
    assert quitting.poll() is None
    client.end()
    quitting.communicate(timeout=30)
    assert quitting.returncode == 0
    is_gone(pids)
    is_usable_again(daemon, start)


def test_a_killed_daemon_leaves_its_servers_which_end_with_its_keeper(daemon: DaemonProcess, start: Start) -> None:
    client = start()
    _, *served = family(daemon)
    assert client.call("busy 500") == READY
    daemon.kill()
    assert client.call("sync") == READY
    daemon.kill_keeper()
    is_gone(served)
    client.process.kill()
    is_usable_again(daemon, start)
