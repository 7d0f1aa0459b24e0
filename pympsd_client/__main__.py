"""Report a program's devices, errors and remedies: ``python -m pympsd_client``.

The report has a line for each finding: versions, compiled parts, the daemon and its backend, the variables of CUDA
and pympsd, how the program reaches its devices, and each device with its memory and SMs. Lines that begin with
``wrong:`` name a problem and its remedy. An example::

    pympsd:        0.2.0, Python 3.11.9 (/usr/bin/python3)
    daemon:        at /tmp/nvidia-mps/control: no daemon (No such file or directory)
    devices by:    a private executor, without MPS
    device 0:      NVIDIA H200, 143155 MiB, SMs by percentage: steps of 2, at least 8
    wrong: no MPS control daemon at ...: start a daemon (pympsd -d), or name the pipe directory of ...

Exit status: 0 if nothing is wrong, 1 if something is, 74 if the report could not be printed.

Like any program it calls cuInit, so a daemon may start a server of this user. The reported backend is the one that
the present environment selects; a daemon that was started in another environment may have another.
"""

import errno
import json
import os
import platform
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from pympsd.process.version import VERSION
from pympsd.vocabulary import files
from pympsd.vocabulary.mistyped import Parser
from pympsd.vocabulary.sm_rounding import rounding
from pympsd.vocabulary.variables import problems
from pympsd_client import driver, last_error
from pympsd_client._connect.private_executor import PrivateExecutors
from pympsd_client._objects.process import process

SILENT = 2
"""The exit status of pympsd.cli.found_daemon if a daemon runs but does not respond."""
PACKAGES = ("cuda-bindings", "numpy", "trio")
COMPILED = {
    "pympsd_client.native._launches": "repeated launches go through the interpreter, slower",
    "pympsd_client.native._entry_points": "pympsd-run cannot route programs",
    "pympsd_client.native._pages": "kernels do not reach memory that a program registers",
    "pympsd_server.native._worker": "launches on a GPU go through the interpreter of an executor, slower",
    "pympsd_server.native._kernels": "kernels of the emulated GPU run in NumPy, slower",
}
"""The modules in C, and what happens without each."""
NO_OUTPUT = 74
SECONDS = 60.0
INIT_SECONDS = 30.0
"""The longest wait for cuInit in seconds; after 10 s cuInit itself warns and gives the reason for the wait."""
START = "start a daemon (pympsd -d), or name the pipe directory of the one that runs in CUDA_MPS_PIPE_DIRECTORY"


ELSEWHERE = "this program runs without MPS, but a daemon runs at {0}: set CUDA_MPS_PIPE_DIRECTORY={0}"


