"""Signals at the first moment at which somebody can know of the daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pympsd import daemonize
from pympsd.options import Options
from pympsd.service.run import run

def ready():
    for number in map(int, sys.argv[1:]):
        os.kill(os.getpid(), number)

daemonize.run = lambda daemon, _: run(daemon, ready)
sys.exit(daemonize.start_daemon(Options(["-f"])))
"""


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGTERM],
        [signal.SIGINT],
        [signal.SIGHUP, signal.SIGTERM],
        [signal.SIGUSR2],  # another daemon takes over
    ],
    ids=lambda signals: " ".join(signal.Signals(number).name for number in signals),
)
def test_a_daemon_that_is_just_ready_obeys_signals(tmp_path: Path, signals: list[signal.Signals]) -> None:
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
        "PYMPSD_EMULATED_DEVICES": "H200",
    }
    command = [sys.executable, "-c", PROGRAM, *(str(int(number)) for number in signals)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert not (tmp_path / "pipe" / "nvidia-cuda-mps-control.pid").exists()
