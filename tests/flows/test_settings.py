"""Settings over real sockets, with real servers: defaults for the next one, a server's own for its later clients."""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, alive, kill_after, wait_until

from pympsd.cli.daemon_connection import TIMEOUT

MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[..., ClientProcess]
NOBODY = pwd.getpwnam("nobody").pw_uid
OTHER = 12345
RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def new_server(daemon: DaemonProcess) -> int:
    """Start root's server, wait until it is ready, return its PID."""
    before = sum(line.endswith(": Ready") for line in daemon.log())
    daemon.run_command("start_server -uid 0")
    wait_until(lambda: sum(line.endswith(": Ready") for line in daemon.log()) > before, "a ready server")
    (server,) = daemon.servers()
    return server


def end_server(daemon: DaemonProcess, server: int) -> None:
    daemon.run_command(f"shutdown_server {server}")
    wait_until(lambda: daemon.servers() == [], "the server's end")


# --- percentages, memory limits, priorities


def test_percentages_are_set_by_default_and_by_server(daemon: DaemonProcess) -> None:
    first = new_server(daemon)
    assert daemon.run_command("set_default_active_thread_percentage 50") == "50.0\n"
    assert daemon.run_command(f"get_active_thread_percentage {first}") == "100.0\n", "a running server keeps its own"
    assert daemon.run_command(f"set_active_thread_percentage {first} 25") == "25.0\n"
    assert daemon.run_command(f"get_active_thread_percentage {first}") == "25.0\n"
    assert daemon.run_command(f"set_active_thread_percentage {first} 0") == "25.0\n"
    end_server(daemon, first)
    second = new_server(daemon)
    assert (
        daemon.run_command(f"get_active_thread_percentage {second}\nget_default_active_thread_percentage")
        == "50.0\n50.0\n"
    )
    assert daemon.run_command(f"set_active_thread_percentage {second} 90") == "90.0\n", "its own may be higher"
    assert daemon.run_command(f"get_active_thread_percentage {first}") == f"Server {first} not found\n"
    assert "Active Threads Percentage set to 50.0" in daemon.log("server.log")


def test_memory_limits_are_set_by_default_and_by_server(daemon: DaemonProcess, make_client: MakeClient) -> None:
    first = new_server(daemon)
    assert daemon.run_command("set_default_device_pinned_mem_limit 0 2G") == ""
    assert daemon.run_command(f"get_device_pinned_mem_limit {first} 0") == ""
    early = make_client().connect()
    assert daemon.run_command(f"set_device_pinned_mem_limit {first} 0 1025M") == ""
    assert daemon.run_command(f"get_device_pinned_mem_limit {first} 0") == "1025M\n"
    assert daemon.run_command("get_default_device_pinned_mem_limit 0") == "2G\n"
    late = make_client().connect()
    assert late.call("mem").split()[1] == "1025"
    assert early.call("mem").split()[1] != "1025"
    assert late.call(f"alloc {2 << 30}") == "CUDA_ERROR_OUT_OF_MEMORY 0x0"
    assert daemon.run_command(f"set_device_pinned_mem_limit {first} 0 0") == ""
    assert daemon.run_command(f"get_device_pinned_mem_limit {first} 0") == ""
    early.end()
    late.end()
    end_server(daemon, first)
    second = new_server(daemon)
    assert daemon.run_command(f"get_device_pinned_mem_limit {second} 0") == "2G\n"
    assert make_client().connect().call("mem").split()[1] == "2048"


def test_the_default_priority_is_that_of_the_next_connection(daemon: DaemonProcess, make_client: MakeClient) -> None:
    """The default is that of the next connection, also of a server that runs (recorded)."""
    server = new_server(daemon)
    make_client().connect()
    assert daemon.run_command("set_default_client_priority 1\nget_default_client_priority") == "1\n"
    make_client().connect()
    make_client(CUDA_MPS_CLIENT_PRIORITY="0").connect()
    assert daemon.servers() == [server]
    line = "Client Priority set to 1"
    wait_until(lambda: line in daemon.log("server.log"), "the log line of the default, the only one logged")
    assert daemon.run_command("set_default_client_priority 2") == "Invalid priority value - must be 0 or 1!\n"
    assert daemon.run_command("get_default_client_priority") == "1\n"


def test_settings_are_lost_at_quit(daemon: DaemonProcess, make_daemon: MakeDaemon) -> None:
    daemon.run_command("set_default_active_thread_percentage 10\nset_default_client_priority 1")
    daemon.run_command("set_default_device_pinned_mem_limit 0 1G")
    questions = "get_default_active_thread_percentage\nget_default_client_priority\n"
    questions += "get_default_device_pinned_mem_limit 0"
    assert daemon.run_command(questions) == "10.0\n1\n1G\n"
    daemon.run_command("quit")
    again = make_daemon()
    again.start()
    assert again.run_command(questions) == "100.0\n0\n"


