"""The machine of a run: the GPU, its driver, the processor, the commit and the build."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from gpu.ways import driver_program
from pympsd.process.version import build_id
from pympsd_client._command_stream.launch_cache import is_native

ROOT = Path(__file__).resolve().parents[3]


def conditions(commit: str | None) -> dict[str, Any]:
    """Return the conditions of a measurement; None for those that cannot be determined."""
    name, driver = _gpu()
    git = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return {
        "commit": commit or _output(*git),
        "build": build_id(),
        "gpu": name,
        "driver": driver,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "launches": "native" if is_native() else "python",
    }


def _gpu() -> tuple[str | None, str | None]:
    """Return the first GPU's name and the driver's version, from nvidia-smi."""
    program = driver_program("nvidia-smi") or "nvidia-smi"
    output = _output(program, "--query-gpu=name,driver_version", "--format=csv,noheader")
    if output is None:
        return None, None
    name, _, driver = output.partition("\n")[0].rpartition(", ")
    return name or None, driver


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
