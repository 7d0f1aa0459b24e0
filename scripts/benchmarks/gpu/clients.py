"""Clients as processes that read commands by lines, with a limit on each wait; and a growing set of them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Final

from attrs import define, field

START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 30.0
"""Seconds that a client may take beyond its limit."""
END_SECONDS: Final = 5.0
_LAST_WORDS: Final = 400
_CHUNK: Final = 1 << 16


class Failure(Exception):
    """Raised when a figure could not be measured; the message states why."""


@define
class Client:
    """A client process; its commands are answered in order, one line each."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    _received: bytearray = field(factory=bytearray)

    @classmethod
    def start(cls, command: tuple[str, ...], environment: Mapping[str, str]) -> Client:
        """Start a client; `answer` returns when it is ready."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the client lives
        try:
            process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            errors.close()
            raise Failure(f"{command[0]} does not start: {error}") from None
        return cls(process, errors)

    def tell(self, line: str) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise Failure(f"a client ended: {self._last_stderr()}") from None

    def answer(self, seconds: float) -> str:
        """Return the text after ``ok`` in the next answer; raise Failure if none comes in time."""
        give_up = time.monotonic() + seconds
        while (end := self._received.find(b"\n")) < 0:
            self._receive(give_up)
        line = self._received[:end].decode(errors="replace")
        del self._received[: end + 1]
        word, _, rest = line.partition(" ")
        if word != "ok":
            raise Failure(f"a client said {line[:_LAST_WORDS]!r}")
        return rest

    def ask(self, line: str, seconds: float = 0.0) -> str:
        """Give it a command that takes ``seconds``; return its answer."""
        self.tell(line)
        return self.answer(seconds + ANSWER_SECONDS)

    def _receive(self, give_up: float) -> None:
        assert self.process.stdout is not None
        left = give_up - time.monotonic()
        if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
            raise Failure("a client did not answer in time")
        data = os.read(self.process.stdout.fileno(), _CHUNK)
        if not data:
            raise Failure(f"a client ended: {self._last_stderr()}")
        self._received += data

    def _last_stderr(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace").split("\n")
        output = [line.strip() for line in words if line.strip()]
        return output[-1][:_LAST_WORDS] if output else f"status {self.process.returncode}, without a word"

    def end(self) -> None:
        """Ask it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def reap(self, seconds: float) -> None:
        """Wait ``seconds`` for its end, then kill it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it in the kernel for a while
                self.process.wait(END_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


def end_all(clients: list[Client]) -> None:
    """End clients and empty the list; kill those that do not end."""
    give_up = time.monotonic() + END_SECONDS
    for client in clients:
        client.end()
    while clients:
        clients.pop().reap(max(0.1, give_up - time.monotonic()))


@define
class Crowd:
    """A growing set of clients, all of which work.

    ``shared``: they are the threads of one process.
    """

    start: Callable[[], Client]
    shared: bool = False
    clients: list[Client] = field(factory=list)

    def grow(self, count: int) -> None:
        """Grow to ``count`` clients; raise Failure."""
        expected = 1 if self.shared else count
        there = len(self.clients)
        while len(self.clients) < expected:
            self.clients.append(self.start())
        give_up = time.monotonic() + START_SECONDS
        for client in self.clients[there:]:
            client.answer(give_up - time.monotonic())
        if self.shared:
            self.clients[0].ask(f"grow {count}")

    def ask(self, line: str, seconds: float) -> list[float]:
        """Give all of them a command that takes ``seconds``; return the numbers of all answers."""
        for client in self.clients:
            client.tell(line)
        give_up = time.monotonic() + seconds + ANSWER_SECONDS
        answers = [client.answer(give_up - time.monotonic()) for client in self.clients]
        return [float(number) for answer in answers for number in answer.split()]

    def end(self) -> None:
        """End them all."""
        end_all(self.clients)
