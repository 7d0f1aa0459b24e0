"""The sequences of protocol2_r590.toml, each replayed on an emulated machine of its own, under the vendor's name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import PYMPSD, DaemonProcess
from sequences import Replay, check_steps

from pympsd.cli.options import DROP_IN_NAME

SEQUENCES = tomllib.loads(Path(__file__).with_name("protocol2_r590.toml").read_text())["sequence"]
MACHINE = "H200"
WITH_CLIENTS = ("P16", "P21")
"""Sequences with clients that stand for the others when long tests are left out."""
LIKE_ANOTHER = ("P05 A100", "P05 L40S", "P05 B200", "P23", "P24", "P35 after kill -9", "P39 static")
"""Sequences without clients that are left out too: the one before or after has the same commands."""


def _starts(sequence: dict[str, Any]) -> bool:
    return any("client" in step for step in sequence["steps"])


def _is_short(sequence: dict[str, Any]) -> bool:
    return sequence["id"] in WITH_CLIENTS or not (_starts(sequence) or sequence["id"] in LIKE_ANOTHER)


@pytest.fixture
def replay(request: pytest.FixtureRequest, directory: Path) -> Iterator[Replay]:
    """Replay on a daemon that is started as the sequence has it: not at all, plainly, or in static mode."""
    sequence = request.param
    machine = sequence.get("machine", MACHINE)
    link = directory / DROP_IN_NAME
    link.symlink_to(PYMPSD)
    described = directory / "machine.toml"
    if "[[device]]" in machine:
        described.write_text(machine)
        machine = str(described)
    daemon = DaemonProcess(directory, {"PYMPSD_EMULATED_DEVICES": machine}, command=str(link))
    replay = Replay(daemon, machine=machine, protocol=2)
    try:
        if sequence["daemon"] != "none":
            done = daemon.start("-d", *(["-S"] if sequence["daemon"] == "static" else []))
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        yield replay
    finally:
        replay.end()
        daemon.stop()


@pytest.mark.long(but=[entry["id"] for entry in SEQUENCES if _is_short(entry)])
@pytest.mark.parametrize(
    ("replay", "steps"),
    [pytest.param(entry, entry["steps"], id=entry["id"]) for entry in SEQUENCES],
    indirect=["replay"],
)
def test_a_sequence_is_answered_as_listed(replay: Replay, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        replay.step(step)


def test_the_table_has_only_what_is_compared() -> None:
    check_steps(SEQUENCES)
