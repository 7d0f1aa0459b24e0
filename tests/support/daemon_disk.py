"""Full, small and read-only disks that only a daemon under test sees."""

from __future__ import annotations

import os
from pathlib import Path

from processes import PYMPSD, DaemonProcess


class Disk:
    """A disk that is mounted over a folder for one daemon only."""

    def __init__(self, daemon: DaemonProcess, folder: Path, options: str) -> None:
        self.daemon = daemon
        self.folder = folder
        script = daemon.directory / "with-disk"
        script.write_text(f'#!/bin/sh\nmount -t tmpfs -o {options} tmpfs {folder} && exec {PYMPSD} "$@"\n')
        script.chmod(0o755)
        outer = daemon.directory / "started"
        outer.write_text(f'#!/bin/sh\nexec unshare --mount {script} "$@"\n')
        outer.chmod(0o755)
        daemon.command = str(outer)

    @property
    def seen(self) -> Path:
        """The folder as the daemon sees it."""
        return Path(f"/proc/{self.daemon.pid}/root{self.folder}")

    def fill(self) -> Path:
        """Fill the disk; return the file that fills it."""
        ballast = self.seen / "ballast"
        fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(fd, bytes(4096))
        except OSError:
            os.close(fd)
        return ballast
