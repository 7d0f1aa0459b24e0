"""To other processes, a process that a prepared one starts looks like an executed one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from prepared import CLIENT, DAEMON, PreparedProcess, can_start, execute, prepare
from processes import ClientProcess, DaemonProcess, adopt_orphans, alive, children_of, clients_of

USER = 10001
OF_THE_PROCESS = ("Name", "Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "SigBlk", "SigIgn")

RANDOM = re.compile(r"\.[0-9a-f]{16}\b")
"""The part that differs in the names of the files by which servers register."""


@pytest.fixture(autouse=True)
def _nothing_is_prepared() -> Iterator[None]:
    """Put aside the processes that the flows have prepared in this test process."""
    with execute():
        yield


@contextmanager
def client(environment: dict[str, str], uid: int) -> Iterator[ClientProcess]:
    """A client, whose program has begun."""
    running = ClientProcess.start(environment, uid)
    with running.process:
        assert running.call("pid") == str(running.pid)
        yield running
        running.end()
    assert running.process.returncode == 0


def state_of(pid: int) -> dict[str, Any]:
    """Return what the kernel reports about a process."""
    folder = Path(f"/proc/{pid}")
    status: dict[str, str] = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    numbers = (folder / "stat").read_text().rpartition(")")[2].split()
    targets = {number: os.readlink(folder / "fd" / number) for number in os.listdir(folder / "fd")}
    return {
        **{name: status[name] for name in OF_THE_PROCESS},
        "SigCgt": int(status["SigCgt"], 16) & (1 << 31) - 1,  # those above are the C library's
        "words": (folder / "cmdline").read_bytes(),
        "environment": [entry for entry in (folder / "environ").read_bytes().split(b"\0") if entry],
        "directory": os.readlink(folder / "cwd"),
        "program": os.readlink(folder / "exe"),
        "owner": folder.stat().st_uid,
        "parent, group, session": numbers[1:4],
        "descriptors": {number: target.partition(":")[0] for number, target in targets.items()},
    }


@pytest.mark.parametrize("uid", [0, USER])
def test_a_client_looks_like_an_executed_one(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if uid and os.geteuid():
        pytest.skip("only root becomes other users")
    monkeypatch.chdir("/")
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", "PLAIN": "a b=c"}
    with client(environment, uid) as ordinary:
        expected = state_of(ordinary.pid)
        assert not isinstance(ordinary.process, PreparedProcess)
    with prepare(CLIENT), client(environment, uid) as forked:
        assert isinstance(forked.process, PreparedProcess)
        assert state_of(forked.pid) == expected


def test_a_daemon_looks_like_an_executed_one(tmp_path: Path) -> None:
    adopt_orphans()
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    reports = []
    for way in (nullcontext, lambda: prepare(DAEMON)):
        pipe.mkdir()
        log.mkdir()
        with way():
            daemon = DaemonProcess(tmp_path)
            try:
                done = daemon.start()
                assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
                reported = state_of(daemon.pid)
            finally:
                daemon.stop()
        assert not alive(daemon.pid)
        # The shell of the launcher adds PWD, and each daemon leads a session of its own.
        reported["environment"] = {entry for entry in reported["environment"] if not entry.startswith(b"PWD=")}
        reported["parent, group, session"][1:] = []
        # Others than these it closes at its start, and it opens some for a moment.
        reported["descriptors"] = [reported["descriptors"][number] for number in "012"]
        reports.append(reported)
        shutil.rmtree(pipe)
        shutil.rmtree(log)
    adopt_orphans(False)
    assert reports[0] == reports[1]


@pytest.mark.parametrize("uid", [0, USER])
def test_servers_and_executors_look_like_executed_ones(uid: int) -> None:
    if uid and os.geteuid():
        pytest.skip("only root becomes other users")
    adopt_orphans()
    reports = []
    for way in (nullcontext, lambda: prepare(DAEMON)):
        with way(), tempfile.TemporaryDirectory(prefix="pympsd-test-") as name:
            directory = Path(name)
            directory.chmod(0o755)  # every user can reach it
            for folder in ("pipe", "log"):
                (directory / folder).mkdir()
            daemon = DaemonProcess(directory, {"TZ": "Asia/Tokyo"})
            try:
                assert daemon.start().returncode == 0
                with clients_of(daemon) as make_client:
                    make_client(uid).connect()
                    (server,) = daemon.servers()
                    (executor,) = children_of(server)
                    reported = [state_of(server), state_of(executor)]
            finally:
                daemon.stop()
        assert [entry["parent, group, session"][1:] for entry in reported] == 2 * [[str(server)] * 2]
        assert [entry["parent, group, session"][0] for entry in reported] == [str(daemon.pid), str(server)]
        assert not any(map(alive, (server, executor)))
        for report in reported:
            del report["parent, group, session"]
            report["descriptors"] = Counter(RANDOM.sub("", target) for target in report["descriptors"].values())
            # The interpreter of an executed server adds its locale.
            entries = {entry.replace(name.encode(), b"") for entry in report["environment"]}
            report["environment"] = entries - {b"LC_CTYPE=C.UTF-8"}
        reports.append(reported)
    adopt_orphans(False)
    for ordinary, forked in zip(*reports, strict=True):
        assert forked == ordinary


def test_what_an_interpreter_reads_early_is_executed() -> None:
    with prepare(CLIENT):
        assert can_start(CLIENT, {"PATH": "/bin"})
        assert not can_start(CLIENT, {"PYTHONFAULTHANDLER": "1"})
        assert not can_start(CLIENT, {"LD_PRELOAD": "x.so"})
        assert not can_start(DAEMON, {})
    assert not can_start(CLIENT, {})
