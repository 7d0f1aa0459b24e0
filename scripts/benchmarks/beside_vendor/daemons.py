"""Both daemons at the same time, each with a server of the driver, in private directories; they quit afterwards."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from attrs import frozen
from gpu import ways
from gpu.clients import Client, Failure
from gpu.kernels import SPIN
from gpu.processes import end_children

SERVER_VARIABLE: Final = "PYMPSD_VENDOR_SERVER"
_SERVER: Final = "nvidia-cuda-mps-server"
_LOGGED: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) Control +\d+\] (.*)")
_POLL_SECONDS: Final = 0.002


@frozen
class Programs:
    """The native clients: ``launching`` is baseline.c's, ``joining`` join.c's."""

    launching: tuple[str, ...]
    joining: tuple[str, ...]


@frozen
class Daemon:
    """A running daemon: its tool's command, and the environment of tool and clients."""

    name: str
    tool: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]

    @property
    def pid(self) -> int:
        """The daemon's PID."""
        return int(Path(self.directory, "nvidia-cuda-mps-control.pid").read_text())

    def run_command(self, line: str) -> str:
        """Give the daemon a command; return its output; raise Failure."""
        return ways.run_tool(self.tool, self.environment, f"{line}\n")

    def servers(self) -> list[int]:
        """Return the servers' PIDs."""
        return [int(word) for word in self.run_command("get_server_list").split()]

    def log(self) -> list[tuple[float, str]]:
        """Return control.log: the seconds of the epoch (to the ms) and the text of each line."""
        text = Path(self.directory, "control.log").read_text(errors="replace")
        return [(datetime.fromisoformat(stamp).timestamp(), output) for stamp, output in _LOGGED.findall(text)]

    def await_line(self, pattern: str, seconds: float) -> None:
        """Wait until a line of control.log matches a pattern; raise Failure."""
        give_up = time.monotonic() + seconds
        while not any(re.search(pattern, text) for _, text in self.log()):
            if time.monotonic() > give_up:
                raise Failure(f"control.log has no line like {pattern!r}")
            time.sleep(_POLL_SECONDS)

    def way(self, name: str, command: tuple[str, ...]) -> ways.Way:
        """Return the way of its clients, under a name."""
        return ways.Way(name, command, self.environment, check=self._check)

    def client(self, command: tuple[str, ...], uid: int = 0) -> Client:
        """Start a client as a user of this machine, and wait until it is ready; raise Failure."""
        prefix = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
        client = Client.start((*prefix, *command), self.environment)
        client.answer(60.0)
        return client

    def _check(self) -> str:
        if not self.servers():
            raise Failure(f"{self.name}: there is no server, so the clients ran without MPS")
        return ""


@contextmanager
def programs(given: str) -> Iterator[Programs]:
    """Build the native clients, or take ``given`` for both (``PTX`` and ``PTX join`` are its arguments)."""
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-") as folder:
        os.chmod(folder, 0o755)
        kernel = Path(folder, SPIN.name)
        kernel.write_bytes(SPIN.read_bytes())
        kernel.chmod(0o644)
        if given:
            yield Programs((given, str(kernel)), (given, str(kernel), "join"))
        else:
            joining = ways.build(Path(__file__).with_name("join.c"), folder)
            yield Programs((ways.build_baseline(folder), str(kernel)), (joining, str(kernel)))


@contextmanager
def both() -> Iterator[tuple[Daemon, Daemon]]:
    """Run ours and the vendor's; raise Failure."""
    server = os.environ.get(SERVER_VARIABLE) or ways.driver_program(_SERVER)
    control = ways.driver_program(ways.VENDOR_CONTROL)
    for name, path in ((_SERVER, server), (ways.VENDOR_CONTROL, control)):
        if path is None:
            raise ways.NotInstalled(f"{name} is not installed")
    ours = {"PYMPSD_BACKEND": "vendor", SERVER_VARIABLE: str(server), "PYMPSD_LOG_DIALECT": "r580"}
    try:
        with ExitStack() as stack:
            yield (
                stack.enter_context(_running(ways.PYMPSD, _own_tool(), ours)),
                stack.enter_context(_running(ways.VENDOR, (str(control),), {})),
            )
    finally:
        if killed := end_children():
            print(f"    (left behind, and killed: {', '.join(map(str, killed))})", flush=True)


@contextmanager
def _running(name: str, tool: tuple[str, ...], more: Mapping[str, str]) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        environment = {**ways.plain_environment(folder), "CUDA_MPS_LOG_DIRECTORY": folder, **more}
        ways.run_tool((*tool, "-d"), environment)
        daemon = Daemon(name, tool, Path(folder), environment)
        try:
            yield daemon
        finally:
            pid = 0
            with suppress(OSError, ValueError):
                pid = daemon.pid
            ways.stop_daemon(tool, environment, "quit -t 2\n")
            _await_end(pid)


def _await_end(pid: int) -> None:
    """Wait a few seconds for a daemon that was asked to quit, so that its directory is not removed while it runs."""
    give_up = time.monotonic() + 5.0
    while pid and time.monotonic() < give_up:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(_POLL_SECONDS)


def _own_tool() -> tuple[str, ...]:
    """Return the command of the installed pympsd: its launcher, which is what users start."""
    launcher = Path(sys.executable).with_name("pympsd")
    return (str(launcher),) if launcher.exists() else (sys.executable, "-P", "-m", "pympsd")
