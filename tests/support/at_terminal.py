"""A program at a terminal of its own: its screen and its keyboard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator

from attrs import define
from processes import SECONDS


@define
class Terminal:
    """A program at a terminal, and its keyboard."""

    process: subprocess.Popen[bytes]
    screen: int
    unseen: bytes = b""

    def until(self, text: str) -> str:
        """Read the screen until a text appears; return everything up to and including it."""
        give_up = time.monotonic() + SECONDS
        while text.encode() not in self.unseen:
            left = give_up - time.monotonic()
            assert select.select([self.screen], [], [], max(0.0, left))[0], (text, self.unseen)
            try:
                more = os.read(self.screen, 4096)
            except OSError:  # the other side is closed
                more = b""
            assert more, (text, self.unseen)
            self.unseen += more
        shown, _, self.unseen = self.unseen.partition(text.encode())
        return (shown + text.encode()).decode().replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        """Send key presses."""
        os.write(self.screen, keys.encode())

    def enter(self, line: str) -> str:
        """Type a line; return the text between its echo and the next prompt."""
        self.type(line + "\r")
        self.until("\n")
        return self.until("> ").removesuffix("> ")


@contextlib.contextmanager
def at_terminal(command: list[str], environment: dict[str, str], **more: str) -> Iterator[Terminal]:
    """Run a program at a terminal; kill it after the block if it is still running."""
    screen, own = pty.openpty()
    termios.tcsetwinsize(own, (24, 120))
    process = subprocess.Popen(
        command,
        env={**environment, "TERM": "vt100", "LANG": "C.UTF-8", "INPUTRC": "/dev/null", **more},
        stdin=own,
        stdout=own,
        stderr=own,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(own)
    yield Terminal(process, screen)
    if process.poll() is None:
        process.kill()
    process.wait(SECONDS)
    os.close(screen)


def _take_terminal() -> None:
    # The terminal of its session, so that Ctrl-C is its signal.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
