"""The daemon is killed, or replaced, under running servers and clients: they continue, and the next takes them in.

The keeper holds the sockets; it is killed, too, alone and with the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kept_entries import ask_to_end
from processes import (
    PYMPSD,
    SECONDS,
    ClientProcess,
    DaemonProcess,
    alive,
    children_of,
    kill_after,
    suspend,
    wait_until,
)

from pympsd.takeover.servers import READY_SECONDS
from pympsd.wire import messages
from pympsd.wire.messages import ClientHello, Versions

Make = Callable[..., ClientProcess]
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
A, B, C, D = 10001, 10002, 10003, 10004


@pytest.fixture
def make_spinner(daemon: DaemonProcess) -> Iterator[Callable[[], ClientProcess]]:
    """Start clients whose kernels run until they are released."""
    client_processes: list[ClientProcess] = []

    def make() -> ClientProcess:
        client_processes.append(ClientProcess.start({**daemon.environment, "PYMPSD_REQUIRE_MPS": "1"}, 0))
        return client_processes[-1].connect()

    yield make
    for client in client_processes:
        client.end(signal.SIGKILL)


def again(daemon: DaemonProcess, *options: str) -> None:
    """Start a daemon in the place of the one that is gone."""
    done = daemon.start("-d", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def again_with_its_server(daemon: DaemonProcess, *options: str) -> None:
    """Start it; the one server is back when that returns, unless it takes longer than a daemon's start waits."""
    began = time.monotonic()
    again(daemon, *options)
    if time.monotonic() - began >= READY_SECONDS:
        server_of(daemon)


def server_of(daemon: DaemonProcess) -> int:
    """Return the PID of the one server there is, ready."""
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the server")
    return server


def is_queued(daemon: DaemonProcess, client: ClientProcess, times: int = 1) -> bool:
    """Whether control.log reports that a client waits, of that many daemons."""
    lines = [line for line in daemon.log() if line.startswith(f"NEW CLIENT {client.pid} ") and "pending" in line]
    return len(lines) >= times


def sockets_of(pid: int) -> set[str]:
    """Return the names of a process's sockets: a connection that was made again has another one."""
    return {link for link in links_of(pid) if link.startswith("socket:")}


def links_of(pid: int) -> list[str]:
    """Return what a process has open."""
    targets = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed
            targets.append(os.readlink(path))
    return targets


def test_a_server_that_has_to_end_without_a_daemon_does_so_when_it_has_no_clients(daemon: DaemonProcess) -> None:
    client = daemon.client().connect()
    (server,) = daemon.servers()
    daemon.kill()
    ask_to_end(daemon.directory / "pipe")
    assert client.call("add") == RIGHT
    assert alive(server)
    client.end()

    def has_ended() -> bool:
        ask_to_end(daemon.directory / "pipe")
        return not alive(server)

    with contextlib.suppress(OSError, ValueError):  # it has ended as it was asked again
        wait_until(has_ended)
    wait_until(lambda: not alive(server))
    assert daemon.start().returncode == 0
    assert daemon.servers() == []


