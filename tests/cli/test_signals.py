"""Signals at the start and at the end of the daemon: none of them ends it without cleanup."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pympsd.takeover.keeper import packets as packets
from pympsd.vocabulary import files

PROGRAM = """
import os, sys
from pympsd.cli import daemonize
from pympsd.cli.options import Options
from pympsd.service import run as running
from pympsd.service.files.pipe_directory import PipeDirectory

when, numbers = sys.argv[1], [int(number) for number in sys.argv[2:]]
run, resolve, work, release = running.run, running._resolve_paths, running._work, PipeDirectory.release

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
    return resolve(daemon)

async def works(*arguments):
    dispatcher = await work(*arguments)
    if when == "has worked":
        come()
    return dispatcher

def releases(directory, **how):
    if when == "leaves":
        come()
    release(directory, **how)
    come()

class Last:
    def __del__(self, come=come):
        come()

daemonize.run = lambda daemon, _: run(daemon, ready)
running._resolve_paths, running._work, PipeDirectory.release = begins, works, releases
if when == "is gone":
    last = Last()
sys.exit(daemonize.start_daemon(Options(["-f"])))
"""
ALL = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2]
HANDED_OVER = [signal.SIGUSR2]
"""Another daemon takes over."""


def _end(tmp_path: Path, when: str, signals: list[signal.Signals]) -> set[str]:
    """Send the signals at a moment; return the names of the remaining files."""
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


def _end_keeper(path: Path) -> None:
    """End a keeper that waits for the next daemon, and check that it holds the listening sockets for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(60)
        link.connect(str(path))
        names = set()
        while (packet := packets.decode(link.recv(packets.PACKET_BYTES)))[0] != packets.COMPLETE:
            names.add(packet[1])
        assert {f"listener {files.CONTROL}", f"listener {files.CONTROL_PRIVILEGED}", "fifo"} <= names
        link.send(packets.encode(packets.END))
        assert link.recv(1) == b"", "it ends"


@pytest.mark.long(but=["SIGINT-ready"])
@pytest.mark.parametrize("when", ["begins", "ready"])
@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP, signal.SIGTERM], HANDED_OVER],
    ids=lambda signals: " ".join(signal.Signals(number).name for number in signals),
)
def test_a_starting_daemon_handles_signals(tmp_path: Path, when: str, signals: list[signal.Signals]) -> None:
    files_that_stay = {files.STATE, files.KEEPER, files.NVML} if signals == HANDED_OVER else set()
    assert _end(tmp_path, when, signals) == files_that_stay
    if files_that_stay:
        _end_keeper(tmp_path / "pipe" / files.KEEPER)


@pytest.mark.parametrize("when", ["has worked", "leaves", "is gone"])
def test_signals_do_not_interrupt_the_cleanup(tmp_path: Path, when: str) -> None:
    assert _end(tmp_path, when, ALL) == set()
