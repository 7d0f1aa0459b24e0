"""Cgroups of this machine for processes of a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import define, field


@define
class Cgroups:
    """Cgroups of a test, below a cgroup of its own."""

    path: str = f"/pympsd-test-{os.getpid()}"
    made: list[Path] = field(factory=list)

    def move(self, pid: int, name: str) -> None:
        """Create a cgroup and move a process to it."""
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        mount = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")
        for folder in (Path(f"{mount}{self.path}"), Path(f"{mount}{self.path}", name)):
            if folder not in self.made:
                try:
                    folder.mkdir()
                except OSError as error:
                    pytest.skip(f"no cgroup can be made here: {error}")
                self.made.append(folder)
        (self.made[-1].parent / name / "cgroup.procs").write_text(str(pid))

    def remove_one(self, name: str) -> None:
        """Remove a cgroup whose processes have ended."""
        folder = next(entry for entry in self.made if entry.name == name)
        self.made.remove(folder)
        folder.rmdir()

    def remove(self) -> None:
        """Remove the cgroups, whose processes have ended."""
        while self.made:
            self.made.pop().rmdir()
