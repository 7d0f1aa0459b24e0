"""The requested behaviour of the fake server: one JSON object, which it reads when it starts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

POLL_SECONDS = 0.01
DEFAULTS: dict[str, object] = {
    "devices": 1,
    "start_seconds": 0.0,
    "crash": "",
    "hang": "",
    "close": "",
    "wrong_size": 0,
    "wrong_hello": False,
    "wrong_role": False,
    "wrong_registration": False,
    "no_answer": 0,
    "late_answer": 0,
    "late_registration": False,
}
"""Every key with its default; the README describes the effects."""


def write(path: Path, keys: Mapping[str, object]) -> None:
    """Set the behaviour of servers that start from now on; raise ValueError for an unknown key."""
    if unknown := set(keys) - set(DEFAULTS):
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(DEFAULTS)}")
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(dict(keys)))
    new.chmod(0o644)
    new.rename(path)  # one that starts just now reads the old or the new, never half of it


class Behaviour:
    """The requested behaviour, and the moments at which it takes effect."""

    def __init__(self, path: str) -> None:
        chosen = {**DEFAULTS, **json.loads(Path(path).read_text())}
        self._path = Path(path)
        self.devices = int(chosen["devices"])
        self.start_seconds = float(chosen["start_seconds"])
        self.wrong_hello = bool(chosen["wrong_hello"])
        self.wrong_role = bool(chosen["wrong_role"])
        self.wrong_registration = bool(chosen["wrong_registration"])
        self._wrong_size = int(chosen["wrong_size"])
        self._no_answer = int(chosen["no_answer"])
        self._close = str(chosen["close"])
        self._crash = str(chosen["crash"])
        self._hang = str(chosen["hang"])

    def reach(self, moment: str) -> None:
        """Die or hang if that is requested for this moment."""
        self.crash_at(moment)
        while self._hang == moment:
            signal.pause()

    def crash_at(self, moment: str) -> None:
        """Crash if that is requested for this moment: report and close nothing first."""
        if self._crash == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def wait_before_answer(self, command: int) -> None:
        """Wait before a command's answer for the requested time."""
        while json.loads(self._path.read_text()).get("late_answer") == command:
            time.sleep(POLL_SECONDS)

    def wait_before_registration(self) -> None:
        """Create a file that reports the wait, and wait for the requested time."""
        while json.loads(self._path.read_text()).get("late_registration"):
            self._path.with_name("waits").touch()
            time.sleep(POLL_SECONDS)

    def hangs_at(self, command: int) -> bool:
        """Whether the commands' thread stops at this command; the clients' threads continue."""
        return self._hang == f"on_command:{command}"

    def changed(self, command: int, answer: list[bytes]) -> tuple[list[bytes], bool]:
        """Return the bytes to send instead of a command's answer, and whether the server ends afterwards."""
        if self._close == f"half_way:{command}":
            return answer[: len(answer) // 2], True
        if self._no_answer == command:
            return [], False
        if self._wrong_size == command and answer:
            return [*answer[:-1], answer[-1] + bytes(4)], False
        return answer, False
