"""Manners of a daemon that runs: log files and their dialects, signals, its place in a world of namespaces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, alive, children_of, kill_after, wait_until

MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[..., ClientProcess]
SAMPLE = Path(__file__).parents[2] / "docs/samples/pympsd.logrotate"
TEXT_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (Control|Server|Other|Client) [ \d]{5,7}\] .*")


def start_as(daemon: DaemonProcess, *options: str) -> None:
    """Start it with more options than -d."""
    script = daemon.directory / "start"
    script.write_text(f'#!/bin/sh\nexec {PYMPSD} {" ".join(options)} "$@"\n')
    script.chmod(0o755)
    daemon.command = str(script)
    done = daemon.start()
    assert (done.returncode, done.stderr) == (0, "")
    daemon.command = PYMPSD


def one_session(daemon: DaemonProcess) -> int:
    """A server, a client with a context that leaves; return the server's PID."""
    client = daemon.client()
    try:
        client.connect()
    finally:
        client.end()
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_client_list {server}") == "", "the client's end")
    return server


# --- SIGHUP


@pytest.mark.long(but=["server.log"])
@pytest.mark.parametrize("name", ["control.log", "server.log"])
def test_sighup_reopens_logs_that_were_moved(daemon: DaemonProcess, name: str) -> None:
    log = daemon.directory / "log" / name
    moved = log.with_suffix(".1")
    log.rename(moved)
    daemon.run_command("frobnicate")
    assert not log.exists(), "until it is notified the daemon writes to the file it has"
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(log.exists, "the new file")
    one_session(daemon)
    wait_until(lambda: log.stat().st_size > 0, "lines in the new file")
    before = moved.stat().st_size
    daemon.run_command("quit")
    assert moved.stat().st_size == before
    assert log.stat().st_mode & 0o777 == 0o644


def test_sighup_keeps_files_that_are_where_they_were(daemon: DaemonProcess) -> None:
    logs = [daemon.directory / "log" / name for name in ("control.log", "server.log")]
    before = [log.stat().st_ino for log in logs]
    text = logs[0].read_bytes()
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.run_command("get_server_list")
    assert [log.stat().st_ino for log in logs] == before
    assert logs[0].read_bytes().startswith(text)


def test_sighup_without_the_directory_keeps_the_old_files(daemon: DaemonProcess) -> None:
    log = daemon.directory / "log"
    log.rename(daemon.directory / "elsewhere")
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.run_command("frobnicate")
    text = (daemon.directory / "elsewhere" / "control.log").read_text()
    assert "Cmd:frobnicate" in text
    log.mkdir()


def test_logrotates_sample_does_not_signal_whom_the_pid_file_names(daemon: DaemonProcess) -> None:
    pipe, log = daemon.directory / "pipe", daemon.directory / "log" / "control.log"
    script = SAMPLE.read_text().partition("postrotate")[2].partition("endscript")[0]
    script = script.replace("/run/nvidia-mps", str(pipe)).replace("/usr/local/bin/", f"{PYMPSD.rpartition('/')[0]}/")
    with kill_after(subprocess.Popen(["sleep", "60"])) as victim:
        (pipe / "nvidia-cuda-mps-control.pid").write_text(str(victim.pid))  # as anybody may, under the vendor's names
        log.rename(log.with_suffix(".1"))
        subprocess.run(["sh", "-ec", script], check=True, timeout=SECONDS)
        assert log.exists()
        assert victim.poll() is None
    daemon.stop()
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert "Cannot find MPS control daemon process" in done.stderr, "logrotate passes it on"


def test_another_user_has_no_logs_reopened(daemon: DaemonProcess) -> None:
    done = daemon.run(["log", "reopen"], uid=10001)
    assert (done.returncode, "'LOG REOPEN' requires daemon owner" in done.stdout) == (1, True)


@pytest.mark.parametrize(("protocol", "other"), [("2", "server.log"), ("3", "a/server.log")])
def test_a_log_that_cannot_be_reopened_is_named(make_daemon: MakeDaemon, protocol: str, other: str) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", protocol).returncode == 0
    if protocol == "3":
        assert daemon.run(["server", "create", "a"]).returncode == 0
    control, server = (daemon.directory / "log" / name for name in ("control.log", other))
    for log in (control, server):
        log.rename(log.with_suffix(".1"))
    control.mkdir()
    done = daemon.run(["log", "reopen"])
    text = f"{control} cannot be opened (Is a directory): its lines still go to the former file.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, text, "")
    assert server.exists(), "the others are opened"
    assert control.with_suffix(".1").read_text().count(text) == 1
    control.rmdir()
    assert daemon.run(["log", "reopen"]).returncode == 0
    assert control.exists()


