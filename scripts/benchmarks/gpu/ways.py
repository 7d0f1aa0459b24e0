"""The ways to share a GPU: pympsd, time slicing, the vendor's MPS, one context; starting the clients of each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from gpu.clients import Client, Failure
from gpu.kernels import HERE, SPIN
from gpu.processes import end_children

PYMPSD: Final = "pympsd"
SLICING: Final = "time slicing"
VENDOR: Final = "the vendor's MPS"
ONE_CONTEXT: Final = "one context"
UNBOUNDED: Final = "one context, unbounded"
BINDINGS: Final = "cuda.bindings"
WORKER: Final = re.compile(r"command stream workers: (native|python)")
UNKNOWN: Final = "unknown"
COMMAND_SECONDS: Final = 30.0
LOG_SECONDS: Final = 2.0
VENDOR_CONTROL: Final = "nvidia-cuda-mps-control"
VENDOR_FOLDERS: Final = "/usr/local/nvidia/bin:/usr/local/nvidia:/opt/nvidia/bin:/usr/bin"
"""The folders of the driver's programs if they are not on the PATH."""


class NotInstalled(Failure):
    """Raised if this machine does not have a way; the run does not fail."""


class WrongWorker(Failure):
    """Raised if the executor's workers are not native, but of this ``kind``."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the command streams' workers are not native but {kind}")
        self.kind = kind


@frozen
class Way:
    """Starts clients of one way.

    ``check`` raises Failure if the running ones are not as expected; pympsd's returns the kind of its workers.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    shared: bool = False
    """One process has a thread for each client."""
    check: Callable[[], str] = lambda: ""

    def start(self, **more: str) -> Client:
        """Start a client, with more in its environment."""
        return Client.start(self.command, {**self.environment, **more})


def worker_kind(server_log: str) -> str:
    """Return the command streams' kind of workers in server.log: ``native``, ``python``, ``mixed``, ``unknown``."""
    kinds = set(WORKER.findall(server_log))
    return kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else UNKNOWN)


def build_baseline(directory: str) -> str:
    """Compile the native client; return its path, raise Failure."""
    return build(HERE / "baseline.c", directory)


def build(source: Path, directory: str) -> str:
    """Compile a C program into a directory; return its path, raise Failure."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise Failure("there is no C compiler (cc, or name one in CC)")
    program = str(Path(directory, source.stem))
    words = [compiler, "-O2", "-pthread", "-o", program, str(source), "-ldl"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failure(str(error)) from None
    if done.returncode:
        raise Failure(f"the native client was not built: {done.stderr.strip()[:400]}")
    return program


def plain_environment(nowhere: str) -> dict[str, str]:
    """Return this process's environment without MPS variables; clients find no daemon in ``nowhere``."""
    ours = ("CUDA_MPS_", "PYMPSD_", "CUDA_DEVICE_MAX_CONNECTIONS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "CUDA_MPS_PIPE_DIRECTORY": nowhere}


@contextmanager
def pympsd(backend: str, any_worker: bool) -> Iterator[Way]:
    """Run a daemon of our own on the GPU (``backend`` emulated: in a rehearsal); WrongWorker unless any will do."""
    with _directories() as (directory, environment):
        environment = {**environment, "PYMPSD_BACKEND": backend}
        if backend == "emulated":
            environment["PYMPSD_EMULATED_DEVICES"] = "H200"
        command = (sys.executable, "-P", "-m", "pympsd")  # the installed one, like its servers, in any directory
        waits = [LOG_SECONDS]

        def check() -> str:
            kind = _worker_kind(Path(directory, "server.log"), waits.pop() if waits else 0.0)
            if kind != "native" and not any_worker:
                raise WrongWorker(kind)
            return kind

        client = (sys.executable, str(HERE / "client_program.py"), "pympsd", str(SPIN))
        run_tool((*command, "-d"), environment)
        try:
            yield Way(PYMPSD, client, {**environment, "PYMPSD_REQUIRE_MPS": "1"}, check=check)
        finally:
            stop_daemon(command, environment, "quit -t 2\n")


def _worker_kind(log: Path, seconds: float) -> str:
    """Return the kind of worker in a log; its line may be written a moment after the first client's context."""
    give_up = time.monotonic() + seconds
    while True:
        kind = worker_kind(log.read_text(errors="replace") if log.exists() else "")
        if kind != UNKNOWN or time.monotonic() > give_up:
            return kind
        time.sleep(0.01)


def driver_program(name: str) -> str | None:
    """Return the path of a program that comes with the driver, None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=VENDOR_FOLDERS)


@contextmanager
def vendor(baseline: str) -> Iterator[Way]:
    """Run the vendor's daemon in its own directories; NotInstalled if there is none."""
    control = driver_program(VENDOR_CONTROL)
    if control is None:
        raise NotInstalled(f"{VENDOR_CONTROL} is not installed")
    with _directories() as (_, environment):

        def check() -> str:
            if not re.search(r"\d", run_tool((control,), environment, "get_server_list\n")):
                raise Failure("the vendor's daemon has no server: the clients ran without it")
            return ""

        run_tool((control, "-d"), environment)
        try:
            yield Way(VENDOR, (baseline, str(SPIN)), environment, check=check)
        finally:
            stop_daemon((control,), environment, "quit -t 2\n")


@contextmanager
def slicing(baseline: str) -> Iterator[Way]:
    """Run native processes with a context each; one alone is the native baseline."""
    with _directories() as (_, environment):
        yield Way(SLICING, (baseline, str(SPIN)), environment)


@contextmanager
def one_context(baseline: str) -> Iterator[Way]:
    """Run the prototype: a thread and a stream for each client, in one context, without any transport."""
    with _directories() as (_, environment):
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        yield Way(ONE_CONTEXT, (baseline, str(SPIN), "threads"), environment, shared=True)


@contextmanager
def bindings() -> Iterator[Way]:
    """Run natively from Python, with cuda.bindings."""
    with _directories() as (_, environment):
        command = (sys.executable, str(HERE / "client_program.py"), "bindings", str(SPIN))
        yield Way(BINDINGS, command, environment)


@contextmanager
def _directories() -> Iterator[tuple[str, dict[str, str]]]:
    """Make a directory for pipes and logs, and an environment that names it; end its remaining users afterwards."""
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        try:
            yield directory, {**plain_environment(directory), "CUDA_MPS_LOG_DIRECTORY": directory}
        finally:
            if killed := end_children():
                print(f"    (left behind, and killed: {', '.join(map(str, killed))})", flush=True)


def run_tool(command: tuple[str, ...], environment: Mapping[str, str], said: str = "") -> str:
    """Run a command line tool; return its output; raise Failure."""
    try:
        done = subprocess.run(
            command, env=dict(environment), input=said, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"{command[0]}: {error}") from None
    if done.returncode:
        raise Failure(f"{' '.join(command)}: status {done.returncode}: {(done.stderr or done.stdout).strip()[:400]}")
    return done.stdout


def stop_daemon(command: tuple[str, ...], environment: Mapping[str, str], said: str) -> None:
    """Give a daemon the command that ends it; report a failure."""
    try:
        run_tool(command, environment, said)
    except Failure as error:
        print(f"    ({error}; it is killed)", flush=True)
