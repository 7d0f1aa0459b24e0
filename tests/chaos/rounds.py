"""A soak: rounds of clients and chaos. Every client is judged at its end, and a round must leave nothing behind.

Call `soak`; it returns a summary that can be written as JSON. Its ``problems`` are empty if all was well.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

import trio
from attrs import asdict
from processes import adopt_orphans

from pympsd.vocabulary.files import NAMED_SERVERS
from tests.chaos.history import FOR_EVER
from tests.chaos.hostile import hostile_users
from tests.chaos.leaks import STAYS, VENDOR_STAYS, Before, leaks
from tests.chaos.log_history import judge
from tests.chaos.named import NamedSoak
from tests.chaos.schedule import Backend, Kind, Round, rounds
from tests.chaos.soak import Soak
from tests.chaos.summary import Summary
from tests.chaos.testbed import Testbed, now, users


def soak(
    seed: int,
    seconds: float,
    kinds: Collection[Kind],
    journal: Path,
    keep: Path,
    pace: float = 1.0,
    backends: Collection[Backend] = tuple(Backend),
) -> dict[str, Any]:
    """Run a soak; return its summary.

    Write the events to ``journal`` as they happen, and copy the logs of rounds with problems to ``keep``.
    """
    total = Summary(seed, seconds, pace, sorted(kinds))
    adopt_orphans()
    try:
        with journal.open("w") as file:
            for part in rounds(seed, seconds, backends):
                total.add(part, *_round(part, frozenset(kinds), pace, file, keep / f"round-{part.number}"))
    finally:
        adopt_orphans(False)  # later tests in this process do not expect to get orphans
    return total.as_json()


def _round(
    part: Round, kinds: frozenset[Kind], pace: float, journal: IO[str], keep: Path
) -> tuple[Testbed, int, int]:
    """Run a part of a soak in a directory of its own; return the testbed, the clients judged, and the leaks found."""
    before = Before.now()
    directory = Path(tempfile.mkdtemp(prefix="pympsd-soak-"))
    try:
        testbed = Testbed(directory, users(), journal, part.setup)
        testbed.began = now()
        testbed.note("round", number=part.number, seconds=part.seconds, **asdict(part.setup))
        testbed.prepare()
        speaks = NamedSoak if part.setup.protocol == 3 else Soak
        run = speaks(testbed, part.seed, part.seconds, kinds, pace)
        trio.run(run.run)
        stays = VENDOR_STAYS if part.setup.backend is Backend.VENDOR else STAYS
        if part.setup.protocol == 3:
            stays |= {NAMED_SERVERS}
        leftovers = leaks(before, directory, (*testbed.uids, *hostile_users()), stays=stays)
        for problem in (*_last_words(testbed), *(f"left behind: {leftover}" for leftover in leftovers)):
            testbed.blame(problem)
        if testbed.problems:
            shutil.copytree(directory / "log", keep, dirs_exist_ok=True)
        return testbed, run.judged, len(leftovers)
    finally:
        shutil.rmtree(directory)


def _last_words(testbed: Testbed) -> list[str]:
    if testbed.setup.protocol == 3:
        return []  # its logs are not read
    attached = [life.pid for life in testbed.history.lives if life.attached != FOR_EVER]
    ordered = tuple(f"Protocol violation by server {process.pid}:" for process in testbed.misbehaving)
    problems = judge(testbed.logs, testbed.killed, testbed.forced, attached)
    return [problem for problem in problems if not any(line in problem for line in ordered)]