def test_settings_are_the_owners(daemon: DaemonProcess) -> None:
    server = new_server(daemon)
    commands = [
        "set_default_active_thread_percentage 10",
        f"set_active_thread_percentage {server} 10",
        "set_default_device_pinned_mem_limit 0 1G",
        f"set_device_pinned_mem_limit {server} 0 1G",
        "set_default_client_priority 1",
        f"shutdown_server {server} -f",
        f"terminate_client {server} 1",
    ]
    refused = (
        f"Insufficient privileges for UID {NOBODY}. Control deamon settings can only be modified by the user who "
        "started it or by the root user.\n"
    )
    assert daemon.run_command("\n".join(commands), uid=NOBODY) == refused * len(commands)
    assert daemon.run_command("get_default_active_thread_percentage\nget_default_client_priority") == "100.0\n0\n"
    assert daemon.run_command(f"get_active_thread_percentage {server}", uid=NOBODY) == "100.0\n"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"},
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]",
        ),
        (
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "x"},
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]",
        ),
        ({"CUDA_MPS_CLIENT_PRIORITY": "2"}, "CUDA_MPS_CLIENT_PRIORITY should be between [0,1]"),
    ],
)
def test_environment_defaults_that_cannot_be(
    make_daemon: MakeDaemon, settings: dict[str, str], complaint: str
) -> None:
    daemon = make_daemon(**settings)
    assert daemon.start().returncode == 0
    assert complaint in daemon.log()
    assert daemon.run_command("get_default_active_thread_percentage\nget_default_client_priority") == "100.0\n0\n"