# --- dialects


@pytest.mark.long(but=["json-option"])
@pytest.mark.parametrize("by", ["option", "option with =", "environment"])
@pytest.mark.parametrize("dialect", ["documented", "r580", "json"])
def test_the_log_has_the_chosen_dialect(make_daemon: MakeDaemon, dialect: str, by: str) -> None:
    options = {"option": ["--log-dialect", dialect], "option with =": [f"--log-dialect={dialect}"]}.get(by, [])
    daemon = make_daemon(**({} if options else {"PYMPSD_LOG_DIALECT": dialect}))
    start_as(daemon, *options)
    server = one_session(daemon)
    daemon.run_command("quit")
    control, served = (
        (daemon.directory / "log" / name).read_text().splitlines() for name in ("control.log", "server.log")
    )
    if dialect == "json":
        events = [json.loads(line) for line in (*control, *served)]
        assert all({"time", "who", "pid", "event"} <= event.keys() for event in events)
        assert {event["event"] for event in events} >= {"server_ready", "client_connected", "context_active"}
        return
    assert all(TEXT_LINE.fullmatch(line) for line in (*control, *served))
    assert any(f"NEW SERVER {server}: Ready" in line for line in control)
    documented = [line for line in served if line.partition("] ")[2].startswith("Volta MPS: status of client")]
    recorded = [line for line in served if line.partition("] ")[2].startswith("Status of client {PID:")]
    assert (bool(documented), bool(recorded)) == (dialect == "documented", dialect == "r580")


