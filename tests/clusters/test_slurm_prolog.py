"""Slurm's prolog as it is installed, run by hand: it finds its pympsd, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import SECONDS

from pympsd import extras

BIN = Path(sys.executable).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the folder of the scripts, installed by a pympsd that is not in PATH."""
    extras.install(tmp_path / "prefix", BIN)
    return tmp_path / "prefix/share/pympsd/slurm"


def run(script: Path, tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe",
        "MPS_LOG_DIRECTORY": f"{tmp_path}/log",
        "PYMPSD_EMULATED_DEVICES": "H200",
        "PYMPSD_STATE_DIRECTORY": str(tmp_path),
        **settings,
    }
    return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=SECONDS)


def test_it_starts_the_daemon_of_its_installation_once(installed: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pipe/nvidia-cuda-mps-control.pid"
    try:
        pids = []
        for _ in range(2):
            done = run(installed / "prolog", tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            pids.append(pid.read_text())
        assert pids[0] == pids[1]
    finally:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe"}
        subprocess.run([BIN / "pympsd", "quit", "-t", "0"], env=environment, timeout=SECONDS)


def test_a_task_knows_its_part_of_the_memory(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "task-prolog", tmp_path, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert (done.returncode, done.stderr) == (0, "")
    assert "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=" in done.stdout


@pytest.mark.parametrize("name", ["prolog", "task-prolog"])
def test_a_pympsd_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    extras.install(tmp_path / "prefix", tmp_path / "none")
    script = tmp_path / "prefix/share/pympsd/slurm" / name
    done = run(script, tmp_path, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert done.returncode == 1
    assert str(tmp_path / "none/pympsd") in done.stdout + done.stderr


def test_a_daemon_that_does_not_start_says_why(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "prolog", tmp_path, PYMPSD_EMULATED_DEVICES="nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("pympsd prolog: the daemon does not start: ")
    assert "nonsense" in done.stderr
