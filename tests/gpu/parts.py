"""The parts of scripts/test-gpu: which tests, in how many processes, and how they went."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_SECONDS = 360.0
"""A part that takes longer is killed, with all that it started."""
TOTAL_SECONDS = 570.0
"""So is what has not ended by then, counted from the first part's start."""
REHEARSAL_SECONDS = 3600.0
"""A part of a rehearsal that takes longer is killed."""
GRACE_SECONDS = 10.0
"""What a part started may take so long to end after it."""
NO_TESTS = 5
"""pytest's exit status where an expression left none."""
_PR_SET_CHILD_SUBREAPER = 36


REHEARSAL_SECONDS = 3600.0
"""The same of a rehearsal."""


@dataclass(frozen=True)
class Part:
    """Tests of one kind. ``alone``: it takes most of the device's memory, or times it; so nothing runs beside it."""

    name: str
    arguments: tuple[str, ...]
    devices: str = ""
    """Backends that one process has open for the whole part."""
    alone: bool = False
    spread: bool = False
    """Whether its tests may run in several processes at a time, each with daemons of its own."""
    rehearsed: bool = True


PARTS = {
    part.name: part
    for part in (
        Part("contract", ("tests/backends", "-k", "cuda or GPU"), alone=True, rehearsed=False),
        Part("differential", ("tests/gpu/test_differential.py",), devices="emulated,cuda"),
        Part("kernels", ("tests/emulated",), devices="cuda"),
        Part(
            "flows",
            ("tests/gpu", "tests/flows", "tests/conformance", "--ignore=tests/gpu/test_differential.py"),
            spread=True,
        ),
    )
}


@dataclass
class Running:
    """A pytest process: one share of a part."""

    part: Part
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)
    status: int | None = None


@dataclass
class Runner:
    """Runs parts, in the given environment, with their output in files."""

    python: Path
    checkout: Path
    output: Path
    settings: dict[str, str]
    jobs: int
    rehearse: bool
    _over: float = field(default_factory=lambda: time.monotonic() + TOTAL_SECONDS, init=False)

    def run(self, parts: list[Part], more: list[str]) -> bool:
        """Run the parts, those that stand alone first; return whether anything failed."""
        wanted = [part for part in parts if part.rehearsed or not self.rehearse]
        rounds = [[part] for part in wanted if part.alone] + [[part for part in wanted if not part.alone]]
        ended: list[Running] = []
        for each in filter(None, rounds):
            ended += self._together(each, more)
        ran = [one for one in ended if one.status != NO_TESTS]
        return not ran or any(one.status for one in ran)

    def _together(self, parts: list[Part], more: list[str]) -> list[Running]:
        running = [self._start(part, share, more) for part in parts for share in self._shares(part)]
        for one in running:
            self._await(one)
        for part in parts:
            self._say(part, [one for one in running if one.part is part])
        return running

    def _shares(self, part: Part) -> list[str]:
        count = self.jobs if part.spread else 1
        return [f"{number}/{count}" for number in range(1, count + 1)]

    def _start(self, part: Part, share: str, more: list[str]) -> Running:
        devices = part.devices.replace("cuda", "emulated") if self.rehearse else part.devices
        log = self.output / f"{part.name}.{share.partition('/')[0]}.log"
        command = [
            self.python,
            "-m",
            "pytest",
            "-p",
            "tests.gpu.plugin",
            "-p",
            "no:benchmark",
            "-p",
            "no:cacheprovider",
        ]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*command, "-q", "--durations=10", *part.arguments, *more],
                cwd=self.checkout,
                env={
                    **os.environ,
                    **self.settings,
                    "PYMPSD_TEST_SHARD": share,
                    "PYMPSD_TEST_DEVICES": devices,
                },
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(part, process, log)

    def _await(self, one: Running) -> None:
        # A rehearsal may be on any machine, with nobody waiting for it.
        limit = min(one.began + LIMIT_SECONDS, self._over) if not self.rehearse else one.began + REHEARSAL_SECONDS
        try:
            one.status = one.process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.status = one.process.wait()
            with one.log.open("a") as log:
                log.write(f"\nkilled: not over after {time.monotonic() - one.began:.0f} s\n")

    def _say(self, part: Part, shares: list[Running]) -> None:
        """Put the shares' logs together, and print what failed and the last line of each."""
        whole = self.output / f"{part.name}.log"
        with whole.open("wb") as stream:
            for one in shares:
                stream.write(one.log.read_bytes())
        for one in shares:
            text = one.log.read_text(errors="replace")
            one.log.unlink()
            for line in re.findall(r"^(?:FAILED|ERROR|INTERNALERROR).*$", text, re.MULTILINE):
                print(f"{part.name}: {line[:300]}")
            said = text.rstrip().rpartition("\n")[2].strip("= ")
            verdict = "ok" if one.status in (0, NO_TESTS) else f"status {one.status}"
            print(f"{part.name}: {verdict}: {said}", flush=True)


def adopt_orphans() -> None:
    """Become the parent of whatever the tests leave, to see and to end it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leftovers() -> list[str]:
    """Return the commands of processes that the tests left, a little after them; they are killed."""
    give_up = time.monotonic() + GRACE_SECONDS
    while (left := _alive(os.getpid())) and time.monotonic() < give_up:
        _reap()
        time.sleep(0.1)
    said = [f"process {pid}: {_command(pid)}" for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return said


def _alive(pid: int) -> list[int]:
    """Return the descendants of a process that are no zombies."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            try:
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                found += ([] if state in "ZX" else [child]) + _alive(child)
            except OSError:
                continue  # it ended meanwhile
    return found


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone meanwhile"
