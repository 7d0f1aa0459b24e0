"""Clients through the daemon: they share one device at the same time, and end without harm to each other."""

from __future__ import annotations

import os
import pwd
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import ClientProcess, DaemonProcess, alive, children_of, wait_until

NOBODY = pwd.getpwnam("nobody").pw_uid
"""Also the number that stands for users of other user namespaces: a real one is served all the same."""
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
MakeClient = Callable[..., ClientProcess]


def executors(daemon: DaemonProcess) -> list[int]:
    (server,) = daemon.servers()
    return children_of(server)


def test_two_clients_share_one_device(daemon: DaemonProcess, make_client: MakeClient) -> None:
    process, two = make_client().connect(), make_client().connect()
    process.send("add")
    two.send("add")
    assert (process.result(), two.result()) == (RIGHT, RIGHT)
    (server,) = daemon.servers()
    daemon.wait_for_server_messages()
    heading, *rows = daemon.run_command("ps").splitlines()
    assert heading == "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        "
    namespace = os.stat("/proc/self/ns/pid").st_ino
    for number, (row, client) in enumerate(zip(rows, (process, two), strict=True), 1):
        fields = row.split(None, 5)
        command = Path(f"/proc/{client.pid}/cmdline").read_text().rstrip("\0").replace("\0", " ")
        assert fields[:3] == [str(client.pid), str(number), str(server)]
        assert re.fullmatch(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}", fields[3])
        assert fields[4:] == [str(namespace), command]
    assert daemon.run_command(f"get_client_list {server}") == f"{process.pid}\n{two.pid}\n"
    assert daemon.run_command("get_device_client_list") == f"[0] 00:00.0, NVIDIA H200\n{process.pid}.1\n{two.pid}.1\n"
    assert daemon.run_command("ps -p 1") == "Server 1 not found\nServer 1 not found\n\n"


