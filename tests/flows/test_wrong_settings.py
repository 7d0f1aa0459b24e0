"""Settings that are wrong: reported where they are read, with what is allowed; what they then do is as documented."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import BIN, SECONDS, ClientProcess, DaemonProcess, alive, clients_of, wait_until

MakeDaemon = Callable[..., DaemonProcess]
MakeClient = Callable[..., ClientProcess]
PERCENTAGE, PRIORITY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_CLIENT_PRIORITY"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PROGRAM = """
from pympsd_client import driver as cuda
cuda.cuMemAlloc(1)
assert int(cuda.cuInit(0)[0]) == 0
cuda.cuMemFree(4660)
cuda.cuStreamSynchronize(4660)
"""


def one_line(daemon: DaemonProcess, text: str, log: str = "server.log") -> None:
    wait_until(lambda: any(text in line for line in daemon.log(log)), f"{text!r} in {log}")
    assert sum(text in line for line in daemon.log(log)) == 1


# --- of a client


@pytest.mark.parametrize(
    ("variable", "text", "problem", "multiprocessors"),
    [
        (PERCENTAGE, "50%", "a number without a percent sign (pympsd reads 50), not '50%'", 66),
        (PERCENTAGE, "0", "a number above 0, up to 100, not '0'", 132),
        (PERCENTAGE, "33,3", "a number above 0, up to 100, not '33,3'", 132),
        (PRIORITY, "high", "0 (normal) or 1 (below normal), not 'high'", 132),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "many", "a number from 1 to 32, not 'many'", 132),
        ("PYMPSD_EXPLAIN", "9", "0 or 1, not '9'", 132),
    ],
)
def test_wrong_settings_of_a_client_are_in_the_servers_log(
    daemon: DaemonProcess, make_client: MakeClient, variable: str, text: str, problem: str, multiprocessors: int
) -> None:
    client = make_client(**{variable: text}).connect()
    assert client.call("sm") == str(multiprocessors), "it runs as if the variable were not set, or is read"
    one_line(daemon, f"Client {client.pid}: {variable} must be {problem}")


def test_right_and_empty_settings_of_a_client_are_not_reported(
    daemon: DaemonProcess, make_client: MakeClient
) -> None:
    right = {PERCENTAGE: "50", PRIORITY: "1", "PYMPSD_EXPLAIN": "0", MEMORY: "0=1G"}
    for settings in (right, dict.fromkeys(right, "")):
        make_client(**settings).connect()
    assert not [line for line in daemon.log("server.log") if "must be" in line]


def test_the_variable_and_the_command_read_a_percent_sign_in_the_same_way(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(**{PERCENTAGE: "50%"})
    assert "pympsd reads 50" in daemon.start().stderr
    assert daemon.run_command("get_default_active_thread_percentage") == "50.0\n"
    for text, percentage in (("25%", "25.0\n"), ("33,3", "33.0\n")):
        done = daemon.run([], f"set_default_active_thread_percentage {text}")
        assert (done.stdout, done.stderr) == (percentage, f"{text!r} is read as {percentage[:2]}\n")
    assert daemon.run([], "set_default_active_thread_percentage 12.5").stderr == ""
    one_line(daemon, "a number without a percent sign (pympsd reads 50), not '50%'", "control.log")


def get_explained(daemon: DaemonProcess, **settings: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**daemon.environment, **settings}, cwd=daemon.directory,
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.long
def test_a_program_that_imports_the_client_explains(daemon: DaemonProcess) -> None:
    wrong = {PERCENTAGE: "abc", PRIORITY: "high"}
    lines = get_explained(daemon, PYMPSD_EXPLAIN="1", **wrong)
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "cuMemAlloc",
        f"{PERCENTAGE} must be a number above 0, up to 100, not 'abc'",
        f"{PRIORITY} must be 0 (normal) or 1 (below normal), not 'high'",
        "cuMemFree",
        "cuStreamSynchronize",
    ]
    assert lines[0].startswith("pympsd: cuMemAlloc: CUDA_ERROR_NOT_INITIALIZED: call cuInit(0) first")
    for quiet in ({}, {"PYMPSD_EXPLAIN": ""}, {"PYMPSD_EXPLAIN": "0"}):
        assert get_explained(daemon, **wrong, **quiet) == []
    assert "pympsd: PYMPSD_EXPLAIN must be 0 or 1, not '9'" in get_explained(daemon, PYMPSD_EXPLAIN="9")


def test_a_program_under_pympsd_run_explains(daemon: DaemonProcess) -> None:
    program = daemon.directory / "program.py"
    program.write_text("from cuda.bindings import driver as cuda\ncuda.cuInit(0)\ncuda.cuMemFree(4660)\n")
    done = subprocess.run(
        [BIN / "pympsd-run", program], env={**daemon.environment, "PYMPSD_EXPLAIN": "1", PERCENTAGE: "200"},
        cwd=daemon.directory, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    setting, call = done.stderr.splitlines()
    assert setting == f"pympsd: {PERCENTAGE} must be a number above 0, up to 100, not '200'"
    assert call.startswith("pympsd: cuMemFree: ")


def test_the_report_has_every_wrong_setting(daemon: DaemonProcess) -> None:
    wrong = {PERCENTAGE: "50%", "PYMPSD_DEVICE_CONNECTIONS": "99", "PYMPSD_STRICT_BOUNDS": "x", "PYMPSD_EXPLAIN": "9"}
    done = subprocess.run(
        [sys.executable, "-m", "pympsd_client"],
        env={**daemon.environment, **wrong, "PYMPSD_STATE_DIRECTORY": "/nonexistent"},
        cwd=daemon.directory, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    problems = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert [line.split()[1] for line in problems] == [*wrong, "PYMPSD_STATE_DIRECTORY=/nonexistent"]
    assert done.returncode == 1


# --- of a daemon


@pytest.mark.parametrize("text", ["1G", "0:1G"])
def test_a_memory_limit_without_a_device_is_answered_with_the_form(make_daemon: MakeDaemon, text: str) -> None:
    daemon = make_daemon(**{MEMORY: text})
    complaint = f"{MEMORY}: {text!r} is left out: the form is DEVICE=LIMIT, as in 0=1G or GPU-...=512M"
    assert complaint in daemon.start().stderr
    assert any(line.startswith(complaint) for line in daemon.log())


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("PYMPSD_DEVICE_CONNECTIONS", "a number from 1 to 32, not 'x'"),
        ("PYMPSD_STRICT_BOUNDS", "0 or 1, not 'x'"),
        ("PYMPSD_WORKER", "one of auto, native, python, not 'x'"),
    ],
)
def test_wrong_settings_of_executors_are_reported(make_daemon: MakeDaemon, variable: str, problem: str) -> None:
    daemon = make_daemon(**{variable: "x"})
    started = daemon.start()
    assert started.stderr == f"{variable} must be {problem}\n"
    # An emulated device does not read the number of queues.
    assert started.returncode == (0 if variable == "PYMPSD_DEVICE_CONNECTIONS" else 1)
    if started.returncode == 0:
        assert f"{variable} must be {problem}" in daemon.log()


def test_a_state_directory_that_is_not_there_is_reported(make_daemon: MakeDaemon, directory: Path) -> None:
    missing = str(directory / "missing")
    daemon = make_daemon(PYMPSD_STATE_DIRECTORY=missing)
    complaint = f"PYMPSD_STATE_DIRECTORY={missing} is not a directory: "
    assert complaint in daemon.start().stderr
    assert any(line.startswith(complaint) for line in daemon.log())
    with clients_of(daemon) as make_client:
        make_client().connect()
    one_line(daemon, "pympsd-smi and other servers cannot see this server: ")
    shown = subprocess.run(
        [BIN / "pympsd-smi"], env=daemon.environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert (shown.returncode, complaint in shown.stderr) == (0, True)


@pytest.mark.long(but=["192.0.2.1:9000"])
@pytest.mark.parametrize("address", ["x", "0", "99999", "192.0.2.1:9000", "/nonexistent/metrics"])
def test_an_impossible_address_of_metrics_does_not_end_the_daemon_that_runs(
    daemon: DaemonProcess, make_client: MakeClient, address: str
) -> None:
    client = make_client().connect()
    done = daemon.run(["-d", "--replace", "--metrics", address])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"--metrics {address}: ")
    assert alive(daemon.pid)
    assert client.call("pid") in daemon.run_command("ps")


def test_a_port_that_another_program_has_is_reported_by_the_daemon_that_replaces(
    daemon: DaemonProcess, directory: Path
) -> None:

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        before = daemon.pid
        done = daemon.run(["-d", "--replace", "--metrics", str(port)])
    complaint = f"--metrics {port}: Address already in use; the daemon starts without metrics"
    assert (done.returncode, done.stderr) == (0, f"{complaint}\n")
    daemon.await_end()
    daemon.attach(int((directory / "pipe/nvidia-cuda-mps-control.pid").read_text()))
    assert daemon.pid != before
    assert complaint in daemon.log()
    assert os.path.exists(directory / "pipe/control")
