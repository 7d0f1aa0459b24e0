"""Keeps a port worker: starts it, passes requests on to it, and starts another when it is lost or takes too long.

``python -m tests.gpu.device_lease FD BACKEND ...``. The test process itself never holds a GPU, and has
neither children nor descriptors that come and go with workers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import IO, Any

from attrs import define, field

OPENING_SECONDS = 90.0
"""The time within which a worker must open its devices."""
LAST_WORDS = 2000


@define
class Keeper:
    """One worker at a time."""

    backends: list[str]
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _worker: Connection | None = field(default=None, init=False)
    _said: IO[bytes] = field(factory=tempfile.TemporaryFile, init=False)

    def ask(self, seconds: float, request: tuple[Any, ...]) -> tuple[str, Any]:
        """Return the worker's answer, or ("lost", why) without one; then the next request goes to another worker."""
        try:
            worker = self._worker or self._start()
            worker.send(request)
            answer: tuple[str, Any] = self._receive(worker, seconds)
        except (EOFError, OSError) as error:
            return "lost", self._end(f"the worker ended: {error!r}")
        except TimeoutError as error:
            return "lost", self._end(str(error))
        if answer[0] == "lost":
            return "lost", self._end(answer[1])
        return answer

    def _start(self) -> Connection:
        own_end, peer_end = socket.socketpair()
        fd = peer_end.detach()
        command = [sys.executable, "-m", "tests.gpu.port_worker", str(fd), *self.backends]
        self._process = subprocess.Popen(command, pass_fds=(fd,), stdin=subprocess.DEVNULL, stderr=self._said)
        os.close(fd)
        self._worker = Connection(own_end.detach())
        self._receive(self._worker, OPENING_SECONDS)
        return self._worker

    def _receive(self, worker: Connection, seconds: float) -> Any:
        if not worker.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return worker.recv()

    def _end(self, why: str) -> str:
        """End the worker; return why, and its last report."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._said.seek(0)
            why += "".join(
                f"\n{line}" for line in self._said.read().decode(errors="replace")[-LAST_WORDS:].splitlines()
            )
            self._said.truncate(0)
            self._said.seek(0)
        return why

    def close(self) -> None:
        """End the worker."""
        self._end("")


def main(fd: int, backends: list[str]) -> None:
    """Serve the test process until it closes the socket; None instead of a request drops the worker."""
    owner, keeper = Connection(fd), Keeper(backends)
    try:
        while True:
            request = owner.recv()
            owner.send(keeper.ask(*request) if request is not None else ("done", keeper.close()))
    except EOFError:
        keeper.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
