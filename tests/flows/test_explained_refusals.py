"""PYMPSD_EXPLAIN=1 under the driver's own server: pympsd-run prints why the daemon refused the program's clients."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_mps.clients import MAX_CONTEXTS
from fake_mps.programs import SUPPORT, DriverClient
from processes import BIN, SECONDS, DaemonProcess, wait_until

USER = 65534
FAILED = "CUDA_ERROR_MPS_CONNECTION_FAILED"
FULL = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
EXPLAINED = {"PYMPSD_EXPLAIN": "1"}
PROGRAM = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); from fake_mps.client import main; sys.exit(main([]))"
CLIENT = (sys.executable, "-IBSc", PROGRAM)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="servers of several users take root")


@pytest.fixture
def daemon(start_driver_daemon: Callable[..., DaemonProcess]) -> DaemonProcess:
    """A daemon that manages the fake of the driver's server."""
    return start_driver_daemon()


@pytest.fixture
def quitting(daemon: DaemonProcess) -> Iterator[str]:
    """A client that a quit waits for; the reason for which later clients are refused."""
    with DriverClient.start(daemon.directory / "pipe") as client:
        client.connect()
        with subprocess.Popen([BIN / "pympsd", "quit"], env=daemon.environment) as quit_:
            wait_until(lambda: "quit" in " ".join(daemon.log()), "the command")
            yield "the MPS control daemon is quitting: no new clients"
            client.end()
            assert quit_.wait(SECONDS) == 0


def run(daemon: DaemonProcess, *command: str, lines: str = "init\n", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command with pympsd-run."""
    return subprocess.run(
        [BIN / "pympsd-run", *command],
        env={**daemon.environment, **more},
        input=lines,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_the_reason_is_printed_when_the_program_has_ended(daemon: DaemonProcess, quitting: str) -> None:
    done = run(daemon, *CLIENT, **EXPLAINED)
    assert (done.returncode, done.stdout) == (0, f"init {FAILED}\n")
    assert done.stderr == f"pympsd: cuInit: {FAILED}: {quitting}\n"
    assert any(line.startswith("Refusing client ") and line.endswith(quitting) for line in daemon.log())
    for quiet in ({}, {"PYMPSD_EXPLAIN": ""}, {"PYMPSD_EXPLAIN": "0"}):
        done = run(daemon, *CLIENT, **quiet)
        assert (done.stdout, done.stderr) == (f"init {FAILED}\n", "")
    assert run(daemon, "true", **EXPLAINED).stderr == "", "of the refusals of other runs nothing"


def test_the_reason_of_children_that_have_ended_is_printed_once(daemon: DaemonProcess, quitting: str) -> None:
    client = shlex.join(CLIENT)
    done = run(daemon, "sh", "-c", f"for n in 1 2; do echo init | setsid -w {client}; done; exit 3", **EXPLAINED)
    assert (done.returncode, done.stdout) == (3, f"init {FAILED}\n" * 2)
    assert done.stderr == f"pympsd: cuInit: {FAILED}: {quitting}\n"


def test_a_user_sees_only_what_concerns_it(daemon: DaemonProcess, quitting: str) -> None:
    run(daemon, *CLIENT)
    (refusal,) = json.loads(daemon.run_command("get_refusal_list --json"))
    assert (refusal["uid"], refusal["call"], refusal["result"], refusal["reason"]) == (0, "cuInit", FAILED, quitting)
    assert daemon.run(["get_refusal_list"], uid=USER).stdout == ""


def test_a_full_device_is_the_reason_of_a_refused_context(daemon: DaemonProcess) -> None:
    with DriverClient.start(daemon.directory / "pipe") as first:
        first.connect()
        for _ in range(MAX_CONTEXTS - 1):
            assert first.call("ctx 0") == "ctx CUDA_SUCCESS"
        done = run(daemon, *CLIENT, lines="init\nctx 0\n", **EXPLAINED)
    reason = "no more clients fit until contexts of others end"
    assert done.stdout == f"init CUDA_SUCCESS\nctx {FULL}\n"
    assert done.stderr.startswith(f"pympsd: cuCtxCreate: {FULL}: the MPS server has its maximum of {MAX_CONTEXTS} ")
    assert done.stderr.endswith(f"{reason}\n")
    assert any(line.startswith("Refusing client ") and line.endswith(reason) for line in daemon.log())


def start(daemon: DaemonProcess, program: str) -> subprocess.Popen[bytes]:
    """Start the text of a Python program under pympsd-run, with explanations."""
    command = [BIN / "pympsd-run", sys.executable, "-c", program]
    return subprocess.Popen(command, env={**daemon.environment, **EXPLAINED}, stdout=subprocess.PIPE)


def test_the_exit_status_and_signals_are_the_programs(daemon: DaemonProcess) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
    program = f"import signal, sys; {handler}; print('ready', flush=True); signal.pause()"
    with start(daemon, program) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.terminate()
        assert running.wait(SECONDS) == 5
    assert run(daemon, "sh", "-c", "kill -KILL $$", **EXPLAINED).returncode == -signal.SIGKILL
    missing = run(daemon, "/nonexistent/program", **EXPLAINED)
    assert (missing.returncode, missing.stderr) == (
        127,
        "pympsd-run: /nonexistent/program: No such file or directory\n",
    )


def test_the_program_ends_with_pympsd_run(daemon: DaemonProcess) -> None:
    program = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with start(daemon, program) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.kill()
        wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not _command(pid), "the program's end")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_without_the_drivers_server_the_program_takes_the_place(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    report = "echo $$; grep SigIgn /proc/$$/status"
    usual = subprocess.run(["sh", "-c", report], capture_output=True, text=True, check=True).stdout.split("\n")[1]
    with subprocess.Popen(
        [BIN / "pympsd-run", "sh", "-c", report],
        env={**daemon.environment, **EXPLAINED},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.communicate(timeout=SECONDS)[0] == f"{running.pid}\n{usual}\n"
