"""Report what a program sees here, what is wrong and what to do: ``python -m pympsd_client``. Exit status 1: wrong.

As any program does, it calls cuInit, for which a daemon may start a server of this user. The backend is the one that
the environment chooses: a daemon that was started in another one may have another.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from pympsd.version import VERSION
from pympsd_client import driver, last_error
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.process import process

PACKAGES = ("cuda-bindings", "numpy", "trio")
COMPILED = {
    "_launches": "repeated launches go through the interpreter, slower",
    "_entry_points": "pympsd-run cannot route programs",
    "_libcuda_name": "numba-cuda does not find its library under pympsd-run",
}
"""The modules in C, and what is so without each."""
NO_OUTPUT = 74
SECONDS = 60.0
START = "start a daemon (pympsd -d), or name the pipe directory of the one that runs in CUDA_MPS_PIPE_DIRECTORY"


def main() -> int:
    """Print the report; return the exit status."""
    wrong: list[str] = []
    for name, value in _seen(wrong):
        print(f"{name + ':':<15}{value}")
    for problem in wrong:
        print(f"wrong: {problem}")
    return 1 if wrong else 0


def _seen(wrong: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what is seen, by name; add to ``wrong`` what is not as it should be."""
    yield "pympsd", f"{VERSION}, Python {platform.python_version()} ({sys.executable})"
    for package in PACKAGES:
        yield package, _version(package, wrong)
    missing = [name for name in COMPILED if find_spec(f"pympsd_client.native.{name}") is None]
    wrong += [f"{name} was not compiled: {COMPILED[name]}; install pympsd with a C compiler" for name in missing]
    yield "compiled", ", ".join(sorted(set(COMPILED) - set(missing))) or "nothing"
    yield "daemon", _asked("pympsd.found_daemon")
    machine = json.loads(_asked("pympsd.devices"))
    yield "backend", machine.get("backend") or f"none: {machine.get('error')}"
    yield from _devices(wrong)


def _version(package: str, wrong: list[str]) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        wrong.append(f"{package} is not installed: pip install {package}")
        return "missing"


def _asked(module: str) -> str:
    """Return what a module of the daemon prints, which the client does not import."""
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, timeout=SECONDS)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


def _devices(wrong: list[str]) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = driver.cuInit(0)[0]
    if result != driver.CUresult.CUDA_SUCCESS:
        yield "cuInit", result.name
        wrong.append(last_error() or f"cuInit returns {result.name}")
        return
    if process.native is not None:
        yield "devices by", "the driver itself (libcuda)"
    elif isinstance(process.connection, PrivateExecutors):
        yield "devices by", "a private executor, without MPS"
        wrong += [f"{each.message}; {START}" for each in warned]
    else:
        yield "devices by", "a server of the daemon"
    yield "driver API", str(driver.cuDriverGetVersion()[1])
    for number in range(driver.cuDeviceGetCount()[1]):
        name = driver.cuDeviceGetName(256, number)[1].rstrip(b"\0").decode(errors="replace")
        mebibytes = driver.cuDeviceTotalMem(number)[1] >> 20
        yield f"device {number}", f"{name}, {mebibytes} MiB"
    variables = sorted(name for name in os.environ if name.startswith(("CUDA_", "PYMPSD_")))
    yield "environment", " ".join(f"{name}={os.environ[name]}" for name in variables) or "nothing of CUDA or pympsd"


def _printed(status: int) -> int:
    """Return the exit status; 74, as pympsd has it, if not all of the report could be printed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"standard output: {error.strerror}: not all could be printed", file=sys.stderr)
        return NO_OUTPUT
    return status


if __name__ == "__main__":
    sys.exit(_printed(main()))
