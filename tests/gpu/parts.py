"""The parts of scripts/test-gpu: which tests, in how many processes, and their results."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOTAL_SECONDS = 570.0
"""Seconds after the first part's start, after which everything that still runs is killed."""
REHEARSAL_SECONDS = 3600.0
"""A part of a rehearsal that takes longer is killed."""
GRACE_SECONDS = 10.0
"""Seconds within which the processes of a part must end after it."""
FEW_QUEUES = {"PYMPSD_DEVICE_CONNECTIONS": "16"}
"""Enough where a test has one client: a context with 32 takes half a second to make, and seconds next to others."""
NO_TESTS = 5
"""pytest's exit status if an expression selects no test."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Part:
    """Tests of one kind."""

    name: str
    arguments: tuple[str, ...]
    devices: str = ""
    """The backends that one process keeps open for the whole part."""
    spread: float = 0.0
    """In how many processes at a time its tests run: that many of each of the runner's jobs, and one at least."""
    rehearsed: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    def shares(self, jobs: int) -> list[str]:
        """Return its processes, as 1/3 and so on."""
        count = max(1, int(self.spread * jobs))
        return [f"{number}/{count}" for number in range(1, count + 1)]


DIFFERENTIAL = "tests/gpu/test_differential.py"
VENDOR = ("tests/gpu/test_driver_on_gpu.py", "tests/gpu/test_protocol3_on_gpu.py")
PROTOCOL3 = "tests/flows/test_protocol3.py"
OWN_PARTS = (DIFFERENTIAL, *VENDOR, PROTOCOL3)
"""Files, each of which is a part of its own."""

PARTS = {
    part.name: part
    for part in (
        # The longest first. They run side by side: no test counts on what is free of the GPU's memory or time.
        Part(
            "flows",
            ("tests/gpu", "tests/flows", "tests/conformance", *map("--ignore={}".format, OWN_PARTS)),
            spread=1.0,
        ),
        Part("protocol3", (PROTOCOL3,), spread=1.0),
        Part("vendor", VENDOR, spread=1.0),
        Part(
            "vendor-sessions",
            ("tests/conformance/test_sessions.py", "-k", "faults or multiuser or several"),
            spread=0.5,
            settings={"PYMPSD_TEST_CONFORMANCE": "vendor"},
        ),
        Part("contract", ("tests/backends", "-k", "cuda"), spread=0.5, rehearsed=False, settings=FEW_QUEUES),
        Part("kernels", ("tests/emulated",), devices="cuda", settings=FEW_QUEUES),
        Part("differential", (DIFFERENTIAL,), devices="emulated,cuda", settings=FEW_QUEUES),
    )
}


@dataclass
class Running:
    """A pytest process: one share of a part."""

    part: Part
    process: subprocess.Popen[bytes]
    said: Path
    began: float = field(default_factory=time.monotonic)
    status: int | None = None


@dataclass
class Runner:
    """Runs parts, in the given environment. ``output`` gets one file a part, where its tests report how they end.

    Results are written as tests end, so a run that is cut short shows the failures; pytest's output of each process
    follows when the process has ended.
    """

    python: Path
    checkout: Path
    output: Path
    scratch: Path
    settings: dict[str, str]
    jobs: int
    rehearse: bool
    _over: float = field(default_factory=lambda: time.monotonic() + TOTAL_SECONDS, init=False)

    def run(self, parts: list[Part], more: list[str]) -> bool:
        """Run the parts; return whether anything failed."""
        expected = [part for part in parts if part.rehearsed or not self.rehearse]
        running: list[Running] = []
        try:
            for part in expected:
                running += [self._start(part, share, more) for share in part.shares(self.jobs)]
            for entry in running:
                self._await(entry)
        finally:
            for entry in running:
                self._finish(entry)
        ran = [part_run for part_run in running if part_run.status != NO_TESTS]
        return not ran or any(part_run.status for part_run in ran)

    def _start(self, part: Part, share: str, more: list[str]) -> Running:
        devices = part.devices.replace("cuda", "emulated") if self.rehearse else part.devices
        output = self.scratch / f"{part.name}.{share.partition('/')[0]}.said"
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
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, "-q", "--tb=short", "--durations=10", *part.arguments, *more],
                cwd=self.checkout,
                env={
                    **os.environ,
                    **self.settings,
                    **part.settings,
                    "PYMPSD_TEST_SHARD": share,
                    "PYMPSD_TEST_DEVICES": devices,
                    "PYMPSD_TEST_RECORD": str(self._log(part)),
                },
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(part, process, output)

    def _log(self, part: Part) -> Path:
        return self.output / f"{part.name}.log"

    def _await(self, part_run: Running) -> None:
        # A rehearsal may be on any machine, with nothing waiting for it.
        limit = self._over if not self.rehearse else part_run.began + REHEARSAL_SECONDS
        try:
            part_run.status = part_run.process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._kill(part_run)

    def _kill(self, part_run: Running) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(part_run.process.pid, signal.SIGKILL)
        part_run.status = part_run.process.wait()
        with part_run.said.open("a") as output:
            output.write(f"\nkilled: not over after {time.monotonic() - part_run.began:.0f} s\n")

    def _finish(self, part_run: Running) -> None:
        """Append a process's output to its part's log; print its failures and its last line."""
        if part_run.status is None:
            part_run.status = part_run.process.poll()
        if part_run.status is None:
            self._kill(part_run)
        text = part_run.said.read_text(errors="replace")
        with self._log(part_run.part).open("a") as log:
            log.write(f"\n{text}")
        for line in re.findall(r"^(?:FAILED|ERROR|INTERNALERROR).*$", text, re.MULTILINE):
            print(f"{part_run.part.name}: {line[:300]}")
        output = text.rstrip().rpartition("\n")[2].strip("= ")
        verdict = "ok" if part_run.status in (0, NO_TESTS) else f"status {part_run.status}"
        print(f"{part_run.part.name}: {verdict}: {output}", flush=True)


def adopt_orphans() -> None:
    """Become the parent of processes that the tests leave, to find and end them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_remaining() -> list[str]:
    """Kill the processes that the tests left, after a short time; return their commands."""
    give_up = time.monotonic() + GRACE_SECONDS
    while (remaining := _alive(os.getpid())) and (seconds := give_up - time.monotonic()) > 0:
        _wait_for(remaining[0], seconds)
        _reap()
    output = [f"process {pid}: {_command(pid)}" for pid in remaining]
    for pid in remaining:
        os.kill(pid, signal.SIGKILL)
    return output


def _wait_for(pid: int, seconds: float) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([watched], [], [], seconds)
    os.close(watched)


def _alive(pid: int) -> list[int]:
    """Return the descendants of a process that are not zombies."""
    pids = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text()
        except OSError:
            continue  # a thread that ended
        for child in map(int, children.split()):
            try:
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                pids += ([] if state in "ZX" else [child]) + _alive(child)
            except OSError:
                continue  # it ended
    return pids


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