@pytest.mark.long
def test_a_kernel_in_flight_and_all_that_is_listed_outlive_the_daemon(
    daemon: DaemonProcess, make_client: Make, make_spinner: Callable[[], ClientProcess]
) -> None:
    daemon.run_command("set_default_active_thread_percentage 40\nset_default_client_priority 1")
    spinner, other = make_spinner(), make_client().connect()
    assert other.call("newctx 0") == "CUDA_SUCCESS"
    assert spinner.call("spin") == "CUDA_SUCCESS CUDA_ERROR_NOT_READY"
    server = server_of(daemon)
    daemon.run_command(f"set_active_thread_percentage {server} 30\nset_device_pinned_mem_limit {server} 0 2G")
    lists = f"ps\nget_server_list\nget_client_list {server}\nget_device_client_list\nget_server_status {server}"
    settings = (
        f"get_default_active_thread_percentage\nget_active_thread_percentage {server}\n"
        f"get_device_pinned_mem_limit {server} 0\nget_default_device_pinned_mem_limit 0"
    )
    daemon.wait_for_server_messages()
    before = daemon.run_command(f"{lists}\n{settings}")
    daemon.kill()
    assert other.call("add") == RIGHT
    again_with_its_server(daemon)
    assert daemon.run_command(f"{lists}\n{settings}") == before
    # Ids continue above those that were.
    shown = {line.split()[1] for line in daemon.run_command("ps").splitlines()[1:]}
    late = make_client().connect()
    daemon.wait_for_server_messages()
    new = {line.split()[1] for line in daemon.run_command("ps").splitlines()[1:]} - shown
    assert [int(id_) > max(map(int, shown)) for id_ in new] == [True]
    # New clients get the limits that were set: 30 % of 132 SMs, in whole groups of 2.
    assert late.call("sm") == "38"
    assert late.call("mem").split()[1] == "2048"
    assert not spinner.has_result()
    assert spinner.call("release") == "CUDA_SUCCESS"
    assert spinner.call("spun") == "CUDA_SUCCESS wrong=0"
    assert [client.call("add") for client in (other, late)] == [RIGHT, RIGHT]


