"""Starting the daemon: its files, its manners, and everything it cannot start with (recorded: start-up)."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, DaemonProcess, alive, wait_until

EXECUTED = True
"""Its daemons are started as users start them (see `prepared`)."""
FILES = {
    "control": ("s", 0o666),
    "control_lock": ("-", 0o666),
    "control_privileged": ("s", 0o755),
    "log": ("p", 0o777),
    "nvidia-cuda-mps-control.pid": ("-", 0o644),
    "pympsd.keeper": ("s", 0o600),
    "pympsd.nvml": ("-", 0o644),
    "pympsd.state": ("-", 0o600),
}


def not_found(daemon: DaemonProcess, why: str) -> str:
    """What the tool reports where it reaches no daemon: the recorded line, and one that reports why."""
    control = f"{daemon.environment['CUDA_MPS_PIPE_DIRECTORY']}/control"
    remedy = "check CUDA_MPS_PIPE_DIRECTORY, or start the daemon with -d"
    return f"Cannot find MPS control daemon process\n{control}: {why}; {remedy}\n"


def listing(path: Path) -> dict[str, tuple[str, int]]:
    kinds = {stat.S_IFSOCK: "s", stat.S_IFREG: "-", stat.S_IFIFO: "p"}
    modes = {entry.name: entry.lstat().st_mode for entry in path.iterdir()}
    return {name: (kinds[stat.S_IFMT(mode)], stat.S_IMODE(mode)) for name, mode in modes.items()}


def test_c1_ready_when_it_returns(daemon: DaemonProcess) -> None:
    assert listing(daemon.directory / "pipe") == FILES
    assert listing(daemon.directory / "log") == {"control.log": ("-", 0o644), "server.log": ("-", 0o644)}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(daemon.directory / "pipe" / "control"))


def test_c8_the_pid_file_holds_the_pid_without_newline(daemon: DaemonProcess) -> None:
    text = (daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text()
    assert text == str(daemon.pid)
    assert alive(daemon.pid)


def test_log_of_start_and_quit(daemon: DaemonProcess) -> None:
    pipe = daemon.directory / "pipe"
    daemon.run_command("quit\n")
    backend, shares = daemon.log()[3:5]
    assert backend.startswith("The backend is ")
    assert shares.startswith("Share of each user: connections ")
    assert daemon.log() == [
        f"Starting control daemon using socket {pipe}/control",
        f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}",
        "CUDA MPS Control binary version: 13010",
        backend,
        shares,
        "Accepting connection...",
        "NEW UI",
        "Cmd:quit",
        "Exit with status 0",
    ]
    assert listing(pipe).keys() == {"control", "control_lock", "control_privileged"}


def test_c10_nothing_is_left_when_quit_returns(daemon: DaemonProcess) -> None:
    daemon.run_command("start_server -uid 0\n")
    wait_until(lambda: "ACTIVE" in daemon.run_command(f"get_server_status {daemon.servers()[0]}"))
    (server,) = daemon.servers()
    daemon.run_command("quit")
    assert not alive(daemon.pid)
    assert not alive(server)


def test_a_command_without_a_daemon_is_refused(make_daemon) -> None:  # type: ignore[no-untyped-def]
    daemon = make_daemon()
    done = daemon.run([], "ps\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", not_found(daemon, "No such file or directory"))


def test_a_second_daemon_is_refused(daemon: DaemonProcess, make_daemon) -> None:  # type: ignore[no-untyped-def]
    for option in ("-d", "-f"):
        done = make_daemon().run([option])
        assert (done.returncode, done.stdout) == (1, "An instance of this daemon is already running\n")
        assert f"control_lock is open in process {daemon.pid} of user {os.geteuid()}\n" in done.stderr
    assert daemon.run_command("get_server_list") == ""


@pytest.mark.long
def test_of_eight_racing_daemons_one_wins(make_daemon) -> None:  # type: ignore[no-untyped-def]
    daemon = make_daemon()
    racers = [
        subprocess.Popen([PYMPSD, "-d"], env=daemon.environment, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    results = sorted((racer.communicate(timeout=SECONDS)[0], racer.returncode) for racer in racers)
    assert results == [("", 0)] + [("An instance of this daemon is already running\n", 1)] * 7
    daemon.pid = int((daemon.directory / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
    daemon.run_command("quit")
    os.waitpid(daemon.pid, 0)


def test_c13_stale_files_of_a_killed_daemon_neither_block_nor_look_alive(daemon: DaemonProcess, make_daemon) -> None:  # type: ignore[no-untyped-def]
    keeper = daemon.keeper()
    os.kill(daemon.pid, signal.SIGSTOP)  # it starts no other keeper
    os.kill(keeper, signal.SIGKILL)
    daemon.kill()
    wait_until(lambda: not alive(keeper))
    assert listing(daemon.directory / "pipe") == FILES
    done = daemon.run([], "get_server_list\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", not_found(daemon, "Connection refused"))
    again = make_daemon()
    assert again.start().returncode == 0
    assert again.run_command("get_server_list") == ""


def test_a_command_after_the_daemon_was_killed_finds_none(daemon: DaemonProcess) -> None:
    daemon.kill()
    done = daemon.run([], "get_default_active_thread_percentage\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Cannot find MPS control daemon process\n")
    assert daemon.start().returncode == 0
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"


def test_the_pipe_directory_is_made_when_its_parent_is_there(directory: Path) -> None:
    daemon = DaemonProcess(directory, {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "new")})
    assert daemon.run(["-d"]).returncode == 0
    pid = int((directory / "new" / "nvidia-cuda-mps-control.pid").read_text())
    assert daemon.run_command("quit") == ""
    os.waitpid(pid, 0)


def test_a_directory_below_the_working_one_is_reported_in_full(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory)
    daemon = DaemonProcess(directory, {"CUDA_MPS_PIPE_DIRECTORY": "pipe/"})
    done = daemon.start("-d", "-p", "3")
    try:
        hint = f"To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY={directory}/pipe\n"
        assert (done.returncode, done.stdout) == (0, hint)
    finally:
        daemon.stop()


def test_what_the_daemon_cannot_make_is_reported_once_with_what_to_do(directory: Path) -> None:
    folder = directory / "pipe"
    (folder / "control_lock").touch()
    (folder / "control_lock").chmod(0o666)
    (directory / "log").chmod(0o777)
    done = DaemonProcess(directory, {}, uid=65534).run(["-d"])
    remedy = "Permission denied; it cannot be written by this user: choose another directory"
    assert (done.returncode, done.stderr) == (1, f"{folder}/control: {remedy}\n")


@pytest.mark.parametrize("path", ["/nonexistent/x/y", "/etc/hostname"])
def test_an_unusable_pipe_directory(directory: Path, path: str) -> None:
    done = DaemonProcess(directory, {"CUDA_MPS_PIPE_DIRECTORY": path}).run(["-d"])
    assert (done.returncode, done.stdout) == (1, f"Cannot access CUDA_MPS_PIPE_DIRECTORY={path}\n")
    assert done.stderr.startswith(f"{path}: ")


def test_a_pipe_directory_too_long_for_a_socket_is_explained(directory: Path) -> None:
    path = str(directory / ("x" * 100))
    done = DaemonProcess(directory, {"CUDA_MPS_PIPE_DIRECTORY": path}).run(["-d"])
    assert done.returncode == 1
    assert "too long for a socket" in done.stderr
    tool = DaemonProcess(directory, {"CUDA_MPS_PIPE_DIRECTORY": path})
    done = tool.run([], "ps\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", not_found(tool, "AF_UNIX path too long"))


def test_an_unusable_log_directory_costs_only_the_logs(directory: Path) -> None:
    daemon = DaemonProcess(directory, {"CUDA_MPS_LOG_DIRECTORY": "/nonexistent/x/y"})
    done = daemon.start()
    try:
        warning = "Warning: Failed writing log files to directory [/nonexistent/x/y]. No logs will be available.\n"
        assert (done.returncode, done.stdout) == (0, warning)
        assert done.stderr == "/nonexistent/x/y: No such file or directory; choose one in CUDA_MPS_LOG_DIRECTORY\n"
        assert daemon.run_command("get_server_list") == ""
    finally:
        daemon.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a directory of another user")
def test_root_is_warned_of_directories_of_others(directory: Path) -> None:
    os.chown(directory / "pipe", 12345, 12345)
    daemon = DaemonProcess(directory, {})
    done = daemon.start()
    try:
        text = f"CUDA_MPS_PIPE_DIRECTORY={directory}/pipe belongs to user 12345, who can replace what the daemon has"
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{text} there\n")
    finally:
        daemon.stop()


def test_c12_pipe_and_log_directory_may_be_one(directory: Path) -> None:
    daemon = DaemonProcess(directory, {"CUDA_MPS_LOG_DIRECTORY": str(directory / "pipe")})
    assert daemon.start().returncode == 0
    try:
        assert daemon.run_command("get_server_list") == ""
        assert (directory / "pipe" / "control.log").exists()
    finally:
        daemon.stop()


def test_c11_the_environment_may_hold_two_variables_only(daemon: DaemonProcess) -> None:
    assert set(daemon.environment) <= {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "PYMPSD_KERNEL_CACHE"}
    daemon.run_command("start_server -uid 0\n")
    wait_until(lambda: any(line.endswith(": Ready") for line in daemon.log()), "a server")


def test_c7_c9_environ_still_shows_the_pipe_directory(daemon: DaemonProcess) -> None:
    environ = Path(f"/proc/{daemon.pid}/environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={daemon.directory}/pipe".encode() in environ


@pytest.mark.long(but=["15"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_cleanly(daemon: DaemonProcess, number: signal.Signals) -> None:
    daemon.run_command("start_server -uid 0\n")
    os.kill(daemon.pid, number)
    wait_until(lambda: not alive(daemon.pid), "the end of the daemon")
    assert listing(daemon.directory / "pipe").keys() == {"control", "control_lock", "control_privileged"}
    assert daemon.log()[-1] == "Exit with status 0"


def test_foreground_logs_to_stdout_and_stays(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    process = subprocess.Popen(
        [PYMPSD, "-f"], env=daemon.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = [process.stdout.readline().partition("] ")[2].rstrip("\n") for _ in range(3)]
    assert first[0] == f"Starting control daemon using socket {directory}/pipe/control"
    assert daemon.run_command("get_server_list") == ""
    process.terminate()
    rest = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0
    assert rest.rstrip().endswith("Exit with status 0")
    assert (directory / "log" / "server.log").exists()


@pytest.mark.parametrize(
    ("settings", "status", "word"),
    [
        ({"CUDA_VISIBLE_DEVICES": "9"}, 100, "leaves no device visible"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, 101, "twice"),
        ({"PYMPSD_BACKEND": "cuda"}, 1, "set PYMPSD_BACKEND=emulated"),
        ({"PYMPSD_BACKEND": "opencl"}, 1, "auto, vendor, cuda, emulated"),
        ({"PYMPSD_EMULATED_DEVICES": "2xB900"}, 1, "H200, H100, A100, V100, P100"),
    ],
)
def test_what_it_cannot_start_with_is_explained(
    directory: Path, settings: dict[str, str], status: int, word: str
) -> None:
    done = DaemonProcess(directory, settings).run(["-d"])
    assert (done.returncode, done.stdout) == (status, "")
    assert word in done.stderr


@pytest.mark.long
def test_what_no_executor_could_start_with_replaces_no_daemon(
    daemon: DaemonProcess, make_daemon: Callable[..., DaemonProcess]
) -> None:
    for words in (["-d"], ["-d", "--replace"]):
        done = make_daemon(PYMPSD_WORKER="x").run(words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("PYMPSD_WORKER must be ")
    assert daemon.run_command("get_server_list") == ""
    assert alive(daemon.pid)


def test_a_number_of_queues_hinders_no_emulated_machine(make_daemon: Callable[..., DaemonProcess]) -> None:
    done = make_daemon(PYMPSD_EMULATED_DEVICES="H200", PYMPSD_DEVICE_CONNECTIONS="64").start()
    complaint = "PYMPSD_DEVICE_CONNECTIONS must be a number from 1 to 32, not '64'\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", complaint)


def test_listing_devices_reads_no_setting_of_executors(directory: Path) -> None:
    settings = {"PYMPSD_EMULATED_DEVICES": "H200", "PYMPSD_WORKER": "x", "PYMPSD_DEVICE_CONNECTIONS": "64"}
    done = subprocess.run(
        [sys.executable, "-m", "pympsd.devices"], env=DaemonProcess(directory, settings).environment,
        capture_output=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert [device["name"] for device in json.loads(done.stdout)["devices"]] == ["NVIDIA H200"]


def test_a_command_after_the_start_options_is_ignored_as_recorded_and_reported(
    make_daemon: Callable[..., DaemonProcess],
) -> None:
    daemon = make_daemon()
    done = daemon.start("-d", "set_default_active_thread_percentage", "20")
    overlooked = "set_default_active_thread_percentage 20: ignored: -d and -f take no command; "
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{overlooked}run it separately\n")
    assert daemon.run_command("get_default_active_thread_percentage") == "100.0\n"


# --- nowhere to print to


@pytest.mark.parametrize(
    ("words", "message"), [([], "get_default_client_priority\n"), (["get_default_client_priority"], ""), (["-v"], "")]
)
def test_a_full_standard_output_is_not_reported_as_a_missing_daemon(
    daemon: DaemonProcess, words: list[str], message: str
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PYMPSD, *words], env=daemon.environment, input=message.encode(), stdout=full, stderr=subprocess.PIPE,
            timeout=SECONDS,
        )  # fmt: skip
    output = b"standard output: No space left on device: not all could be printed\n"
    assert (done.returncode, done.stderr) == (74, output)


def test_a_full_standard_error_costs_only_the_text_for_it(daemon: DaemonProcess) -> None:
    def status_of(full: int, text: bytes) -> int:
        return subprocess.run([PYMPSD], env=daemon.environment, input=text, stderr=full, timeout=SECONDS).returncode

    with open("/dev/full", "wb") as full:
        assert status_of(full.fileno(), b"set_default_active_thread_percentage x\n") == 74
        daemon.run_command("quit")
        assert status_of(full.fileno(), b"ps\n") == 1


def test_a_reader_that_has_left_does_not_end_the_daemon(daemon: DaemonProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:
        done = subprocess.run(
            [PYMPSD, "get_default_client_priority"], env=daemon.environment, stdin=subprocess.DEVNULL, stdout=broken,
            stderr=subprocess.PIPE, timeout=SECONDS,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (74, b"standard output: Broken pipe: not all could be printed\n")


def test_version_and_help(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    assert daemon.run(["-v"]).stdout.startswith("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13010\n")
    assert daemon.run(["-d", "-v"]).stdout == daemon.run(["--version"]).stdout
    assert daemon.run(["-h"]).stdout.startswith("CUDA MPS Control for Linux/Unix/QNX.\n")
    unknown = daemon.run(["-x"])
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert not (directory / "pipe" / "control").exists()


def test_python_dash_m_works_too(daemon: DaemonProcess) -> None:
    python = Path(PYMPSD).with_name("python3")
    done = subprocess.run(
        [python, "-m", "pympsd"], env=daemon.environment, input=b"foo", capture_output=True, timeout=SECONDS, cwd="/"
    )
    assert (done.returncode, done.stdout) == (0, b'Unknown command "foo"\n')


@pytest.mark.long
def test_a_foreground_daemon_whose_output_is_not_read_continues(directory: Path) -> None:
    daemon = DaemonProcess(directory)
    words, null = [PYMPSD, "-f"], subprocess.DEVNULL
    process = subprocess.Popen(words, env=daemon.environment, stdin=null, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    # 64 KiB of log fill the pipe: 8,000 commands write some 400 KiB.
    assert daemon.run_command("foo\n" * 8000) == 'Unknown command "foo"\n' * 8000
    process.terminate()
    process.stdout.read()
    process.stdout.close()
    assert process.wait(SECONDS) == 0