def test_the_option_wins_over_the_environment(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(PYMPSD_LOG_DIALECT="r580")
    start_as(daemon, "--log-dialect", "json")
    first = (daemon.directory / "log" / "control.log").read_text().splitlines()[0]
    assert json.loads(first)["event"] == "daemon_starting"


def test_a_dialect_that_is_none(make_daemon: MakeDaemon) -> None:
    done = make_daemon().run(["-d", "--log-dialect", "klingon"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "documented, r580, json" in done.stderr
    done = make_daemon(PYMPSD_LOG_DIALECT="klingon").run(["-d"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYMPSD_LOG_DIALECT" in done.stderr


# --- signals


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_daemon_with_busy_clients_within_a_bound(
    daemon: DaemonProcess, make_client: MakeClient, number: signal.Signals
) -> None:
    clients = [make_client().connect() for _ in range(2)]
    for client in clients:
        client.call("endless")
    (server,) = daemon.servers()
    unit = [daemon.pid, server, *children_of(server)]
    began = time.monotonic()
    os.kill(daemon.pid, number)
    wait_until(lambda: not any(map(alive, unit)), "the end of daemon, server and executor")
    assert time.monotonic() - began < 10, "supervisors wait at least so long"
    assert daemon.log()[-1] == "Exit with status 0"
    assert not (daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").exists()
    assert [client.call("sync") for client in clients] == ["CUDA_ERROR_MPS_RPC_FAILURE"] * 2


@pytest.mark.long
def test_repeated_signals_end_a_daemon_like_one(daemon: DaemonProcess, make_client: MakeClient) -> None:
    make_client().connect().call("endless")
    for _ in range(5):
        os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: not alive(daemon.pid), "the end of the daemon")
    assert daemon.log().count("Exit with status 0") == 1


@pytest.mark.long
def test_foreground_exits_0_by_a_signal_with_a_busy_client(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    foreground = subprocess.Popen(
        [PYMPSD, "-f"], env=daemon.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    with kill_after(foreground) as process:
        wait_until(lambda: daemon.run([], "ps").returncode == 0, "the daemon")
        client = daemon.client()
        try:
            client.connect().call("endless")
            process.terminate()
            printed = process.communicate(timeout=SECONDS)[0]
        finally:
            client.end(signal.SIGKILL)
    assert process.returncode == 0
    assert printed.endswith("Exit with status 0\n")


# --- what is in the pipe directory already


@pytest.mark.long(but=["-d --replace-nvidia-cuda-mps-control.pid"])
@pytest.mark.parametrize("name", ["control", "control_privileged", "log", "nvidia-cuda-mps-control.pid"])
@pytest.mark.parametrize("words", [("-d",), ("-f",), ("-d", "--replace")], ids=" ".join)
def test_somebodys_file_in_the_place_of_one_of_its_own_stays(
    make_daemon: MakeDaemon, name: str, words: tuple[str, ...]
) -> None:
    daemon = make_daemon()
    path = daemon.directory / "pipe" / name
    path.write_text("somebody's")
    done = daemon.run([*words])
    assert done.returncode == 1
    assert f"{path} is a " in done.stderr
    assert "move it away, or choose another directory" in done.stderr
    assert path.read_text() == "somebody's"
    assert os.listdir(path.parent) == [name]


def test_with_somebodys_file_no_daemon_is_replaced(daemon: DaemonProcess) -> None:
    path = daemon.directory / "pipe" / "pympsd.control"
    path.write_text("somebody's")
    assert f"{path} is a regular file, not a daemon's socket" in daemon.run(["-d", "--replace"]).stderr
    assert daemon.run_command("get_server_list") == "", "the daemon runs"
    path.unlink()


def test_a_folder_in_the_place_of_a_socket_is_explained(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    (daemon.directory / "pipe" / "control").mkdir()
    done = daemon.run(["-d"])
    assert done.returncode == 1
    assert "control is a directory, not a daemon's socket: move it away" in done.stderr
    assert not Path(daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_logs_are_not_written_through_another_users_link(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    (target := daemon.directory / "target").mkdir()
    link = daemon.directory / "logs"
    link.symlink_to(target)
    os.chown(link, 10001, 10001, follow_symlinks=False)
    daemon.settings["CUDA_MPS_LOG_DIRECTORY"] = str(link)
    done = daemon.start()
    assert f"{link}: it is a symbolic link to {target} that user 10001 made" in done.stderr
    assert os.listdir(target) == []


# --- namespaces


def elsewhere(daemon: DaemonProcess, text: str) -> subprocess.CompletedProcess[str]:
    """Run the user interface in a PID and mount namespace of its own that shares only the pipe directory."""
    seen = daemon.directory / "seen"
    seen.mkdir(exist_ok=True)
    inside = (
        f"mount --bind {daemon.directory}/pipe {seen} && mount -t tmpfs none {daemon.directory}/pipe && "
        f"mount -t tmpfs none {daemon.directory}/log && CUDA_MPS_PIPE_DIRECTORY={seen} exec {PYMPSD}"
    )
    return subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--mount", "sh", "-c", inside],
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_a_ui_in_other_namespaces_is_answered(daemon: DaemonProcess) -> None:
    done = elsewhere(daemon, "get_server_list\nget_default_active_thread_percentage\nps")
    assert (done.returncode, done.stdout, done.stderr) == (0, "100.0\nServer not found\n", "")
    assert elsewhere(daemon, "start_server -uid 0").returncode == 0
    wait_until(lambda: any(line.endswith(": Ready") for line in daemon.log()), "a server")
    assert elsewhere(daemon, "get_server_list").stdout == f"{daemon.servers()[0]}\n"


def test_a_quit_from_other_namespaces(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    done = elsewhere(daemon, "quit")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wait_until(lambda: not alive(daemon.pid), "the end of the daemon")


def test_as_pid_1_the_daemon_reaps_processes_whose_parents_have_ended(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    orphans = f"until test -S {directory}/pipe/control; do sleep 0.01; done; (sleep 0 &)"
    words = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        f"({orphans}) & exec {PYMPSD} -f",
    ]
    quiet = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
    with kill_after(subprocess.Popen(words, env=daemon.environment, **quiet)) as process:
        wait_until(lambda: daemon.run([], "ps").returncode == 0, "the daemon")
        (pid_1,) = children_of(process.pid)
        wait_until(lambda: len(children_of(pid_1)) == 1, "the end of all children but the keeper")
        daemon.run_command("quit")
        assert process.wait(SECONDS) == 0


@pytest.mark.long
def test_foreground_with_stdin_at_its_end_stays(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    reader, writer = os.pipe()
    os.close(writer)
    words, null = [PYMPSD, "-f"], subprocess.DEVNULL
    with kill_after(subprocess.Popen(words, env=daemon.environment, stdin=reader, stdout=null)) as process:
        os.close(reader)
        wait_until(lambda: daemon.run([], "ps").returncode == 0, "the daemon")
        assert process.poll() is None
        daemon.run_command("quit")
        assert process.wait(SECONDS) == 0