def test_quit_after_it_leaves_nothing(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    again(daemon)
    client.end()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")
    daemon.run_command("quit")
    wait_until(lambda: not alive(daemon.pid) and not alive(server), "the end")
    files = {path.name for path in (daemon.directory / "pipe").iterdir()}
    assert files == {"control", "control_lock", "control_privileged"}
    assert f"Server {server} has exited; its exit status is unknown because another daemon started it" in daemon.log()


def test_clients_that_begin_after_an_idle_daemon_was_killed_wait_for_the_next(
    daemon: DaemonProcess, make_client: Make
) -> None:
    clients = [make_client() for _ in range(2)]
    for client in clients:
        client.call("error")  # it runs, and has not connected
    daemon.kill()
    for client in clients:
        client.send("init")
    wait_until(lambda: all(sockets_of(client.pid) for client in clients), "the connections")
    assert not any(client.has_result() for client in clients)
    again(daemon)
    assert [client.result() for client in clients] == ["CUDA_SUCCESS"] * 2
    assert [client.call("ctx 0") for client in clients] == ["CUDA_SUCCESS"] * 2
    assert [client.call("add") for client in clients] == [RIGHT] * 2


@pytest.mark.long
def test_log_lines_of_the_time_between_are_not_lost(daemon: DaemonProcess, make_client: Make) -> None:
    stays, leaves = make_client().connect(), make_client().connect()
    server_of(daemon)
    daemon.kill()
    leaves.end()
    assert stays.call("newctx 0") == "CUDA_SUCCESS"
    again(daemon)
    text = f"Volta MPS: status of client {{{stays.pid}, 2}} is ACTIVE"
    wait_until(lambda: text in daemon.log("server.log"), "what was said meanwhile")
    wait_until(lambda: f"Client {leaves.pid} disconnected" in daemon.log("server.log"), "the end of the other")
    assert [line.split()[0] for line in daemon.run_command("ps").splitlines()[1:]] == [str(stays.pid)]
    assert stays.call("add") == RIGHT


@pytest.mark.long(but=["10001"])
@pytest.mark.parametrize("uid", [A, B])
def test_a_client_in_the_queue_keeps_its_connection(daemon: DaemonProcess, make_client: Make, uid: int) -> None:
    active = make_client(A).connect()
    server = server_of(daemon)
    if uid == A:
        # It leaves with its last client: even its own user's next one waits.
        daemon.run_command(f"shutdown_server {server}")
    waiting = make_client(uid)
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    connection = sockets_of(waiting.pid)
    assert connection
    for times in (2, 3):
        daemon.kill()
        again(daemon)
        wait_until(lambda times=times: is_queued(daemon, waiting, times), "the queue of the next daemon")
    assert sockets_of(waiting.pid) == connection
    assert not waiting.has_result()
    assert active.call("add") == RIGHT
    active.end()
    assert waiting.result() == "CUDA_SUCCESS"
    assert waiting.call("ctx 0") == "CUDA_SUCCESS"
    assert waiting.call("add") == RIGHT


@pytest.mark.long(but=["1-NEW CLIENT"])
@pytest.mark.parametrize(
    ("others", "word"),
    [
        (0, "Accepting connection"),
        (0, "NEW CLIENT"),
        (0, "Starting new server"),
        (0, "NEW SERVER"),
        (1, "Accepting connection"),
        (1, "NEW CLIENT"),
    ],
)
def test_killed_at_any_moment_of_an_admission(
    daemon: DaemonProcess, make_client: Make, others: int, word: str
) -> None:
    neighbours = [make_client().connect() for _ in range(others)]
    client = make_client()
    lines = sum(word in line for line in daemon.log())
    client.send("init")
    wait_until(lambda: sum(word in line for line in daemon.log()) > lines, word)
    daemon.kill()
    again(daemon)
    assert client.result() == "CUDA_SUCCESS"
    assert client.call("ctx 0") == "CUDA_SUCCESS"
    assert [client_process.call("add") for client_process in (client, *neighbours)] == [RIGHT] * (1 + others)
    assert len(daemon.servers()) == 1
    assert len(daemon.run_command(f"get_client_list {server_of(daemon)}").split()) == 1 + others


@pytest.mark.long
def test_one_server_for_all_users_is_taken_over_too(
    make_daemon: Callable[..., DaemonProcess], request: pytest.FixtureRequest
) -> None:
    daemon = make_daemon()
    again(daemon, "-multiuser-server")
    clients = [daemon.client(uid) for uid in (A, B)]
    for client in clients:
        request.addfinalizer(lambda client=client: client.end(signal.SIGKILL))
        client.connect()
    daemon.wait_for_server_messages()
    before = daemon.run_command("ps")
    daemon.kill()
    again_with_its_server(daemon, "-multiuser-server")
    assert daemon.run_command("ps") == before
    assert [client.call("add") for client in clients] == [RIGHT, RIGHT]


@pytest.mark.long
def test_the_daemon_of_an_ordinary_user_is_replaced_in_the_same_way(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon()
    for name in ("pipe", "log"):
        os.chown(daemon.directory / name, A, A)
    daemon.uid = A
    again(daemon)
    client = daemon.client()
    try:
        client.connect()
        daemon.wait_for_server_messages()
        before = daemon.run_command("ps")
        daemon.kill()
        again_with_its_server(daemon)
        assert daemon.run_command("ps") == before
        again_with_its_server(daemon, "--replace")
        assert daemon.run_command("ps") == before
        assert client.call("add") == RIGHT
    finally:
        client.end(signal.SIGKILL)


@pytest.mark.long
def test_clients_that_begin_while_a_busy_daemon_is_gone_wait_for_the_next(
    daemon: DaemonProcess, make_client: Make
) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    late = make_client()
    late.send("init")
    wait_until(lambda: bool(sockets_of(late.pid)), "the connection")
    assert client.call("add") == RIGHT
    assert not late.has_result()
    again(daemon)
    assert late.result() == "CUDA_SUCCESS"
    assert client.call("add") == RIGHT
    assert daemon.servers() == [server]


@pytest.mark.long
def test_a_waiting_client_that_ends_meanwhile_is_not_admitted(daemon: DaemonProcess, make_client: Make) -> None:
    active, waiting, late = make_client(A).connect(), make_client(B), make_client(B)
    late.call("error")  # it runs, and has not connected
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    daemon.kill()
    late.send("init")
    wait_until(lambda: bool(sockets_of(late.pid)), "the connection")
    for client in (waiting, late):
        client.end(signal.SIGKILL)
    again(daemon)
    active.end()
    assert make_client(B).connect().call("add") == RIGHT
    daemon.wait_for_server_messages()
    assert len(daemon.run_command("ps").splitlines()) == 2


@pytest.mark.long
def test_the_queue_has_the_same_order_after_the_daemon_was_killed(daemon: DaemonProcess, make_client: Make) -> None:
    active, first, last = make_client(A).connect(), make_client(B), make_client(D)
    first.send("init")
    wait_until(lambda: is_queued(daemon, first), "the queue")
    daemon.run_command(f"start_server -uid {C}")
    last.send("init")
    wait_until(lambda: is_queued(daemon, last), "the queue")
    before = daemon.run_command("get_waiting_list --json")
    daemon.kill()
    again(daemon)
    wait_until(lambda: is_queued(daemon, first, times=2) and is_queued(daemon, last, times=2), "the return of both")
    users = [(entry["uid"], entry["pid"]) for entry in json.loads(daemon.run_command("get_waiting_list --json"))]
    assert users == [(entry["uid"], entry["pid"]) for entry in json.loads(before)]
    assert users == [(B, first.pid), (C, 0), (D, last.pid)]
    active.end()
    assert first.result() == "CUDA_SUCCESS"
    first.end()
    assert last.result() == "CUDA_SUCCESS"
    started = [int(line.rsplit(" ", 1)[1]) for line in daemon.log() if "Starting new" in line]
    assert started == [A, B, C, D]


@pytest.mark.long
def test_a_queued_start_of_a_server_outlives_the_daemon(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client(A).connect()
    daemon.run_command(f"start_server -uid {B}")
    daemon.kill()
    again(daemon)
    client.end()
    wait_until(lambda: any(line.endswith(f"for user {B}") and "Starting new" in line for line in daemon.log()), "it")


@pytest.mark.long
def test_killed_in_the_midst_of_a_quit(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    quitting = daemon.start_command("quit")
    line = "Server was unable to shutdown due to 2 active clients"
    wait_until(lambda: line in daemon.log("server.log"), "the quit")
    daemon.kill()
    quitting.communicate(timeout=SECONDS)
    again(daemon)
    assert "An operator asked the previous daemon to quit; this daemon will quit instead" in daemon.log()
    assert daemon.servers() == [server]
    assert client.call("add") == RIGHT
    assert make_client().call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    client.end()
    wait_until(lambda: not alive(daemon.pid) and not alive(server), "the end")
    assert daemon.log()[-1] == "Exit with status 0"
    # It is done: the next one is a new daemon.
    again(daemon)
    assert make_client().call("init") == "CUDA_SUCCESS"


def test_a_server_without_clients_is_taken_over(daemon: DaemonProcess, make_client: Make) -> None:
    daemon.run_command("start_server -uid 0")
    wait_until(lambda: bool(daemon.servers()), "a server")
    server = server_of(daemon)
    daemon.kill()
    again(daemon)
    assert server_of(daemon) == server
    assert make_client().connect().call("add") == RIGHT
    assert daemon.servers() == [server]


@pytest.mark.long
def test_a_server_is_killed_while_there_is_no_daemon(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    os.kill(server, signal.SIGKILL)
    assert client.first_error() == "CUDA_ERROR_MPS_RPC_FAILURE"
    late = make_client()
    late.send("init")
    wait_until(lambda: bool(sockets_of(late.pid)), "the connection")
    again(daemon)
    assert late.result() == "CUDA_SUCCESS"
    assert late.call("ctx 0") == "CUDA_SUCCESS"
    assert late.call("add") == RIGHT
    assert server not in daemon.servers()
    assert len(daemon.servers()) == 1


@pytest.mark.long
def test_a_server_whose_last_client_leaves_meanwhile_is_taken_over(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    assert [client.call("add") for _ in range(3)] == [RIGHT] * 3
    client.end()
    again(daemon)
    assert server_of(daemon) == server
    assert daemon.run_command(f"get_client_list {server}") == ""


@pytest.mark.long
def test_a_server_that_does_not_return_is_given_up(daemon: DaemonProcess, make_client: Make) -> None:
    make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    os.kill(server, signal.SIGSTOP)
    again(daemon)
    assert daemon.run_command(f"get_server_status {server}") == "INITIALIZING\n"
    late = make_client()
    late.send("init")
    assert late.result() == "CUDA_SUCCESS"
    assert not alive(server)


@pytest.mark.long
def test_a_stopped_server_of_the_daemon_before_leaves_no_stopped_executor(
    daemon: DaemonProcess, make_client: Make
) -> None:
    client = make_client(A).connect()
    server = server_of(daemon)
    processes = [server, *children_of(server)]
    assert len(processes) > 1
    daemon.kill()
    again(daemon)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        daemon.run_command("quit -t 0")
        wait_until(lambda: not alive(daemon.pid), "the end of the daemon")
        wait_until(lambda: not any(map(alive, processes)), "the end of what the server had")
    finally:
        for pid in filter(alive, processes):
            os.kill(pid, signal.SIGKILL)
    client.end()


@pytest.mark.long
def test_a_fault_between_two_daemons(
    make_daemon: Callable[..., DaemonProcess], request: pytest.FixtureRequest
) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200")
    again(daemon)
    culprit, other = (daemon.client().connect(device) for device in (0, 1))
    for client in (culprit, other):
        request.addfinalizer(lambda client=client: client.end(signal.SIGKILL))
    server = server_of(daemon)
    daemon.kill()
    assert culprit.call("illegal") == "CUDA_SUCCESS"
    assert culprit.call("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    again(daemon)
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "FAULT\n", "its return with the fault")
    culprit.end()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n", "the end of the fault")
    late = daemon.client()
    request.addfinalizer(lambda: late.end(signal.SIGKILL))
    assert [client.call("add") for client in (late.connect(), other)] == [RIGHT, RIGHT]


def test_limits_outlive_a_daemon_without_servers(daemon: DaemonProcess) -> None:
    daemon.run_command("set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 1G")
    daemon.kill()
    again(daemon)
    daemon.kill()
    again(daemon)
    assert (
        daemon.run_command("get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0")
        == "25.0\n1G\n"
    )
    daemon.run_command("quit")
    daemon.await_end()
    again(daemon)
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"


def test_a_daemon_with_other_devices_does_not_take_over_a_server(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    daemon.kill()
    daemon.settings["PYMPSD_EMULATED_DEVICES"] = "2xA100"
    again(daemon)
    reason = "this daemon has other devices"
    line = f"Not taking over server {server} ({reason}); it will exit with its last client"
    wait_until(lambda: line in daemon.log(), "its return in vain")
    assert daemon.servers() == []
    assert client.call("add") == RIGHT
    client.end()
    wait_until(lambda: not alive(server), "the end of the server")


# --- --replace


@pytest.mark.long
def test_replace_under_load(daemon: DaemonProcess, make_client: Make) -> None:
    clients = [make_client(uid).connect() for uid in (A, A, A)]
    waiting = make_client(B)
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    daemon.wait_for_server_messages()
    before, first = daemon.run_command("ps"), daemon.pid
    for _ in range(3):
        for client in clients:
            client.send("add")
        again_with_its_server(daemon, "--replace")
        assert [client.result() for client in clients] == [RIGHT] * 3
        assert daemon.run_command("ps") == before
    assert not alive(first)
    assert daemon.log().count("Handing over to another daemon; servers keep running") == 3
    for client in clients:
        client.end()
    assert waiting.result() == "CUDA_SUCCESS"
    daemon.run_command("quit -t 0")
    wait_until(lambda: not alive(daemon.pid), "the end")


def test_replace_without_a_daemon_is_a_start(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    again(daemon, "--replace")
    assert daemon.run_command("get_server_list") == ""


def test_replace_by_one_that_cannot_start_costs_nothing(daemon: DaemonProcess) -> None:
    daemon.settings["PYMPSD_EMULATED_DEVICES"] = "nothing"
    done = daemon.run(["-d", "--replace"])
    assert done.returncode == 1
    assert alive(daemon.pid)
    assert daemon.run_command("get_server_list") == ""


def test_replace_needs_a_start(daemon: DaemonProcess) -> None:
    done = daemon.run(["--replace"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "--replace goes with -d or -f" in done.stderr


def test_another_user_cannot_replace_it(daemon: DaemonProcess) -> None:
    done = daemon.run(["-d", "--replace"], uid=A)
    assert done.returncode == 1
    assert "is user 0's" in done.stderr
    assert alive(daemon.pid)


@pytest.mark.long
def test_a_pid_file_that_names_another_process_does_no_harm(daemon: DaemonProcess) -> None:
    path = daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid"
    for text, reason in ((str(os.getpid()), "is not the daemon that runs"), ("x", "not a daemon's PID file")):
        path.write_text(text)
        done = daemon.run(["-d", "--replace"])
        assert done.returncode == 1
        assert reason in done.stderr
    assert alive(daemon.pid)


@pytest.mark.long
def test_replace_in_the_foreground(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    daemon.wait_for_server_messages()
    before = daemon.run_command("ps")
    words = [PYMPSD, "-f", "--replace"]
    null = subprocess.DEVNULL
    with kill_after(subprocess.Popen(words, env=daemon.environment, stdin=null, stdout=null)) as new:
        daemon.await_end()
        wait_until(lambda: daemon.run([], "ps").stdout == before, "the new daemon")
        assert client.call("add") == RIGHT
        client.end()
        daemon.run_command("quit")
        assert new.wait(SECONDS) == 0


# --- the keeper


def another_keeper(daemon: DaemonProcess, before: int) -> int:
    """Wait until a keeper other than ``before`` holds the daemon's entries; return its PID."""
    keeper = daemon.keeper(before)
    # The daemon sends all entries in one burst; until then the keeper has only its own descriptors.
    wait_until(lambda: any("/log" in link for link in links_of(keeper)), "what it is to hold")
    return keeper


@pytest.mark.long
def test_a_keeper_that_is_killed_is_followed_by_another(daemon: DaemonProcess, make_client: Make) -> None:
    active, waiting = make_client(A).connect(), make_client(B)
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    daemon.wait_for_server_messages()
    before, connection = daemon.run_command("ps"), sockets_of(waiting.pid)
    for times in (2, 3):
        keeper = daemon.keeper()
        os.kill(keeper, signal.SIGKILL)
        another_keeper(daemon, keeper)
        daemon.kill()
        again_with_its_server(daemon)
        wait_until(lambda times=times: is_queued(daemon, waiting, times), "the queue of the next daemon")
        assert daemon.run_command("ps") == before
    assert active.call("add") == RIGHT
    assert sockets_of(waiting.pid) == connection
    active.end()
    assert waiting.result() == "CUDA_SUCCESS"


@pytest.mark.long
def test_without_daemon_and_keeper_everything_ends_and_the_next_starts_clean(
    daemon: DaemonProcess, make_client: Make
) -> None:
    active, waiting, late = make_client(A).connect(), make_client(B), make_client(A)
    late.call("error")  # it runs, and has not connected
    server = server_of(daemon)
    executors = children_of(server)
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    kill_both(daemon)
    wait_until(lambda: not alive(server), "the end of the server")
    wait_until(lambda: not any(map(alive, executors)), "the end of its executors")
    assert active.first_error() == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert waiting.result() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    # It requires MPS, so that it goes no other way.
    assert late.call("init") == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    assert late.call("error").startswith("no MPS control daemon at ")
    again(daemon)
    assert daemon.servers() == []
    assert make_client(B).connect().call("add") == RIGHT


@pytest.mark.long
def test_servers_that_still_end_are_not_taken_over(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server = server_of(daemon)
    suspend(server)
    try:
        kill_both(daemon)
        again(daemon)
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: not alive(server), "the end of the server")
    assert client.first_error() == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert make_client().connect().call("add") == RIGHT
    assert server not in daemon.servers()


@pytest.mark.long
def test_a_stopped_keeper_is_killed_by_the_next_daemon(daemon: DaemonProcess, make_client: Make) -> None:
    client = make_client().connect()
    server, keeper = server_of(daemon), daemon.keeper()
    suspend(keeper)
    assert make_client().connect().call("add") == RIGHT
    daemon.kill()
    assert client.call("add") == RIGHT
    again(daemon)
    assert not alive(keeper)
    wait_until(lambda: not alive(server), "the end of the server, whose link nobody has")
    assert client.first_error() == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert make_client().connect().call("add") == RIGHT


@pytest.mark.long
def test_a_keeper_that_was_stopped_for_a_while_has_missed_nothing(daemon: DaemonProcess, make_client: Make) -> None:
    keeper = daemon.keeper()
    suspend(keeper)
    client, waiting = make_client(A).connect(), make_client(B)
    waiting.send("init")
    wait_until(lambda: is_queued(daemon, waiting), "the queue")
    daemon.kill()
    os.kill(keeper, signal.SIGCONT)
    again(daemon)
    assert daemon.keeper() == keeper
    assert client.call("add") == RIGHT
    client.end()
    assert waiting.result() == "CUDA_SUCCESS"


def test_the_keeper_ends_with_its_daemon(daemon: DaemonProcess, make_client: Make) -> None:
    make_client().connect().end()
    keeper = daemon.keeper()
    assert alive(keeper)
    daemon.run_command("quit")
    wait_until(lambda: not alive(daemon.pid) and not alive(keeper), "the end")
    assert not (daemon.directory / "pipe" / "pympsd.keeper").exists()


def kill_both(daemon: DaemonProcess) -> None:
    """Kill keeper and daemon; the daemon is stopped first, or it might start another keeper."""
    keeper = daemon.keeper()
    suspend(daemon.pid)
    os.kill(keeper, signal.SIGKILL)
    daemon.kill()
    wait_until(lambda: not alive(keeper), "the end of the keeper")


# --- at any moment


@pytest.mark.long(but=["1"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_killed_at_any_moment_under_load(daemon: DaemonProcess, make_client: Make, seed: int) -> None:
    source = random.Random(seed)
    active = make_client().connect()
    waiting: list[socket.socket] = []

    def request_count() -> int:
        return sum(line.startswith("NEW CLIENT ") for line in daemon.log())

    try:
        for _ in range(8):
            before = request_count()
            waiting += [_connect(daemon) for _ in range(40)]
            for connection in waiting:
                connection.sendall(messages.encode(ClientHello(Versions(), os.getpid(), "load", 0, {}, False)))
            some = before + source.randint(0, len(waiting))
            wait_until(lambda some=some: request_count() >= some, "some of the requests")
            daemon.kill()
            again(daemon)
            while waiting:
                with waiting.pop() as connection:
                    _take_grant(connection)
            assert active.call("add") == RIGHT
    finally:
        for connection in waiting:
            connection.close()


def _connect(daemon: DaemonProcess) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SECONDS)
    sock.connect(str(daemon.directory / "pipe" / "control"))
    return sock


def _take_grant(sock: socket.socket) -> None:
    """Take the grant of a session and the session's welcome."""
    data, fds, _, _ = socket.recv_fds(sock, 65536, 2)
    assert data, "the connection was closed"
    assert len(fds) == 1, data
    with socket.socket(fileno=fds[0]) as session:
        session.settimeout(SECONDS)
        assert session.recv(65536), "no welcome"
