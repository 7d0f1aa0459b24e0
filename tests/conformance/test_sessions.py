"""Replays the recorded sessions from their tables of steps; every step that is not replayed has a reason there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.conformance import extract, logs, this_machine
from tests.conformance.correspondence import Correspondence
from tests.conformance.replay import NAMESPACE, Replay, ReplayDaemon

TABLES: Final = {name: json.loads((extract.HERE / "sessions" / f"{name}.json").read_text()) for name in extract.NAMES}
REPLAYS: Final = {
    f"{name}-{plan['name'].replace(' ', '-')}": (name, plan)
    for name, table in TABLES.items()
    for plan in table["replays"]
}
SHORT: Final = [
    name
    for name in REPLAYS
    if not name.startswith(
        ("several-gpus-daemon-sees", "several-gpus-four", "multiuser-and-limits-connection", "start-up-")
    )
    or name in ("several-gpus-daemon-sees-0,2", "start-up-start-and-second-start", "start-up-percentage-40")
]
"""All replays but two long ones and most variants of a start."""


@pytest.mark.parametrize("name", extract.NAMES)
def test_the_table_is_up_to_date(name: str) -> None:
    assert extract.table(name) == (extract.HERE / "sessions" / f"{name}.json").read_text()


@pytest.mark.parametrize("name", extract.NAMES)
def test_every_step_is_marked_and_what_is_not_equal_has_its_reason(name: str) -> None:
    for step in TABLES[name]["steps"]:
        assert step["mark"] in extract.MARKS
        assert bool(step.get("reason")) == (step["mark"] != "equal"), step


def _find_recorded_pids(steps: list[dict[str, Any]]) -> frozenset[int]:
    pids = {step["pid"] for step in steps if step["do"] == "client"}
    for step in steps:
        if step["do"].endswith(".log"):
            pids |= {entry.pid for entry in logs.entries(step.get("lines", []))}
        for line in step.get("lines", []) if step["do"] == "listing" else []:
            pids |= {int(line.split("'")[1])} if ".pid '" in line else set()
    return frozenset(pids | _find_mentioned(steps))


def _find_mentioned(steps: list[dict[str, Any]]) -> set[int]:
    # Lines of requests do not count: the vendor prints uninitialised memory for their clients' PIDs.
    lines = [line for step in steps for line in step.get("lines", []) if logs.GARBAGE not in line]
    match = [logs.ALSO.match(line.partition("] ")[2]) or logs.CLIENTS.search(line) for line in lines]
    return {int(entry[1] or entry[2]) for entry in match if entry}


@pytest.mark.long(but=SHORT)
@pytest.mark.parametrize(("name", "plan"), REPLAYS.values(), ids=REPLAYS)
def test_a_session_goes_as_recorded(
    name: str, plan: dict[str, Any], make_daemon: Callable[..., ReplayDaemon]
) -> None:
    if reason := this_machine.why_not(plan["name"]):
        pytest.skip(reason)
    recording = (extract.HERE / "recorded" / f"{name}.txt").read_text("utf-8", "surrogateescape")
    whole = extract.parsed(recording)
    # The plan gives a PID to each process that our daemon starts and the recording does not have.
    correspondence = Correspondence(_find_recorded_pids(whole) | frozenset(plan.get("more_pids", [])))
    replay = Replay(plan, make_daemon, correspondence)
    correspondence.words |= {"./client": f"{sys.executable} {this_machine.CLIENT}"}
    correspondence.words |= {NAMESPACE: str(os.stat("/proc/self/ns/pid").st_ino)}
    correspondence.words |= this_machine.names()
    failed = []
    try:
        for step in TABLES[name]["steps"][plan["first"] - 1 : plan["last"]]:
            step = this_machine.played(name, {**whole[step["number"] - 1], **step})
            directory = replay.daemon(step.get("at", 0)).directory
            correspondence.words |= {"$PIPE": str(directory / "pipe"), "$LOG": str(directory / "log")}
            correspondence.words |= {"$DIRECTORY": str(directory)}
            wrong = replay.play(step)
            failed += [f"step {step['number']}: {wrong}"] if wrong else []
    finally:
        replay.close()
    assert not failed, "\n".join(failed)


def test_what_comes_before_a_servers_setup_reaches_it_after(make_daemon: Callable[..., ReplayDaemon]) -> None:
    """A quit before the server is set up is carried out after it; the recorded one came during the set-up."""
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    done = daemon.run([], "start_server -uid 0\nset_default_active_thread_percentage 50\nquit\n")
    assert (done.returncode, done.stdout) == (0, "50.0\n")
    (server,) = [line.split()[3] for line in daemon.log() if line.startswith("Starting new server")]
    assert daemon.log()[-2:] == [f"Server {server} exited with status 0", "Exit with status 0"]
    assert daemon.log("server.log")[-3:] == [
        "Server has been notified to shutdown",
        "Waiting for current clients to finish",
        "Exiting",
    ]
