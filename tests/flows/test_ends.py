"""Every end, with clients and servers in every state: bounded, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import SECONDS, ClientProcess, DaemonProcess, alive, children_of, list_shared_memory, wait_until

Make = Callable[..., ClientProcess]
STATES = ("idle", "busy", "endless", "stopped client", "stopped server", "stopped executor")
LEFT = {"control", "control_lock", "control_privileged"}


def _bring_into(state: str, client: ClientProcess, server: int) -> None:
    if state == "busy":
        assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    if state in ("endless", "stopped client"):
        assert client.call("endless") == "CUDA_SUCCESS"
    victims = {"stopped client": client.pid, "stopped server": server, "stopped executor": children_of(server)[0]}
    if state in victims:
        os.kill(victims[state], signal.SIGSTOP)


def _family(daemon: DaemonProcess, server: int) -> list[int]:
    return [daemon.pid, server, *children_of(server)]


def _is_gone_without_a_trace(daemon: DaemonProcess, family: list[int], shared: set[str]) -> None:
    for pid in family:
        wait_until(lambda pid=pid: not alive(pid), f"the end of {pid}")
    assert {path.name for path in (daemon.directory / "pipe").iterdir()} == LEFT
    assert list_shared_memory() == shared


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["quit -t 1", "SIGTERM"])
def test_7_the_daemons_end(daemon: DaemonProcess, make_client: Make, how: str, state: str) -> None:
    shared = list_shared_memory()
    client = make_client().connect()
    (server,) = daemon.servers()
    family = _family(daemon, server)
    _bring_into(state, client, server)
    if how == "SIGTERM":
        os.kill(daemon.pid, signal.SIGTERM)
    else:
        assert daemon.run([], how).returncode == 0
        # As callers rely on: when quit has returned nothing of ours is left in ps.
        assert not alive(daemon.pid)
        assert not alive(server)
    _is_gone_without_a_trace(daemon, family, shared)
    if state == "stopped client":
        os.kill(client.pid, signal.SIGCONT)
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"


@pytest.mark.long(but=["endless"])
@pytest.mark.parametrize("state", STATES)
def test_7_shutdown_server_by_force(daemon: DaemonProcess, make_client: Make, state: str) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    executors = children_of(server)
    _bring_into(state, client, server)
    assert daemon.run([], f"shutdown_server {server} -f").returncode == 0
    for pid in (server, *executors):
        wait_until(lambda pid=pid: not alive(pid), f"the end of {pid}")
    assert make_client().connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert daemon.servers() != [server]
    if state == "stopped client":
        os.kill(client.pid, signal.SIGCONT)
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"


@pytest.mark.long
def test_7_quit_waits_for_a_stopped_client_and_is_answered_when_it_dies(
    daemon: DaemonProcess, make_client: Make
) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    os.kill(client.pid, signal.SIGSTOP)
    operator = daemon.start_command("quit")
    wait_until(lambda: "Cmd:quit" in daemon.log(), "the quit")
    assert daemon.run_command("get_server_status " + str(server)) == "ACTIVE\n"
    os.kill(client.pid, signal.SIGKILL)
    assert operator.communicate(timeout=30) == ("", "")
    assert operator.returncode == 0
    assert not alive(server)


@pytest.mark.long(but=["endless"])
@pytest.mark.parametrize("state", ["idle", "endless", "stopped client"])
def test_3_terminate_client_in_every_state(daemon: DaemonProcess, make_client: Make, state: str) -> None:
    client, neighbour = make_client().connect(), make_client().connect()
    (server,) = daemon.servers()
    _bring_into(state, client, server)
    neighbour.send("add")
    assert daemon.run_command(f"terminate_client {server} {client.pid}") == "0\n"
    assert neighbour.result() == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    if state == "stopped client":
        os.kill(client.pid, signal.SIGCONT)
    assert [client.call("sync") for _ in range(2)] == ["CUDA_ERROR_MPS_CLIENT_TERMINATED"] * 2
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    assert client.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    assert f"Volta MPS: status of client {{{client.pid}, 1}} is INACTIVE" in daemon.log("server.log")


@pytest.mark.long(but=["executor"])
@pytest.mark.parametrize(
    ("stopped", "bound", "why"),
    [
        ("server", 15.0, "the server did not answer within 15 s; shutdown_server -f ends it with its clients"),
        ("executor", 10.0, "one of its kernels still runs, or its executor is stopped; "),
    ],
    ids=["server", "executor"],
)
def test_3_terminate_client_behind_what_is_stopped_is_answered_within_its_bound(
    daemon: DaemonProcess, make_client: Make, stopped: str, bound: float, why: str
) -> None:
    client, neighbour = make_client().connect(), make_client().connect()
    (server,) = daemon.servers()
    victim = server if stopped == "server" else children_of(server)[0]
    assert client.call("endless") == "CUDA_SUCCESS"
    daemon.wait_for_server_messages()
    os.kill(victim, signal.SIGSTOP)
    began = time.monotonic()
    with daemon.start_command(f"terminate_client {server} {client.pid}") as operator:
        # Others are answered.
        assert daemon.run_command("get_server_list") == f"{server}\n"
        assert str(client.pid) in daemon.run_command("ps").split()
        output, complaint = operator.communicate(timeout=SECONDS)
    took = time.monotonic() - began
    assert output == "702\n"
    assert complaint.startswith(f"terminate_client: {why}")
    # Never earlier; how much later depends on the machine.
    assert bound - 1 < took < bound + 10
    os.kill(victim, signal.SIGCONT)
    assert neighbour.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    # The request may have been lost, so an operator repeats it until the contexts are terminated.
    wait_until(
        lambda: daemon.run_command(f"terminate_client {server} {client.pid}") in ("0\n", "201\n"), "the termination"
    )
    assert client.call("sync") == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert daemon.run_command(f"terminate_client {server} {neighbour.pid}") == "0\n"
    assert daemon.servers() == [server]


@pytest.mark.long
def test_3_a_daemon_is_replaced_by_one_that_resets_devices_under_its_clients(
    make_daemon: Callable[..., DaemonProcess], directory: Path
) -> None:
    machine = directory / "machine.toml"
    machine.write_text("stops_kernels = false\n[[device]]\n")
    before = make_daemon(PYMPSD_EMULATED_DEVICES=str(machine))
    assert before.start().returncode == 0
    client = before.client().connect()
    try:
        (server,) = before.servers()
        assert client.call("endless") == "CUDA_SUCCESS"
        assert before.run_command(f"terminate_client {server} {client.pid}") == "702\n"
        after = make_daemon(**before.settings)
        assert after.start("-d", "--replace", "--terminate-by-reset").returncode == 0
        before.await_end()
        assert after.servers() == [server]
        assert after.run_command(f"terminate_client {server} {client.pid}") == "0\n"
        client.end(signal.SIGKILL)
        wait_until(lambda: after.run_command(f"get_server_status {server}") == "ACTIVE\n", "the recovery")
        with after.client().process as process:
            assert ClientProcess(process).connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
            ClientProcess(process).end()
    finally:
        client.end(signal.SIGKILL)


@pytest.mark.long(but=["computing-11"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
@pytest.mark.parametrize("moment", ["idle", "copying", "launching", "computing"])
def test_4_a_client_that_dies_frees_everything(
    daemon: DaemonProcess, make_client: Make, moment: str, number: int
) -> None:
    client, neighbour = make_client().connect(), make_client().connect()
    before = neighbour.call("mem")
    assert client.call(f"alloc {64 << 20}").startswith("CUDA_SUCCESS")
    assert neighbour.call("mem") != before
    if moment == "copying":
        client.send(f"copyhalf {64 << 20}")
    elif moment == "launching":
        client.send("add")
    elif moment == "computing":
        assert client.call("endless") == "CUDA_SUCCESS"
    client.end(number)
    wait_until(lambda: f"Client {client.pid} disconnected" in daemon.log("server.log"), "the client's end")
    assert str(client.pid) not in daemon.run_command("ps").split()
    assert neighbour.call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    free, total = map(int, neighbour.call("mem").split())
    # The neighbour alone is left: more is free than when both were there.
    assert free > int(before.split()[0])
    assert total == int(before.split()[1])


def test_4_a_client_that_dies_behind_a_stopped_executor_delays_no_other_user(
    daemon: DaemonProcess, make_client: Make
) -> None:
    client = make_client(10001).connect()
    (server,) = daemon.servers()
    (executor,) = children_of(server)
    waiting = make_client(10002)
    os.kill(executor, signal.SIGSTOP)
    client.end(signal.SIGKILL)
    waiting.send("init")
    assert waiting.result() == "CUDA_SUCCESS"
    assert not alive(server)
    wait_until(lambda: not alive(executor), "the stopped executor's end")
