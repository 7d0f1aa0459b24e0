"""A daemon that manages the driver's server, and its clients; without a GPU both are the fakes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from fake_mps import devices
from fake_mps.install import install
from fake_mps.programs import DriverClient
from processes import DaemonProcess
from tested_machine import gpu, gpus, on_real_gpu

HERE = Path(__file__).parent
SERVER, CONTROL = "nvidia-cuda-mps-server", "nvidia-cuda-mps-control"
FOLDERS = "/usr/local/nvidia/bin:/usr/local/nvidia:/opt/nvidia/bin:/usr/bin"
"""Folders that may have the driver's programs if they are not in PATH."""
IMPORT_SECONDS = 60.0
"""A framework's import and its first context."""
DROPPED = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "PYMPSD_", "PYTEST_", "PYTHON")


def driver_program(name: str) -> str | None:
    """Return the path of a program that comes with the driver; None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=FOLDERS)


def settings(folder: Path) -> dict[str, str]:
    """Return the settings of a daemon that manages the driver's server; skip the test if there is none."""
    if not on_real_gpu():
        return {"PYMPSD_BACKEND": "vendor", "PYMPSD_VENDOR_SERVER": str(install(folder))}
    server = os.environ.get("PYMPSD_VENDOR_SERVER") or driver_program(SERVER)
    if server is None:
        pytest.skip(f"{SERVER} is not installed (or is named by PYMPSD_VENDOR_SERVER)")
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    only = {"CUDA_VISIBLE_DEVICES": "0"} if len(gpus()) > 1 else {}
    return {"PYMPSD_BACKEND": "vendor", "PYMPSD_VENDOR_SERVER": str(server), **passed, **only}


def pipe(daemon: DaemonProcess) -> Path:
    """Return the pipe directory."""
    return daemon.directory / "pipe"


def client(
    daemon: DaemonProcess,
    *arguments: str,
    uid: int | None = None,
    prefix: Sequence[str] = (),
    settings: dict[str, str] | None = None,
) -> DriverClient:
    """Start a CUDA program that executes lines."""
    if not on_real_gpu():
        return DriverClient.start(pipe(daemon), *arguments, uid=uid, prefix=prefix, settings=settings)
    command = [*prefix, sys.executable, "-B", str(HERE / "program.py"), *arguments]
    return program(daemon, *command, uid=uid, settings=settings)


def program(
    daemon: DaemonProcess, *command: str, uid: int | None = None, settings: dict[str, str] | None = None
) -> DriverClient:
    """Start any program that prints lines, in this environment without the variables of MPS and of tests."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(DROPPED)}
    process = subprocess.Popen(
        command,
        env={**kept, "CUDA_MPS_PIPE_DIRECTORY": str(pipe(daemon)), **(settings or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        user=uid,
    )
    return DriverClient(process)


def framework(daemon: DaemonProcess, name: str, settings: dict[str, str] | None = None) -> DriverClient:
    """Start a program of a framework, which the python3 in PATH must have."""
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **(settings or {})}
    if len(gpus()) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = "0"  # as the daemon's: PyTorch counts with NVML, which sees all
    return program(daemon, "python3", "-B", str(HERE / "framework.py"), name, settings=environment)


@cache
def why_not(module: str) -> str:
    """Return why the python3 in PATH cannot run a framework's program; nothing if it has the module."""
    if shutil.which("python3") is None:
        return "there is no python3 in PATH"
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    environment = {name: text for name, text in os.environ.items() if not name.startswith(DROPPED)}
    done = subprocess.run(["python3", "-c", program], env=environment, capture_output=True, timeout=IMPORT_SECONDS)
    return f"the python3 in PATH has no {module}" if done.returncode else ""


def connect(program: DriverClient, device: int = 0) -> DriverClient:
    """Make a context."""
    assert program.call("init") == "init CUDA_SUCCESS"
    assert program.call(f"ctx {device}") == "ctx CUDA_SUCCESS"
    return program


def multiprocessors(percentage: int) -> int:
    """Return how many SMs the driver gives a client: the percentage, rounded down to an even number."""
    there = devices.SM_COUNT if not on_real_gpu() else gpu().multiprocessors
    return max(2, there * percentage // 100 // 2 * 2)


def end_all(daemon: DaemonProcess) -> None:
    """Kill all processes with a daemon's directory, such as servers and keepers of a killed daemon."""
    variable = f"CUDA_MPS_PIPE_DIRECTORY={pipe(daemon)}\0".encode()
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                if variable in (place / "environ").read_bytes():
                    os.kill(int(place.name), signal.SIGKILL)
