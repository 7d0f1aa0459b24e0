"""The recorded grammar, in order, through the command line tool against a live daemon on the recorded machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from processes import DaemonProcess, wait_until

from tests.conformance.this_machine import as_here

HERE = Path(__file__).parent
CASES: Final[list[dict[str, Any]]] = [
    case
    for line in as_here((HERE / "grammar.jsonl").read_text()).splitlines()
    if "stdin" in (case := json.loads(line))
]
DIFFERENCES: Final[list[dict[str, Any]]] = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
MOST: Final = 20
NO_CASES: Final = ("Accepting connection...", "NEW UI", "UI closed", "Starting new server", "NEW SERVER")
"""Beginnings of lines that the recording of a case leaves out; when a server is ready depends on timing."""


def test_the_table_of_differences_is_short_and_names_its_cases() -> None:
    assert len(CASES) == 126
    assert len(DIFFERENCES) < MOST
    assert len({entry["index"] for entry in DIFFERENCES}) == len(DIFFERENCES)
    for entry in DIFFERENCES:
        assert entry.keys() == {"index", "stdin", "reason", "stdout", "log"}
        assert CASES[entry["index"]]["stdin"].startswith(entry["stdin"])
        assert entry["reason"]


def _answer(daemon: DaemonProcess, case: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Give a case's line to the tool; return what a case records of the answer, and standard error."""
    before = len(daemon.log())
    done = daemon.run([], case["stdin"])
    wait_until(lambda: "UI closed" in daemon.log()[before:], "the end of the session")
    gained = [line for line in daemon.log()[before:] if not line.startswith(NO_CASES)]
    assert gained[0].startswith("Cmd:")
    return {"stdout": done.stdout, "exit": done.returncode, "log": gained[1:]}, done.stderr


def _select_expected(case: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    # The recording of a few cases has no log.
    return {"stdout": case["stdout"], "exit": case["exit"], "log": case.get("log", answer["log"])}


def _ours(entry: dict[str, Any], case: dict[str, Any], daemon: DaemonProcess) -> dict[str, Any]:
    name = case["stdin"].split()[0]
    started = [line.split()[3] for line in daemon.log() if line.startswith("Starting new server")]
    server = started[-1] if started else "none"
    log = [text.replace("{name}", name).replace("{server}", server) for text in entry["log"]]
    return {"stdout": entry["stdout"].replace("{name}", name), "exit": 0, "log": log}


@pytest.mark.long
def test_every_case_is_answered_as_recorded_or_as_the_table_says(make_daemon: Callable[..., DaemonProcess]) -> None:
    differences = {entry["index"]: entry for entry in DIFFERENCES}
    wrong, unneeded = [], []
    daemon = None
    for index, case in enumerate(CASES):
        if daemon is None:
            daemon = make_daemon()
            assert daemon.start().returncode == 0
        answer, complaint = _answer(daemon, case)
        assert complaint.count("\n") <= 1, (case["stdin"], complaint)
        as_recorded = answer == _select_expected(case, answer)
        if index in differences:
            # A case that has no recorded log can differ only in its standard output or status.
            unneeded += [case["stdin"]] if as_recorded else []
            as_recorded = answer == _ours(differences[index], case, daemon)
        if not as_recorded:
            wrong.append((index, case["stdin"][:80], answer, _select_expected(case, answer)))
        if case.get("daemon_died"):
            # The recorded daemon died here, so the next case has a new one.
            daemon.stop()
            daemon = None
    assert wrong == []
    assert unneeded == [], "differences that are not needed any more"


def test_a_refused_limit_reports_why_and_changes_nothing(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start().returncode == 0
    daemon.run_command("set_default_device_pinned_mem_limit 0 1025M")
    for value in ("1T", "1K", "1024", "abc", "G", "-1G", "0G", "1.5G", "99999999999G"):
        done = daemon.run([], f"set_default_device_pinned_mem_limit 0 {value}\n")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
        assert repr(value) in done.stderr
    for device in ("7", "-1", "abc", "GPU-1234"):
        done = daemon.run([], f"set_default_device_pinned_mem_limit {device} 1G\n")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
        assert device in done.stderr
    assert daemon.run_command("get_default_device_pinned_mem_limit 0") == "1025M\n"
