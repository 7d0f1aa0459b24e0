"""What real callers rely on: every row C1 to C19 of the consumers' table has a test that names it.

Elsewhere: C1, C8, C10, C11, C12 (pipe and log directory in one), C13 and C7/C9 (environ) in test_start_up.py; C9
(names, command lines) in test_operators.py. All other rows, and the rest of those, are here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, ClientProcess, DaemonProcess, alive, children_of, kill_after, wait_until
from supervisor import Supervisor

from pympsd.devices.machine import describe

MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[..., ClientProcess]
OTHER = 12345
"""A uid without an entry in the user database."""


def ready(daemon: DaemonProcess, count: int = 1) -> int:
    """Wait until that many servers were ready; return the PID of the one there is."""
    wait_until(lambda: sum(line.endswith(": Ready") for line in daemon.log()) == count, "a ready server")
    (server,) = daemon.servers()
    return server


# --- C1 to C3: starting it, and giving it commands


def test_c1_the_next_commands_find_it_immediately(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    script = f"set -e; {PYMPSD} -d; echo get_default_active_thread_percentage | {PYMPSD}; wc -l < $LOG; cat $PID"
    started = time.monotonic()
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={
            **daemon.environment,
            "LOG": str(daemon.directory / "log" / "control.log"),
            "PID": str(daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid"),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert time.monotonic() - started < 10, "sglang-omni waits 10 s"
    assert (done.returncode, done.stderr) == (0, "")
    percentage, lines, pid = done.stdout.split()
    assert percentage == "100.0"
    assert int(lines) >= 3
    assert daemon.run_command("quit") == ""
    os.waitpid(int(pid), 0)


@pytest.mark.long
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_c2_descriptors_that_the_caller_closed_are_not_taken_for_others(make_daemon: MakeDaemon, closed: str) -> None:
    daemon = make_daemon()
    script = daemon.directory / "start"
    script.write_text(f'#!/bin/sh\nexec {PYMPSD} "$@" {closed}\n')
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    second = DaemonProcess(daemon.directory).run(["-d"])
    assert (second.returncode, second.stdout) == (1, "An instance of this daemon is already running\n")
    daemon.command = PYMPSD
    daemon.run_command("start_server -uid 0")
    ready(daemon)


def test_c2_captured_output_ends_with_the_parent(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    done = daemon.start()  # subprocess.run with pipes: it would hang here
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    null = os.stat(os.devnull).st_rdev
    shown = [os.stat(f"/proc/{daemon.pid}/fd/{fd}").st_rdev for fd in (0, 1, 2)]
    assert shown == [null] * 3
    daemon.run_command("start_server -uid 0")
    server = ready(daemon)
    assert [os.stat(f"/proc/{server}/fd/{fd}").st_rdev for fd in (0, 1)] == [null] * 2


@pytest.mark.long(but=["  get_default_active_thread_percentage\\r\\n"])
@pytest.mark.parametrize(
    "text",
    [
        "get_default_active_thread_percentage",
        "get_default_active_thread_percentage\n",
        "  get_default_active_thread_percentage\r\n",
        "\tget_default_active_thread_percentage \r",
    ],
)
def test_c3_commands_on_stdin_however_they_end(daemon: DaemonProcess, text: str) -> None:
    assert daemon.run_command(text) == "100.0\n"


def test_c3_a_caller_that_writes_and_closes_later(daemon: DaemonProcess) -> None:
    """As with Go's StdinPipe, the command has no newline, and the end of file comes later."""
    with subprocess.Popen(
        [PYMPSD], env=daemon.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write("get_default_")
        process.stdin.flush()
        process.stdin.write("client_priority")
        assert process.communicate(timeout=SECONDS)[0] == "0\n"
    assert process.returncode == 0


def test_c3_with_stdin_closed_there_is_no_request(daemon: DaemonProcess) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {PYMPSD} <&-"],
        env=daemon.environment,
        capture_output=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# --- C4 to C7: what the answers are for


@pytest.mark.long(but=["get_server_status 1"])
@pytest.mark.parametrize("text", ["get_server_list", "frobnicate", "get_server_status 1", "", "set_default_x 7\n\n"])
def test_c4_exit_status_0_while_it_is_reachable(daemon: DaemonProcess, text: str) -> None:
    assert daemon.run([], text).returncode == 0


def test_c4_exit_status_1_when_it_is_not(daemon: DaemonProcess) -> None:
    daemon.run_command("quit")
    done = daemon.run([], "get_server_list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Cannot find MPS control daemon process\n")


LIMIT = ("--timeout", "3")
"""The tool's own bound: exit status 2 when the daemon says nothing for this long (some callers kill it after 3 s)."""


def ask_in_time(daemon: DaemonProcess, text: str) -> str:
    done = daemon.run([*LIMIT], text)
    if done.returncode == 2:
        # The whole machine may have stood still for so long, once.
        done = daemon.run([*LIMIT], text)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_c5_answers_while_a_server_initialises(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    requests = 0
    while not any(line.endswith(": Ready") for line in daemon.log()):
        assert ask_in_time(daemon, "get_server_list")
        requests += 1
        assert requests < 1000
    assert ask_in_time(daemon, "get_server_list")


@pytest.mark.long
def test_c5_answers_while_a_quit_is_pending(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client().connect()
    client.call("endless")
    daemon.wait_for_server_messages()
    command = subprocess.Popen([PYMPSD], env=daemon.environment, stdin=subprocess.PIPE, text=True)
    with kill_after(command) as quitting:
        assert quitting.stdin is not None
        quitting.stdin.write("quit\n")
        quitting.stdin.close()
        wait_until(lambda: any("will not shutdown" in line for line in daemon.log()), "the quit")
        for _ in range(10):
            output = ask_in_time(daemon, "get_server_list\nps\nget_default_client_priority")
            assert len(output.splitlines()) == 4
        assert quitting.poll() is None
        client.end(signal.SIGKILL)
        assert quitting.wait(SECONDS) == 0


@pytest.mark.long
def test_c5_answers_while_a_server_is_stopped(daemon: DaemonProcess, make_client: MakeClient) -> None:
    make_client().connect()
    (server,) = daemon.servers()
    daemon.wait_for_server_messages()
    os.kill(server, signal.SIGSTOP)
    try:
        assert ask_in_time(daemon, f"ps\nget_client_list {server}\nget_device_client_list").count("\n") == 5
    finally:
        os.kill(server, signal.SIGCONT)


def parse_pid_list(printed: str) -> list[int]:
    """The strict parser of sglang-omni: any word that is not a PID fails the whole workload."""
    tokens = printed.split()
    if not all(token.isdigit() and int(token) > 0 for token in tokens):
        raise ValueError(f"not PIDs only: {printed!r}")
    return [int(token) for token in tokens]


def test_c6_lists_are_pids_only(daemon: DaemonProcess, make_client: MakeClient) -> None:
    assert daemon.run_command("get_server_list") == ""
    clients = [make_client().connect() for _ in range(2)]
    (server,) = parse_pid_list(daemon.run_command("get_server_list"))
    assert parse_pid_list(daemon.run_command(f"get_client_list {server}")) == [client.pid for client in clients]


def test_c7_pids_are_the_callers(daemon: DaemonProcess, make_client: MakeClient) -> None:
    client = make_client(CUDA_MPS_CLIENT_PRIORITY="1").connect()
    (server,) = daemon.servers()
    (listed,) = parse_pid_list(daemon.run_command(f"get_client_list {server}"))
    assert listed == client.pid
    assert b"CUDA_MPS_CLIENT_PRIORITY=1" in Path(f"/proc/{listed}/environ").read_bytes().split(b"\0")
    pipe = f"CUDA_MPS_PIPE_DIRECTORY={daemon.directory}/pipe".encode()
    assert pipe in Path(f"/proc/{server}/environ").read_bytes().split(b"\0")


def test_c8_the_pid_file_is_a_plain_file_of_the_daemons_user_and_goes_with_quit(daemon: DaemonProcess) -> None:
    file = daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid"
    status = file.lstat()
    assert file.is_file()
    assert not file.is_symlink()
    assert (status.st_nlink, status.st_uid) == (1, 0)
    assert file.read_text().isdecimal()
    daemon.run_command("quit")
    assert not file.exists()


def test_c10_ps_shows_nothing_right_after_quit(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0")
    gone = {daemon.pid, ready(daemon)}
    daemon.run_command("quit")
    assert not {pid for pid, name in _list_shown().items() if pid in gone and name != "[exited] <defunct>"}


def _list_shown() -> dict[int, str]:
    """Return how ps shows each process."""
    output = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return {int(pid): name for pid, name in (line.split(maxsplit=1) for line in output.splitlines())}


def test_c10_a_quit_does_not_wait_for_a_pid_1_that_reaps_late(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    assert daemon.run(["-d"]).returncode == 0  # nobody reaps it
    pid = int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    began = time.monotonic()
    daemon.run_command("quit")
    assert time.monotonic() - began < SECONDS / 6
    assert _list_shown()[pid] == "[exited] <defunct>"
    os.waitpid(pid, 0)


# --- C12: where the pipe directory may be


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_c12_a_pipe_directory_of_any_mode(make_daemon: MakeDaemon, mode: int) -> None:
    daemon = make_daemon()
    pipe = daemon.directory / "pipe"
    pipe.chmod(mode)
    assert daemon.start().returncode == 0
    assert daemon.run_command("get_server_list") == ""
    assert pipe.stat().st_mode & 0o7777 == mode, "the directory is its owner's"
    if mode == 0o700:
        # Root can; another user cannot reach it, and gets that as the reason.
        refused = daemon.run([], "get_server_list", uid=OTHER)
        assert refused.returncode == 1
        assert refused.stderr.startswith(
            f"Cannot find MPS control daemon process\n{pipe}/control: Permission denied; "
        )
    else:
        assert daemon.run_command("get_server_list", uid=OTHER) == ""


@pytest.mark.long
def test_c12_a_pipe_directory_that_is_a_bind_mount(make_daemon: MakeDaemon) -> None:
    """The daemon sees it under another path than its callers do, in a mount namespace of its own."""
    daemon = make_daemon()
    mounted = daemon.directory / "mounted"
    mounted.mkdir()
    script = daemon.directory / "start"
    inside = f'mount --bind {daemon.directory}/pipe {mounted} && exec {PYMPSD} "$@"'
    script.write_text(f"#!/bin/sh\nCUDA_MPS_PIPE_DIRECTORY={mounted} exec unshare -m sh -c '{inside}' sh \"$@\"\n")
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    assert list(mounted.iterdir()) == []
    assert daemon.log()[0] == f"Starting control daemon using socket {mounted}/control"
    assert daemon.run_command("get_server_list") == ""
    client = daemon.client()
    try:
        assert client.connect().call("add") == "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
    finally:
        client.end()


def test_c12_a_pipe_directory_on_dev_shm(make_daemon: MakeDaemon) -> None:
    # Tests next to this one look there for what has the product's name.
    path = Path(f"/dev/shm/test-pipe-{os.getpid()}")
    path.mkdir(mode=0o755)
    try:
        daemon = make_daemon()
        (daemon.directory / "pipe").rmdir()
        (daemon.directory / "pipe").symlink_to(path)
        daemon.settings["CUDA_MPS_PIPE_DIRECTORY"] = str(path)
        assert daemon.start().returncode == 0
        assert daemon.run_command("get_server_list") == ""
        daemon.stop()
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def test_c13_stale_files_of_another_time_look_dead_and_do_not_block(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    pipe = daemon.directory / "pipe"
    for name in ("control", "control_privileged"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(pipe / name))
    (pipe / "control_lock").touch()
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))  # alive, but no daemon
    os.mkfifo(pipe / "log")
    assert daemon.run([], "get_server_list").returncode == 1
    assert daemon.start().returncode == 0
    assert int((pipe / "nvidia-cuda-mps-control.pid").read_text()) == daemon.pid
    assert daemon.run_command("get_server_list") == ""


# --- C14, C15


def test_c14_tail_follows_the_descriptor(daemon: DaemonProcess) -> None:
    log = daemon.directory / "log" / "control.log"
    inode = log.stat().st_ino
    with kill_after(subprocess.Popen(["tail", "-n", "+1", "-f", log], stdout=subprocess.PIPE, text=True)) as tail:
        assert tail.stdout is not None
        assert "Starting control daemon" in tail.stdout.readline()
        daemon.run_command("frobnicate")
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.run_command("get_server_list")
        daemon.run_command("quit")
        seen = []
        while not seen or not seen[-1].endswith("Exit with status 0\n"):
            seen.append(tail.stdout.readline())
        tail.terminate()
    assert any(line.endswith("Cmd:get_server_list\n") for line in seen)
    assert log.stat().st_ino == inode
    again = DaemonProcess(daemon.directory)
    before = log.read_bytes()
    assert again.start().returncode == 0
    again.stop()
    assert log.stat().st_ino == inode
    assert log.read_bytes().startswith(before), "appended to"


def test_c15_defaults_before_any_server(daemon: DaemonProcess) -> None:
    uuid = describe("H200")[0].uuid
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"
    assert daemon.run_command("set_default_active_thread_percentage 25") == "25.0\n"
    for device in ("0", uuid):
        done = daemon.run([], f"set_default_device_pinned_mem_limit {device} 1025M")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert daemon.run_command("get_default_device_pinned_mem_limit 0") == "1025M\n"
        daemon.run_command("set_default_device_pinned_mem_limit 0 2G")
    assert daemon.run_command("get_default_active_thread_percentage") == "25.0\n"
    assert daemon.servers() == []


# --- C16, C17: users, and a supervisor


@pytest.fixture
def make_supervisor(directory: Path) -> Iterator[Callable[..., Supervisor]]:
    """Make supervisors whose unit is gone after the test."""
    supervisors: list[Supervisor] = []

    def make(*arguments: str, stdin_closed: bool = False) -> Supervisor:
        environment = DaemonProcess(directory).environment
        supervisors.append(Supervisor(environment, list(arguments), directory / "journal", stdin_closed))
        return supervisors[-1]

    yield make
    for supervisor in supervisors:
        supervisor.clean_up()


def lines_of(supervisor: Supervisor) -> list[str]:
    return [line.partition("] ")[2] for line in supervisor.journal.read_text().splitlines()]


def reachable(daemon: DaemonProcess) -> bool:
    return daemon.run([], "get_server_list").returncode == 0


def test_c16_start_server_on_stdin_for_a_user(daemon: DaemonProcess) -> None:
    assert daemon.run_command(f"start_server -uid {OTHER}") == ""
    assert os.stat(f"/proc/{ready(daemon)}").st_uid == OTHER


ORDERS = [("-d", "-M"), ("-M", "-d"), ("-d", "-multiuser-server"), ("--multiuser-server", "-d")]


@pytest.mark.long(but=["--multiuser-server -d"])
@pytest.mark.parametrize("arguments", ORDERS, ids=" ".join)
def test_c16_multiuser_on_the_command_line_in_either_order(
    make_daemon: MakeDaemon, arguments: tuple[str, str]
) -> None:
    daemon = make_daemon()
    script = daemon.directory / "start"
    script.write_text(f"#!/bin/sh\nexec {PYMPSD} {' '.join(arguments)}\n")
    script.chmod(0o755)
    daemon.command = str(script)
    assert daemon.start().returncode == 0
    daemon.command = PYMPSD
    daemon.run_command(f"start_server -uid {OTHER}")
    server = ready(daemon)
    assert os.stat(f"/proc/{server}").st_uid == 0, "one server, root's"


@pytest.mark.long(but=["-M -f"])
@pytest.mark.parametrize("arguments", [("-f", "-multiuser-server"), ("-M", "-f")], ids=" ".join)
def test_c16_c17_the_unit_of_the_ecs_image(
    directory: Path, make_supervisor: Callable[..., Supervisor], arguments: tuple[str, str]
) -> None:
    supervisor = make_supervisor(*arguments)
    supervisor.start()
    daemon = DaemonProcess(directory)
    wait_until(lambda: reachable(daemon), "the daemon")
    daemon.run_command(f"start_server -uid {OTHER}")
    wait_until(lambda: any(line.endswith(": Ready") for line in lines_of(supervisor)), "the server")
    (server,) = daemon.servers()
    daemon.pid = supervisor.pid
    assert sorted(children_of(supervisor.pid)) == sorted([server, daemon.keeper()])
    assert os.stat(f"/proc/{server}").st_uid == 0
    assert supervisor.stop(whole_group=False) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize("stdin_closed", [False, True], ids=["/dev/null", "closed"])
@pytest.mark.parametrize("whole_group", [False, True], ids=["KillMode=mixed", "KillMode=control-group"])
def test_c17_foreground_stays_restarts_and_takes_the_unit_along(
    directory: Path, make_supervisor: Callable[..., Supervisor], stdin_closed: bool, whole_group: bool
) -> None:
    supervisor = make_supervisor("-f", stdin_closed=stdin_closed)
    first = supervisor.start()
    daemon = DaemonProcess(directory)
    wait_until(lambda: reachable(daemon), "the daemon")
    assert supervisor.process is not None
    assert supervisor.process.poll() is None, "an end of file on stdin is nothing"
    # Ended by hand: the unit is started again, on the same pipe directory.
    daemon.run_command("quit")
    assert supervisor.restart_when_it_ends() == 0
    assert supervisor.pid != first
    wait_until(lambda: reachable(daemon), "the second daemon")
    # Killed: the files stay, and the third starts all the same.
    os.kill(supervisor.pid, signal.SIGKILL)
    assert supervisor.restart_when_it_ends() == -signal.SIGKILL
    wait_until(lambda: reachable(daemon), "the third daemon")
    client = daemon.client()
    try:
        client.connect()
        client.call("endless")
        wait_until(lambda: len(supervisor.unit()) == 3, "daemon, server, executor, and no compiler any more")
        began = time.monotonic()
        status, children = supervisor.stop(whole_group=whole_group)
        assert (status, children) == (0, [])
        assert time.monotonic() - began < 10, "a supervisor kills after a while"
    finally:
        client.end(signal.SIGKILL)
    assert lines_of(supervisor)[-1] == "Exit with status 0"
    assert (directory / "log" / "server.log").exists()


# --- C18, C19

UUIDS = [device.uuid for device in describe("4xH200")]


@pytest.mark.long(but=["3,0-chosen1", "GPU-41a80500-chosen5"])
@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ("2", [2]),
        ("3,0", [3, 0]),
        (UUIDS[1], [1]),
        (f"{UUIDS[2]},{UUIDS[0]}", [2, 0]),
        (f"3,{UUIDS[1]}", [3, 1]),
        (UUIDS[3][:12], [3]),
        ("1,nonsense,0", [1]),
    ],
)
def test_c18_visible_devices(make_daemon: MakeDaemon, visible: str, chosen: list[int]) -> None:
    daemon = make_daemon(CUDA_VISIBLE_DEVICES=visible, PYMPSD_EMULATED_DEVICES="4xH200")
    assert daemon.start().returncode == 0
    _, _, *rows = daemon.run_command("device_query --csv").splitlines()
    assert [row.split(",")[:3:2] for row in rows] == [[str(n), UUIDS[index]] for n, index in enumerate(chosen)]


def test_c18_a_device_that_is_none_is_explained(make_daemon: MakeDaemon) -> None:
    done = make_daemon(CUDA_VISIBLE_DEVICES="MIG-7685caad-23a2-5403-a46b-a1dfeabe3819").run(["-d"])
    assert (done.returncode, done.stdout) == (100, "")
    assert "MIG-7685caad" in done.stderr


@pytest.mark.long(but=["words0-0-100.0\\n", "words5-1-100.0\\n"])
@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        (["get_default_active_thread_percentage"], 0, "100.0\n"),
        (["get_server_list"], 0, ""),
        (["set_default_active_thread_percentage", "50"], 0, "50.0\n"),
        (["frobnicate"], 1, 'Unknown command "frobnicate"\n'),
        (["get_server_status", "77"], 1, "Server 77 not found\n"),
        (["set_default_active_thread_percentage", "-5"], 1, "100.0\n"),
        (["start_server"], 1, "A user id (UID) is required to start a new server\n"),
    ],
)
def test_c19_a_command_as_arguments_is_done(
    daemon: DaemonProcess, words: list[str], status: int, printed: str
) -> None:
    done = daemon.run(words, "set_default_active_thread_percentage 1\n")
    assert (done.returncode, done.stdout) == (status, printed)
    assert daemon.run_command("get_default_active_thread_percentage") != "1.0\n", "standard input is not read then"


@pytest.mark.parametrize("words", [["start_server", "-uid", "0"], ["start_server", "-", "uid", "0"]])
def test_c19_start_server_and_quit_as_arguments(daemon: DaemonProcess, words: list[str]) -> None:
    assert daemon.run(words).returncode == 0
    server = ready(daemon)
    assert daemon.run(["quit", "-t", "1"]).returncode == 0
    assert not alive(daemon.pid)
    assert not alive(server)


def test_c19_without_a_daemon_arguments_fail_too(make_daemon: MakeDaemon) -> None:
    done = make_daemon().run(["get_server_list"])
    assert done.returncode == 1
    assert done.stderr.startswith("Cannot find MPS control daemon process\n")
