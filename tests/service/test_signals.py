"""Signals at the first and at the last moments of the daemon: none of them ends it without its cleanup."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pympsd.vocabulary import files

PROGRAM = """
import os, sys
from pympsd import daemonize
from pympsd.options import Options
from pympsd.service import run as running
from pympsd.service.files.pipe_directory import PipeDirectory

when, numbers = sys.argv[1], [int(number) for number in sys.argv[2:]]
run, settle, work, leave = running.run, running._settle_machine, running._work, PipeDirectory.leave

def come(kill=os.kill, me=os.getpid()):
    for number in numbers:
        kill(me, number)

def ready():
    if when == "ready":
        come()
    elif when != "begins":
        os.kill(os.getpid(), 15)

def begins(daemon):
    if when == "begins":
        come()
    return settle(daemon)

async def works(*arguments):
    hub = await work(*arguments)
    if when == "has worked":
        come()
    return hub

def leaves(directory, **how):
    if when == "leaves":
        come()
    leave(directory, **how)
    come()

class Last:
    def __del__(self, come=come):
        come()

daemonize.run = lambda daemon, _: run(daemon, ready)
running._settle_machine, running._work, PipeDirectory.leave = begins, works, leaves
if when == "is gone":
    last = Last()
sys.exit(daemonize.start_daemon(Options(["-f"])))
"""
ALL = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2]
HANDED_OVER = [signal.SIGUSR2]
"""Another daemon takes over."""


def _ended(tmp_path: Path, when: str, signals: list[signal.Signals]) -> set[str]:
    """Let the signals come at a moment; return which files are left."""
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
        "PYMPSD_EMULATED_DEVICES": "H200",
    }
    command = [sys.executable, "-c", PROGRAM, when, *(str(int(number)) for number in signals)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return {path.name for path in (tmp_path / "pipe").iterdir()} - {
        files.CONTROL,
        files.CONTROL_PRIVILEGED,
        files.LOCK,
    }


@pytest.mark.parametrize("when", ["begins", "ready"])
@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP, signal.SIGTERM], HANDED_OVER],
    ids=lambda signals: " ".join(signal.Signals(number).name for number in signals),
)
def test_a_daemon_that_begins_obeys_signals(tmp_path: Path, when: str, signals: list[signal.Signals]) -> None:
    assert _ended(tmp_path, when, signals) == ({files.STATE} if signals == HANDED_OVER else set())


@pytest.mark.parametrize("when", ["has worked", "leaves", "is gone"])
def test_a_daemon_that_ends_is_not_kept_from_cleaning_up(tmp_path: Path, when: str) -> None:
    assert _ended(tmp_path, when, ALL) == set()
