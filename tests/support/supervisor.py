"""A small supervisor, as systemd runs a unit: Type=exec, Restart=always, KillMode=control-group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

from attrs import define, field
from processes import PYMPSD, SECONDS, alive, children_of, wait_until


@define
class Supervisor:
    """Runs ``pympsd -f ...`` in the foreground with its output in a journal file; started means: exec succeeded."""

    environment: dict[str, str]
    arguments: list[str]
    journal: Path
    stdin_closed: bool = False
    process: subprocess.Popen[bytes] | None = None
    _ended: list[int] = field(factory=list)

    def start(self) -> int:
        """Start the unit's main process; return its PID."""
        command = [PYMPSD, *self.arguments]
        if self.stdin_closed:
            command = ["/bin/sh", "-c", 'exec "$0" "$@" <&-', *command]
        with self.journal.open("ab") as journal:
            self.process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=journal, stderr=journal
            )
        return self.process.pid

    @property
    def pid(self) -> int:
        """The main process."""
        assert self.process is not None
        return self.process.pid

    def unit(self) -> list[int]:
        """Return every process of the unit: the main one and its descendants."""
        pids = [self.pid]
        for pid in pids:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                pids += children_of(pid)
        return pids

    def restart_when_it_ends(self) -> int:
        """Wait for the end of the main process, however it ends, and start it again; return the old exit status."""
        status = self._wait()
        self._ended.append(status)
        self.start()
        return status

    def stop(self, *, whole_group: bool) -> tuple[int, list[int]]:
        """Send SIGTERM to the main process or the whole group; return its status and the children that it left."""
        unit, children = self.unit(), children_of(self.pid)
        for pid in unit if whole_group else [self.pid]:
            _kill(pid, signal.SIGTERM)
        status = self._wait()
        remaining = [pid for pid in children if alive(pid)]
        # Executors that are killed with their server may take a moment more.
        wait_until(lambda: not any(map(alive, unit)), "the end of the whole unit")
        return status, remaining

    def _wait(self) -> int:
        assert self.process is not None
        watched = os.pidfd_open(self.process.pid)
        try:
            assert select.select([watched], [], [], SECONDS)[0], "the unit does not end"
        finally:
            os.close(watched)
        return self.process.wait()

    def clean_up(self) -> None:
        """Kill and reap the processes that a failed test left."""
        if self.process is not None and self.process.poll() is None:
            for pid in reversed(self.unit()):
                _kill(pid, signal.SIGKILL)
            self.process.wait()
        for pid in children_of(os.getpid()):
            # Servers whose daemon was killed: this process adopted them.
            if not alive(pid):
                os.waitpid(pid, 0)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was quicker
        os.kill(pid, number)
