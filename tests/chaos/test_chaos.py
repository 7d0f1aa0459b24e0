"""A soak as scripts/soak runs it, a minute long, and soaks that must find a problem."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import hostile, testbed
from tests.chaos.actions import ACTIONS
from tests.chaos.history import FOR_EVER
from tests.chaos.hostile import excess
from tests.chaos.identity import strike
from tests.chaos.leaks import DAEMON_NEEDS, Before, find_crowded, leaks
from tests.chaos.rounds import soak
from tests.chaos.schedule import DEFAULT_KINDS, Action, Backend, Kind
from tests.chaos.testbed import Tail

SEED = 20130805
SECONDS = float(os.environ.get("PYMPSD_SOAK_SECONDS", "54"))
SHORT = 10.0


@pytest.mark.long
@pytest.mark.parametrize("backend", Backend)
def test_a_minute_of_chaos(tmp_path: Path, backend: Backend) -> None:
    summary = soak(SEED, SECONDS, DEFAULT_KINDS, tmp_path / "journal.jsonl", tmp_path / "logs", backends=(backend,))
    assert summary["problems"] == [], f"seed {SEED}; what was done and the logs are in {tmp_path}"
    assert (summary["wrong results"], summary["hangs"], summary["leaks"]) == (0, 0, 0)
    assert summary["clients judged"] == summary["clients"] > 10
    assert summary["steps"] > 100
    assert len(summary["chaos"]) > 5
    assert summary["hostile"]["users"] >= 2
    assert backend is Backend.VENDOR or sum(summary["commands of protocol 3"].values()) > 5


@pytest.mark.long
@pytest.mark.parametrize("backend", Backend)
def test_an_error_without_a_cause_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """The soak kills the server without recording it, so to the judge the product lost its server."""

    async def kill(running: testbed.Testbed, action: Action) -> None:
        server = running.server()
        if server is not None and any(life.attached < FOR_EVER for life in running.living()):
            strike(server.process, signal.SIGKILL)

    monkeypatch.setitem(ACTIONS, Kind.QUERIES, kill)
    kinds = {Kind.QUERIES}
    summary = soak(SEED, SHORT, kinds, tmp_path / "journal.jsonl", tmp_path / "logs", backends=(backend,))
    problems = "\n".join(summary["problems"])
    assert re.search("client .*: 806 of .* has no cause", problems)
    assert re.search(r"server \d+ ended with status -9, and was not killed", problems)


def test_what_is_left_is_seen(tmp_path: Path) -> None:
    for name in ("pipe", "log", "tmp"):
        (tmp_path / name).mkdir()
    for name in ("control", "control_lock", "control_privileged"):
        (tmp_path / "pipe" / name).touch()
    before = Before.now()
    assert leaks(before, tmp_path, ()) == []
    (tmp_path / "pipe" / "log").touch()
    (tmp_path / "tmp" / "forgotten").touch()
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=reader)
    shared = Path("/dev/shm/pympsd-left-by-a-test")
    shared.touch()
    try:
        leftovers = leaks(before, tmp_path, (), seconds=0)
        assert sorted(line.split()[0] for line in leftovers) == [
            "descriptor",
            "descriptor",
            "file",
            "log",
            "process",
            "temporary",
        ]
    finally:
        shared.unlink()
        for fd in (reader, writer):
            os.close(fd)
        child.wait()


def test_a_process_with_too_many_descriptors_is_seen() -> None:
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(DAEMON_NEEDS)]
    try:
        (problem,) = find_crowded(os.getpid(), 0, ())
        assert problem.startswith(f"process {os.getpid()} ")
    finally:
        for fd in opened:
            os.close(fd)
    assert list(find_crowded(0, 0, ())) == []


def test_a_daemon_that_hostile_users_cost_too_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # A new process stands for the daemon, because this one has memory that other tests took.
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert list(excess(process.pid)) == []
        monkeypatch.setattr(hostile, "MAX_MEMORY", 1)
        monkeypatch.setattr(hostile, "MAX_DESCRIPTORS", 1)
        assert [problem.split()[4] for problem in excess(process.pid)] == ["descriptors", "MiB"]
        process.communicate(b"\n")
    assert list(excess(0)) == []


def test_a_log_is_followed_by_whole_lines(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert tail.more() == ""
    with (tmp_path / "log").open("a") as file:
        for text, lines in (("one\ntw", "one\n"), ("o", ""), ("\nthree\n", "two\nthree\n")):
            file.write(text)
            file.flush()
            assert tail.more() == lines
