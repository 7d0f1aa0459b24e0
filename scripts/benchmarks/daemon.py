"""A daemon of the benchmark's own, in a temporary directory, on an emulated machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PYMPSD = str(Path(sys.executable).parent / "pympsd")


def environment(directory: str, devices: str) -> dict[str, str]:
    """Return the environment of a daemon and its clients."""
    return {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": directory,
        "CUDA_MPS_LOG_DIRECTORY": directory,
        "PYMPSD_EMULATED_DEVICES": devices,
        "PYMPSD_BACKEND": "emulated",
        "PYMPSD_REQUIRE_MPS": "1",
    }


def run_command(env: dict[str, str], command: str) -> str:
    """Run one command of the daemon; return its standard output."""
    return subprocess.run([PYMPSD], env=env, input=command, capture_output=True, text=True, check=True).stdout


def resident_mib(pid: str) -> float:
    """Return the memory of a process."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def running(
    devices: str = "H200", protocol: int = 2, more: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, str], float]]:
    """Start a daemon with ``more`` options; yield its environment and the seconds ``-d`` took; quit it."""
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-") as directory:
        os.chmod(directory, 0o755)
        env = environment(directory, devices)
        start = time.perf_counter()
        subprocess.run([PYMPSD, "-d", "-p", str(protocol), *more], env=env, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - start
        try:
            yield env, taken
        finally:
            run_command(env, "quit -t 1")
