"""Fake clients for tests: start one, send it lines, wait for its answers with an absolute limit, end it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from attrs import define
from readable import is_readable

from .clients import STEP_FACTOR, STEP_MODULUS, STEP_TERM

SECONDS = 30.0
"""The absolute limit of every wait in a test."""
SUPPORT = Path(__file__).parents[1]


def chain(steps: int) -> int:
    """Return the value of a client of --loop after that many steps, each made exactly once."""
    value = 0
    for number in range(steps):
        value = (value * STEP_FACTOR + STEP_TERM + number) % STEP_MODULUS
    return value


@define
class DriverClient:
    """A running fake CUDA program. A block with it must end it, and fails if it printed an unexpected line."""

    process: subprocess.Popen[bytes]
    _unread: bytes = b""

    @classmethod
    def start(
        cls,
        pipe_directory: Path,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
        uid: int | None = None,
        prefix: Sequence[str] = (),
    ) -> DriverClient:
        """Start one, with settings in its environment, as a user, and under a command such as unshare."""
        program = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); from fake_mps.client import main"
        return cls(
            subprocess.Popen(
                [*prefix, sys.executable, "-IBSc", f"{program}; sys.exit(main(sys.argv[1:]))", *arguments],
                env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory), "PATH": os.defpath, **(settings or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                user=uid,
            )
        )

    @property
    def pid(self) -> int:
        """Its PID (that of the prefix, if that forks)."""
        return self.process.pid

    def send(self, line: str) -> None:
        """Send the program a line, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def answer(self, seconds: float = SECONDS) -> str:
        """Wait for the program's next line; raise AssertionError if it ends or prints nothing within the limit."""
        give_up = time.monotonic() + seconds
        while b"\n" not in self._unread:
            assert self._read_more(give_up - time.monotonic()), "the client ended without an answer"
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def call(self, line: str, seconds: float = SECONDS) -> str:
        """Send the program a line; return its answer."""
        self.send(line)
        return self.answer(seconds)

    def connect(self) -> DriverClient:
        """Make it a client with a context."""
        output = self.call("init")
        assert output == "init CUDA_SUCCESS", output
        assert self.call("ctx 0") == "ctx CUDA_SUCCESS"
        return self

    def is_waiting(self) -> bool:
        """Whether the program has printed nothing that was not read yet."""
        assert self.process.stdout is not None
        return not self._unread and not is_readable(self.process.stdout)

    def end(self) -> None:
        """End the program and its children; raise AssertionError if it hangs or printed an unexpected line."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        give_up = time.monotonic() + SECONDS
        while self._read_more(give_up - time.monotonic()):
            pass
        assert self.process.wait(SECONDS) == 0
        assert not self._unread, f"nobody waited for {self._unread.decode()!r}"

    def exit(self) -> None:
        """Let it leave; children that it forked stay, and hold its sockets, until the end of the block."""
        assert self.call("exit") == "exit"
        assert self.process.wait(SECONDS) == 0

    def kill(self) -> None:
        """Kill it with -9; children that it forked stay until the end of the block."""
        self.process.kill()
        self.process.wait(SECONDS)

    def __enter__(self) -> DriverClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.process.returncode is None:
                self.end()
        finally:
            self.kill()
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                stream.close()

    def _read_more(self, seconds: float) -> bool:
        """Read the program's next output; return False at its end."""
        assert self.process.stdout is not None
        assert is_readable(self.process.stdout, seconds), "the client says nothing"
        more = os.read(self.process.stdout.fileno(), 4096)
        self._unread += more
        return bool(more)
