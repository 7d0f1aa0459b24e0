"""The sequences of protocol3.toml, replayed on daemons with two emulated H200, and of the driver's fake server.

Under scripts/test-gpu the daemons have the GPUs of the machine, and manage the driver's own server.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import DaemonProcess
from sequences import MACHINE, Replay, check_steps, settings_of

SEQUENCES = tomllib.loads(Path(__file__).with_name("protocol3.toml").read_text())["sequence"]
WITH_CLIENTS = ("T22", "T30", "T33", "T38", "T42", "T50")
"""Sequences with clients that are not left out with the long tests."""
CASES = [(entry, backend) for entry in SEQUENCES for backend in entry.get("on", ["emulated"])]


def _id(sequence: dict[str, Any], backend: str) -> str:
    return str(sequence["id"]) if backend == "emulated" else f"{sequence['id']} ({backend})"


WITHOUT_CLIENTS = [
    _id(entry, backend) for entry, backend in CASES if not any("client" in step for step in entry["steps"])
]
SHORT = [*(_id(entry, backend) for entry, backend in CASES if entry["id"] in WITH_CLIENTS), *WITHOUT_CLIENTS[::2]]
"""Sequences that stand for the others when long tests are left out; of those without clients every second one."""


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[tuple[str, str], DaemonProcess]]:
    """A daemon of each protocol and backend, which the sequences that do not end it share."""
    root = Path(tempfile.mkdtemp(prefix="pympsd-p3-"))
    root.chmod(0o755)
    names = {}
    for protocol, backend in sorted({(entry["daemon"], backend) for entry, backend in CASES}):
        if protocol == "none":
            continue
        directory = root / f"{backend}-{protocol}"
        for name in ("pipe", "log"):
            (directory / name).mkdir(parents=True)
        names[protocol, backend] = DaemonProcess(directory, settings_of(backend, MACHINE, directory))
    try:
        for (protocol, _), daemon in names.items():
            done = daemon.start("-d", "-p", protocol)
            assert (done.returncode, done.stderr) == (0, "")
        yield names
    finally:
        for daemon in names.values():
            daemon.stop()
        shutil.rmtree(root)


@pytest.fixture
def replay(
    request: pytest.FixtureRequest, daemons: dict[tuple[str, str], DaemonProcess], directory: Path
) -> Iterator[Replay]:
    """Replay on the daemon that a sequence asks for, and leave it without servers and clients."""
    sequence, backend = request.param
    machine = sequence.get("machine", MACHINE)
    shared = daemons.get((sequence["daemon"], backend))
    replay = Replay(shared or DaemonProcess(directory, settings_of(backend, machine, directory)), backend, machine)
    try:
        yield replay
    finally:
        replay.end()
        if shared is None:
            replay.daemon.stop()
        elif sequence["daemon"] == "3":
            rows = replay.daemon.run(["server", "list", "--format=csv,noheader"]).stdout.splitlines()
            for name in (row.partition(",")[0] for row in rows):
                done = replay.daemon.run(["server", "delete", name, "--force"])
                assert done.returncode == 0, done


@pytest.mark.long(but=SHORT)
@pytest.mark.parametrize(
    ("replay", "steps"),
    [pytest.param((entry, backend), entry["steps"], id=_id(entry, backend)) for entry, backend in CASES],
    indirect=["replay"],
)
def test_a_sequence_is_answered_as_listed(replay: Replay, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        replay.step(step)


def test_the_table_has_only_what_is_compared() -> None:
    check_steps(SEQUENCES)