def test_the_environment_of_the_daemon_sets_defaults(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30", CUDA_MPS_CLIENT_PRIORITY="1")
    assert daemon.start().returncode == 0
    assert daemon.run_command("get_default_active_thread_percentage\nget_default_client_priority") == "30.0\n1\n"
    assert daemon.run_command(f"get_active_thread_percentage {new_server(daemon)}") == "30.0\n"


@pytest.mark.long(but=["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
@pytest.mark.parametrize("name", ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_DEVICE_MEM_LIMIT"])
def test_environment_memory_limit_is_the_default(make_daemon: MakeDaemon, name: str) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200", **{name: "0=1G,1=512MB"})
    assert daemon.start().returncode == 0
    queries = "get_default_device_pinned_mem_limit 0\nget_default_device_pinned_mem_limit 1"
    assert daemon.run_command(queries) == "1G\n512M\n"
    server = new_server(daemon)
    assert daemon.run_command(f"get_device_pinned_mem_limit {server} 1") == "512M\n"


def test_an_environment_memory_limit_that_cannot_be_leaves_the_others(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(PYMPSD_EMULATED_DEVICES="2xH200", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1T,9=1G,1=3G,x")
    assert daemon.start().returncode == 0
    assert daemon.run_command("get_default_device_pinned_mem_limit 0") == ""
    assert daemon.run_command("get_default_device_pinned_mem_limit 1") == "3G\n"
    left_out = [line for line in daemon.log() if "is left out" in line]
    assert [line.split("'")[1] for line in left_out] == ["0=1T", "9=1G", "x"]


# --- shutdown_server, terminate_client


def test_shutdown_server_waits_for_its_clients(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    (server,) = daemon.servers()
    assert daemon.run_command(f"shutdown_server {server}") == ""
    assert client.call("add") == RIGHT
    assert alive(server)
    client.end()
    wait_until(lambda: not alive(server), "the server's end")
    assert alive(daemon.pid)


@pytest.mark.long
def test_shutdown_server_by_force_does_not(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    client.call("endless")
    (server,) = daemon.servers()
    assert daemon.run_command(f"shutdown_server {server} -f") == ""
    wait_until(lambda: not alive(server), "the server's end")
    assert client.call("sync") == "CUDA_ERROR_MPS_RPC_FAILURE"
    assert f"Force shutting down server {server}" in daemon.log()
    assert make_client().connect().call("add") == RIGHT
    assert daemon.run_command("shutdown_server 1") == "Server 1 not found\n"


@pytest.mark.long(but=["busy"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_terminate_client_ends_one_client_and_no_other(
    daemon: DaemonProcess, make_client: MakeClient, busy: bool
) -> None:
    client, neighbour = make_client().connect(), make_client().connect()
    assert client.call("add") == RIGHT
    if busy:
        assert client.call("endless") == "CUDA_SUCCESS"
    (server,) = daemon.servers()
    done = daemon.run([], f"terminate_client {server} {client.pid}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert client.call("sync") == TERMINATED
    assert client.call("alloc 4096").split()[0] == TERMINATED
    assert client.call("sync") == TERMINATED, "every later call"
    assert neighbour.call("add") == RIGHT
    assert "Client termination succeeded." in daemon.log("server.log")
    assert client.call("newctx 0") == "CUDA_SUCCESS"
    assert client.call("add") == RIGHT
    assert daemon.servers() == [server]
    assert neighbour.call("add") == RIGHT
    again = daemon.run([], f"terminate_client {server} {client.pid}")
    assert again.stdout == "0\n", "its new context can be ended too"
    assert daemon.run([], f"terminate_client {server} {client.pid}").stdout == "201\n", "no context is left to end"
    assert neighbour.call("add") == RIGHT


def test_terminate_client_refuses_a_pid_that_is_not_a_client(daemon: DaemonProcess, make_client: MakeClient) -> None:
    make_client().connect()
    (server,) = daemon.servers()
    done = daemon.run([], f"terminate_client {server} 1")
    assert (done.returncode, done.stdout) == (0, "201\n")
    why = "the process has no active context on it: it was ended before, or never had one"
    assert done.stderr == f"terminate_client: {why}\n"
    assert daemon.run_command("terminate_client 7 8") == "Server 7 not found\nServer 7 not found!\n1\n"
    failed = "Client termination request failed: There is no active client context found for process 1."
    wait_until(lambda: failed in daemon.log("server.log"), "the log line")


# --- -multiuser-server


@pytest.fixture
def multiuser(make_daemon: MakeDaemon) -> DaemonProcess:
    """A daemon with one server for all users."""
    daemon = make_daemon()
    script = daemon.directory / "start"
    script.write_text(f'#!/bin/sh\nexec {PYMPSD} -multiuser-server "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    return daemon


@pytest.mark.long
def test_multiuser_clients_of_two_users_on_one_server_of_root(multiuser: DaemonProcess) -> None:
    clients = [multiuser.client(uid) for uid in (NOBODY, OTHER, 0)]
    try:
        for client in clients:
            client.connect()
        for client in clients:
            client.send("add")
        assert [client.result() for client in clients] == [RIGHT] * 3
        (server,) = multiuser.servers()
        assert os.stat(f"/proc/{server}").st_uid == 0
        assert multiuser.run_command(f"get_client_list {server}").split() == [str(client.pid) for client in clients]
        words = Path(f"/proc/{server}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
        assert words == [b"pympsd-server", b"-multiuser-server"]
        shown = subprocess.run(["ps", "-o", "args=", "-p", str(server)], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == ["pympsd-server", "-multiuser-server"]
        assert len({line for line in multiuser.log() if line.startswith("Starting new server")}) == 1
    finally:
        for client in clients:
            client.end(signal.SIGKILL)


def test_multiuser_is_for_root_only(directory: Path) -> None:
    for name in ("pipe", "log"):
        os.chown(directory / name, OTHER, OTHER)
    done = DaemonProcess(directory, uid=OTHER).run(["-d", "-multiuser-server"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "only root can serve other users" in done.stderr
    assert not (directory / "pipe" / "control").exists()


# --- standard error, exit statuses, a daemon that is silent

REFUSED = {
    "set_default_active_thread_percentage 101": ("100.0\n", "(0.0, 100.0]"),
    "set_default_active_thread_percentage": ("100.0\n", "(0.0, 100.0]"),
    "set_default_device_pinned_mem_limit 0 1T": ("", "10G, 900M"),
    "set_default_device_pinned_mem_limit 0 1.5G": ("", "10G, 900M"),
    "set_default_device_pinned_mem_limit 0 -1G": ("", "10G, 900M"),
    "set_default_device_pinned_mem_limit 0 0G": ("", "10G, 900M"),
    "set_default_device_pinned_mem_limit 9 1G": ("", "9"),
    "set_default_device_pinned_mem_limit 0": ("", "set_default_device_pinned_mem_limit DEVICE VALUE"),
    "set_default_client_priority high": ("", "0 (normal) or 1 (below normal)"),
    "start_server -uid -3": ("", "'-3' is not a user id"),
    "help": ('Unknown command "help"\n', "get_server_list"),
}


def test_a_refused_command_gets_one_line_on_stderr(daemon: DaemonProcess) -> None:
    for line, (printed, allowed) in REFUSED.items():
        done = daemon.run([], line)
        assert (done.returncode, done.stdout) == (0, printed), line
        assert done.stderr.count("\n") == 1
        assert allowed in done.stderr
        assert daemon.run(["--strict"], line).returncode == 1
        assert daemon.run(line.split()).returncode == 1
    assert daemon.run_command("get_default_active_thread_percentage\nget_default_client_priority") == "100.0\n0\n"
    assert daemon.run_command("get_default_device_pinned_mem_limit 0") == ""


def test_strict_is_0_when_all_were_accepted_and_reads_on_after_a_refusal(daemon: DaemonProcess) -> None:
    assert daemon.run(["--strict"], "get_server_list\nset_default_active_thread_percentage 5").returncode == 0
    done = daemon.run(["--strict"], "frobnicate\nget_default_active_thread_percentage\n")
    assert (done.returncode, done.stdout) == (1, 'Unknown command "frobnicate"\n5.0\n')


@pytest.mark.parametrize("backlog", [8, 0], ids=["takes the connection", "takes no more connections"])
@pytest.mark.parametrize("words", [[], ["get_server_list"]], ids=["stdin", "arguments"])
def test_a_daemon_that_is_silent(make_daemon: MakeDaemon, words: list[str], backlog: int) -> None:
    daemon = make_daemon()
    path = str(daemon.directory / "pipe" / "control")
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as before:
        silent.bind(path)
        silent.listen(backlog)
        before.connect(path)
        began = time.monotonic()
        done = daemon.run(["--timeout", "0.5", *words], "get_server_list")
        assert 0.4 < time.monotonic() - began < TIMEOUT, "it has its own bound, not the usual one"
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "The MPS control daemon does not answer: it accepted the connection, then sent nothing for 0.5 s\n"
    )


def test_a_daemon_that_is_stopped(daemon: DaemonProcess) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert daemon.run(["--timeout=0.5"], "ps").returncode == 2
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert daemon.run_command("ps") == "Server not found\n"


def test_a_timeout_that_cannot_be(daemon: DaemonProcess) -> None:
    for value in ("0", "-1", "soon", "nan", "inf", ""):
        done = daemon.run(["--timeout", value], "ps")
        assert (done.returncode, done.stdout) == (2, ""), value
        assert "--timeout must be a number of seconds above 0" in done.stderr


@pytest.mark.long
def test_a_quit_with_clients_is_not_cut_off_by_the_timeout(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    words, pipe = [PYMPSD, "--timeout", "3"], subprocess.PIPE
    with kill_after(subprocess.Popen(words, env=daemon.environment, stdin=pipe, stderr=pipe)) as quitting:
        assert quitting.stdin is not None
        quitting.stdin.write(b"quit\n")
        quitting.stdin.close()
        wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit")
        watched = os.pidfd_open(quitting.pid)
        try:
            # Twice the bound and more: it must still be there at the end of the wait.
            assert not select.select([watched], [], [], 6.5)[0], "it gave up"
        finally:
            os.close(watched)
        client.end()
        assert quitting.wait(SECONDS) == 0
        assert quitting.stderr is not None
        assert quitting.stderr.read() == b""


def test_bytes_that_are_not_text_come_back_as_they_came_on_stderr_too(daemon: DaemonProcess) -> None:
    line = b"set_default_device_pinned_mem_limit \xff\xfe 1G\nget_default_client_priority"
    done = subprocess.run([PYMPSD], env=daemon.environment, input=line, capture_output=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert done.stderr.startswith(b"\xff\xfe is not a device of this daemon")


def test_many_commands_in_one_session_are_answered_in_order(daemon: DaemonProcess) -> None:
    values = [f"{number / 10:.1f}" for number in range(1, 1001)]
    lines = [f"set_default_active_thread_percentage {value}" for value in values]
    lines[500:500] = ["x" * 200_000, ""]
    printed = daemon.run_command("\n".join(lines)).splitlines()
    assert [line for line in printed if not line.startswith("Unknown")] == values
    assert printed[500].startswith('Unknown command "xxx')
    assert printed[501] == 'Unknown command ""'


def test_commands_after_a_quit_are_not_done(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    done = daemon.run([], "get_default_client_priority\nquit\nset_default_client_priority 1\n" + "ps\n" * 100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert not alive(daemon.pid)
    assert [line for line in daemon.log() if line.startswith("Cmd:")][-1] == "Cmd:quit"


def test_a_server_that_is_shut_down_before_it_is_ready_does_not_come_back(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    (server,) = daemon.servers()
    assert daemon.run_command(f"shutdown_server {server}") == ""
    wait_until(lambda: f"Server {server} exited with status 0" in daemon.log(), "its end")
    assert daemon.servers() == []
    assert len([line for line in daemon.log() if line.startswith("Starting new server")]) == 1


def test_settings_that_are_left_out_are_reported_where_the_daemon_is_started(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1T,9=1G", CUDA_MPS_CLIENT_PRIORITY="7")
    done = daemon.start()
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert [next(word for word in ("PRIORITY", "'0=1T'", "'9=1G'") if word in line) for line in lines] == [
        "PRIORITY",
        "'0=1T'",
        "'9=1G'",
    ]
    assert all(line in daemon.log() for line in lines)