def main() -> int:
    """Print the report of ``python -m pympsd_client``; return the exit status.

    0: nothing is wrong. 1: something is wrong; the last lines contain the errors and their remedies. 2: wrong
    arguments. 74, as for pympsd: not all of the report could be printed.
    """
    description = "Report what a program sees here, what is wrong and what to do. Exit status 1: something is wrong."
    parser = Parser(prog="python -m pympsd_client", description=description, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    if parser.parse_args(sys.argv[1:]).help:
        return 0 if _print(parser.format_help()) else NO_OUTPUT
    wrong: list[str] = []
    lines = [f"{name + ':':<15}{value}" for name, value in _inspect(wrong)]
    lines += [f"wrong: {problem}" for problem in dict.fromkeys(wrong)]
    if not _print("".join(f"{line}\n" for line in lines)):
        return NO_OUTPUT
    return 1 if wrong else 0


def _inspect(wrong: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each finding; add the problems to ``wrong``."""
    yield "pympsd", f"{VERSION}, Python {platform.python_version()} ({sys.executable})"
    for package in PACKAGES:
        yield package, _version(package, wrong)
    names = {module: module.rpartition(".")[2] for module in COMPILED}
    missing = [module for module in COMPILED if find_spec(module) is None]
    for module in missing:
        wrong.append(f"{names[module]} was not compiled: {COMPILED[module]}; install pympsd with a C compiler")
    yield "compiled", ", ".join(sorted(names[module] for module in COMPILED if module not in missing)) or "nothing"
    daemon, status = _ask_module("pympsd.cli.found_daemon")
    yield "daemon", daemon
    answer = json.loads(_ask_module("pympsd.devices", "--daemon")[0])
    yield "backend", answer.get("backend") or f"none: {answer.get('error')}"
    if "error" in answer:
        wrong.append(answer["error"])
    variables = sorted(name for name in os.environ if name.startswith(("CUDA_", "PYMPSD_")))
    yield "environment", " ".join(f"{name}={os.environ[name]}" for name in variables) or "nothing of CUDA or pympsd"
    wrong += filter(None, (*problems(os.environ).values(), answer.get("complaint", "")))
    if status == SILENT:
        wrong.append(f"the daemon does not answer: {daemon}")
        return
    yield from _list_devices_in_time(wrong)


def _version(package: str, wrong: list[str]) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        wrong.append(f"{package} is not installed: pip install {package}")
        return "missing"


def _ask_module(module: str, *arguments: str, **variables: str) -> tuple[str, int]:
    """Run a module of the daemon, which the client must not import; return its last line of output and its status.

    ``variables`` are added to its environment.
    """
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2], done.returncode


def _list_devices_in_time(wrong: list[str]) -> list[tuple[str, str]]:
    """Return what `_devices` yields; after INIT_SECONDS give up and add a problem to ``wrong``."""
    rows: list[tuple[str, str]] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        # A daemon thread, so that the process does not wait for it at its end.
        asking = threading.Thread(target=lambda: rows.extend(_devices(wrong, warned)), daemon=True)
        asking.start()
        asking.join(INIT_SECONDS)
    if asking.is_alive():
        messages = "; ".join(str(warning.message) for warning in warned)
        wrong.append(f"cuInit has not returned within {INIT_SECONDS:.0f} s; {messages or 'see both logs'}")
    return rows


def _devices(wrong: list[str], warned: list[warnings.WarningMessage]) -> Iterator[tuple[str, str]]:
    """Call cuInit, and yield how the program reaches its devices, and each device; add the problems to ``wrong``."""
    result = driver.cuInit(0)[0]
    if result != driver.CUresult.CUDA_SUCCESS:
        yield "cuInit", result.name
        wrong.append(last_error() or f"cuInit returns {result.name}")
        return
    if process.native is not None:
        yield "devices by", "the driver itself (libcuda)"
        wrong += _daemons_elsewhere()
    elif isinstance(process.connection, PrivateExecutors):
        yield "devices by", "a private executor, without MPS"
        wrong += _daemons_elsewhere() or [f"{warning.message}; {START}" for warning in warned]
    else:
        yield "devices by", "a server of the daemon"
    yield "driver API", str(driver.cuDriverGetVersion()[1])
    for number in range(driver.cuDeviceGetCount()[1]):
        name = driver.cuDeviceGetName(256, number)[1].partition(b"\0")[0].decode(errors="replace")
        mebibytes = driver.cuDeviceTotalMem(number)[1] >> 20
        description = f"{name}, {mebibytes} MiB"
        if process.native is None and (properties := process.device(number).properties).is_volta_or_newer:
            description += f", {rounding(properties)}"
        yield f"device {number}", description


def _daemons_elsewhere() -> list[str]:
    """Return messages that name the pipe directories of running daemons in the usual places."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    folders = [files.SYSTEM_PIPE_DIRECTORY, *([f"{own}/nvidia-mps"] if own else [])]
    current = os.path.realpath(files.pipe_directory(dict(os.environ)))
    return [
        ELSEWHERE.format(folder)
        for folder in folders
        if os.path.realpath(folder) != current
        and _ask_module("pympsd.cli.found_daemon", CUDA_MPS_PIPE_DIRECTORY=folder)[1] == 0
    ]


def _print(text: str) -> bool:
    """Print a text and return whether all of it could be printed; report the error otherwise."""
    try:
        if sys.stdout is None:  # closed
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:  # discard its buffer, which Python would try to write again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"standard output: {error.strerror}: not all could be printed", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
