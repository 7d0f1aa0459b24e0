"""The unit of docs/systemd as far as it can be tried without systemd: its commands, and what systemd-analyze says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import PYMPSD, SECONDS, DaemonProcess, alive, wait_until

pytestmark = pytest.mark.long

UNIT = Path(__file__).parents[2] / "docs" / "systemd" / "pympsd.service"
DRAIN_UNIT = UNIT.with_name("pympsd-drain.service")
MAX_EXPOSURE = 50
"""Of systemd-analyze security, in tenths."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def unit_text() -> str:
    """Return the unit with the pympsd of this checkout."""
    return UNIT.read_text().replace("/usr/local/bin/pympsd", PYMPSD)


def value_of(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", unit_text(), re.MULTILINE)
    return str(value)


@pytest.fixture
def stop(daemon: DaemonProcess, directory: Path) -> Callable[[str], None]:
    """Do what systemd does to stop the unit, in a job of a type: ExecStop, then KillSignal."""

    def stop(job: str) -> None:
        systemctl = directory / "systemctl"
        systemctl.write_text(f'#!/bin/sh\n[ "$*" = "list-jobs --no-legend pympsd.service" ] && echo {job}\n')
        systemctl.chmod(0o755)
        command = shlex.split(value_of("ExecStop").removeprefix("-").replace("%n", "pympsd.service"))
        environment = {**daemon.environment, "PATH": f"{directory}:/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS)
        assert done.stderr == b""
        if alive(daemon.pid):
            os.kill(daemon.pid, signal.Signals[value_of("KillSignal")])
        daemon.await_end()

    return stop


def server_of(daemon: DaemonProcess) -> int:
    daemon.run_command("start_server -uid 0")
    wait_until(lambda: bool(daemon.servers()))
    (server,) = daemon.servers()
    wait_until(lambda: daemon.run_command(f"get_server_status {server}") == "ACTIVE\n")
    return server


@pytest.mark.parametrize("job", ["'77 pympsd.service stop running'", "''"])
def test_a_stop_ends_the_servers(daemon: DaemonProcess, stop: Callable[[str], None], job: str) -> None:
    server = server_of(daemon)
    stop(job)
    assert not alive(server)
    assert daemon.log()[-1] == "Exit with status 0"


def test_a_restart_keeps_the_servers(daemon: DaemonProcess, stop: Callable[[str], None]) -> None:
    server = server_of(daemon)
    stop("'77 pympsd.service restart running'")
    assert alive(server)
    assert daemon.start().returncode == 0
    assert daemon.servers() == [server]


def test_the_drain_units_commands_drain_and_serve_again(daemon: DaemonProcess) -> None:
    server = server_of(daemon)

    def command(key: str) -> list[str]:
        (line,) = re.findall(rf"^{key}=-?(.*)$", DRAIN_UNIT.read_text(), re.MULTILINE)
        return shlex.split(line.replace("/usr/local/bin/pympsd", PYMPSD))

    subprocess.run(command("ExecStart"), env=daemon.environment, check=True, timeout=SECONDS)
    assert not alive(server)
    assert daemon.run_command("get_drain_list") == "--all drained: 0 running, 0 held\n"
    subprocess.run(command("ExecStop"), env=daemon.environment, check=True, timeout=SECONDS)
    assert daemon.run_command("get_drain_list") == ""


@needs_systemd
def test_the_unit_is_well_formed_and_not_too_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "pympsd.service"
    unit.write_text(unit_text())
    security = ["security", "--offline=true", "--no-pager", f"--threshold={MAX_EXPOSURE}"]
    for words in (["verify"], security):
        done = subprocess.run(["systemd-analyze", *words, unit], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