def test_the_work_runs_in_an_executor_that_is_a_child_of_the_server(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    client = make_client().connect()
    (executor,) = executors(daemon)
    assert Path(f"/proc/{executor}/comm").read_text() == "pympsd-executor\n"

    def seconds() -> float:
        fields = Path(f"/proc/{executor}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = seconds()
    assert client.call("endless") == "CUDA_SUCCESS"
    wait_until(lambda: seconds() > before + 0.2, "work of the executor")
    assert children_of(client.pid) == []


def test_at_the_same_time_one_finishes_while_the_other_never_ends(make_client: MakeClient) -> None:
    endless, other = make_client().connect(), make_client().connect()
    assert endless.call("endless") == "CUDA_SUCCESS"
    endless.send("sync")
    for _ in range(3):
        assert other.call("add") == RIGHT
    assert not endless.has_result()


def test_contexts_of_one_process_are_counted(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client, neighbour = make_client().connect(), make_client().connect()
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    daemon.wait_for_server_messages()
    assert daemon.run_command("get_device_client_list").splitlines()[1:] == [
        f"{client.pid}.1",
        f"{client.pid}.2",
        f"{neighbour.pid}.1",
    ]
    assert [row.split()[1] for row in daemon.run_command("ps").splitlines()[1:]] == ["1", "2"]


def test_the_logs_record_every_step_of_a_client(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    assert client.call("add") == RIGHT
    pid = client.pid
    client.end()
    wait_until(lambda: f"Client {pid} disconnected" in daemon.log("server.log"), "the client's end")
    (server,) = daemon.servers()
    control = [line for line in daemon.log() if "CLIENT" in line or "SERVER" in line or "server" in line.split()[:3]]
    assert control == [
        f"NEW CLIENT {pid} from user 0: Server is not ready, push client to pending list",
        f"Starting new server {server} for user 0",
        f"NEW SERVER {server}: Ready",
        f"NEW CLIENT {pid} from user 0: Server already exists",
    ]
    uuid = daemon.run_command("device_query --csv").split(",")[-3]
    lines = daemon.log("server.log")
    story = lines[lines.index(f"Received new client request for {{PID: {pid}, Context ID: 0}}") :]
    assert re.fullmatch(r"Started executor \d+ for device 0", story.pop(3))
    if ", command stream workers: " in story[3]:  # said where there is a choice: on a GPU
        story.pop(3)
    assert story == [
        f"Received new client request for {{PID: {pid}, Context ID: 0}}",
        f"New client {pid} connected",
        f"Creating worker thread for client {{PID: {pid}, Context ID: 0}}",
        f"Received new client request for {{PID: {pid}, Context ID: 1}}",
        f"Creating worker thread for client {{PID: {pid}, Context ID: 1}}",
        f"Device NVIDIA H200 (uuid {uuid}) is associated",
        f"Volta MPS: status of client {{{pid}, 1}} is ACTIVE",
        f"Client {{{pid}, 1}} exit",
        f"Client {pid} disconnected",
    ]


def test_a_clients_exit_frees_what_it_held(daemon: DaemonProcess, make_client: MakeClient) -> None:
    watcher = make_client().connect()
    before = watcher.call("mem")
    for number in (0, signal.SIGKILL):
        holder = make_client().connect()
        assert holder.call(f"alloc {1 << 30}").startswith("CUDA_SUCCESS")
        assert watcher.call("mem") != before
        holder.end(number)
        wait_until(lambda: watcher.call("mem") == before, "the memory's return")
        wait_until(lambda: str(holder.pid) not in daemon.run_command("ps").split(), "its end in ps")  # noqa: B023
    assert daemon.servers(), "the server stays when clients leave"


def test_a_client_that_dies_mid_kernel_frees_the_device(daemon: DaemonProcess, make_client: MakeClient) -> None:
    dying, other = make_client().connect(), make_client().connect()
    before = other.call("mem")
    assert dying.call(f"alloc {1 << 28}").startswith("CUDA_SUCCESS")
    dying.call("endless")
    dying.send("sync")
    dying.end(signal.SIGKILL)
    wait_until(lambda: str(dying.pid) not in daemon.run_command("get_device_client_list"), "the client's end")
    assert other.call("add") == RIGHT
    assert other.call("mem").split()[1] == before.split()[1]


def test_ptx_that_does_not_parse_is_explained(make_client: MakeClient) -> None:
    output = make_client().connect().call("badptx")
    assert output.startswith("CUDA_ERROR_INVALID_PTX ")
    assert "frobnicate" in output
    assert "line 4" in output


def test_after_fork_the_childs_handles_are_dead(make_client: MakeClient) -> None:
    client = make_client().connect()
    assert client.call("fork") == "child CUDA_ERROR_NOT_INITIALIZED parent CUDA_SUCCESS"
    assert client.call("add") == RIGHT


@pytest.mark.long
def test_an_endless_kernel_and_quit_with_a_bound(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    client.call("endless")
    (server,) = daemon.servers()
    workers = executors(daemon)
    assert daemon.run_command("quit -t 1") == ""
    assert [alive(pid) for pid in (daemon.pid, server)] == [False] * 2
    # Those of a server that had to be killed may take a moment more.
    wait_until(lambda: not any(map(alive, workers)), "the executors' end")
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert "quit command issued with timeout of 1" in daemon.log()
    assert f"Force shutting down server {server}" in daemon.log()
    assert daemon.log()[-1] == "Exit with status 0"


@pytest.mark.long
def test_quit_waits_for_clients_refuses_new_ones_and_answers_queries(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    import subprocess

    from processes import PYMPSD

    quitting = subprocess.Popen([PYMPSD], env=daemon.environment, stdin=subprocess.PIPE)
    assert quitting.stdin is not None
    quitting.stdin.write(b"quit\n")
    quitting.stdin.close()
    wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit")
    assert daemon.servers() == [server]
    assert make_client().call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert client.call("add") == RIGHT
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(30) == 0
    assert not alive(daemon.pid)
    assert not alive(server)


@pytest.mark.long
def test_a_killed_server_is_an_rpc_failure_and_the_next_client_gets_a_new_one(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    workers = executors(daemon)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, workers)), "the executors' end")
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert make_client().connect().call("add") == RIGHT
    assert daemon.servers() != [server]


@pytest.mark.long
def test_clients_of_another_user_wait_for_their_turn(daemon: DaemonProcess, make_client: MakeClient) -> None:
    first = make_client().connect()
    (server,) = daemon.servers()
    second = make_client(NOBODY)
    second.send("init")
    waiting = f"NEW CLIENT {second.pid} from user {NOBODY}: Server is not ready, push client to pending list"
    wait_until(lambda: waiting in daemon.log(), "the second user's request")
    assert not second.has_result()
    first.end()
    assert second.result() == "CUDA_SUCCESS"
    assert second.call("ctx 0") == "CUDA_SUCCESS"
    assert second.call("add") == RIGHT
    (now,) = daemon.servers()
    assert now != server
    assert {os.stat(f"/proc/{pid}").st_uid for pid in (now, *children_of(now))} == {NOBODY}


@pytest.mark.long
def test_a_waiting_client_that_dies_leaves_the_queue(daemon: DaemonProcess, make_client: MakeClient) -> None:
    first = make_client().connect()
    second = make_client(NOBODY)
    second.send("init")
    wait_until(lambda: any(f"CLIENT {second.pid} " in line for line in daemon.log()), "the request")
    second.end(signal.SIGKILL)
    assert first.call("add") == RIGHT
    first.end()
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command("ps") == "", "the first client's end")
    assert daemon.servers() == [server]


def test_one_executor_per_device_in_use(make_daemon) -> None:  # type: ignore[no-untyped-def]
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="3xH200")
    assert daemon.start().returncode == 0
    client = daemon.client()
    try:
        assert client.call("init") == "CUDA_SUCCESS"
        assert client.call("count") == "3"
        for device, running in ((2, 1), (0, 2)):
            assert client.call(f"ctx {device}") == "CUDA_SUCCESS"
            assert len(executors(daemon)) == running
        address = int(client.call("alloc 4096").split()[1], 16)
        assert address >> 40 == 0x6000_0000_0000 >> 40
        assert client.call("ctx 2") == "CUDA_SUCCESS"
        assert int(client.call("alloc 4096").split()[1], 16) >> 40 == (0x6000_0000_0000 >> 40) + 2
        daemon.wait_for_server_messages()
        lines = daemon.run_command("get_device_client_list").splitlines()
        assert lines == ["[0] 00:00.0, NVIDIA H200", f"{client.pid}.2", "[2] 00:02.0, NVIDIA H200", f"{client.pid}.1"]
    finally:
        client.end(signal.SIGKILL)


def test_no_daemon_and_mps_required(make_daemon) -> None:  # type: ignore[no-untyped-def]
    client = make_daemon().client()
    try:
        assert client.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    finally:
        client.end()


def test_a_client_without_a_daemon_runs_privately_and_warns_once(make_daemon) -> None:  # type: ignore[no-untyped-def]
    client = make_daemon().client(PYMPSD_REQUIRE_MPS="0")
    assert client.connect().call("add") == RIGHT
    (executor,) = children_of(client.pid)
    client.send("exit")
    _, complaint = client.process.communicate(timeout=30)
    assert complaint.count("no MPS control daemon") == 1
    wait_until(lambda: not alive(executor), "the private executor's end")
