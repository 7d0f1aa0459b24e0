"""The comparison itself: which differences it accepts, and that it accepts no others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.comparison import Comparison
from tests.conformance.correspondence import Correspondence

SERVER = 77
GONE = "Client process {} disconnected"
LINES = ("Server has started", GONE.format(1), GONE.format(2), "Exiting")
OURS = ("Server has started", GONE.format(11), GONE.format(12), "Exiting")


def _log(pid: int, *texts: str) -> list[str]:
    return [f"[2026-01-01 01:16:01.758 Server {pid:5}] {text}" for text in texts]


def _wrong(ours: list[str], **decided: Any) -> str:
    step = {"do": "server.log", "lines": _log(SERVER, *LINES), **decided}
    correspondence = Correspondence(frozenset({1, 2, SERVER}))
    if "some" not in decided:
        # Clients that the steps name have their pairs of PIDs; those of a log that is partly shown may have none.
        assert correspondence.bind(1, 11)
        assert correspondence.bind(2, 12)
    return Comparison(correspondence).of_log(step, ours, [], [])


def test_the_same_story_of_other_processes_is_equal() -> None:
    assert not _wrong(_log(500, *OURS))


@pytest.mark.parametrize(
    "texts",
    [
        OURS[:3],
        (*OURS, "Exiting"),
        ("Exiting", *OURS[1:3], "Server has started"),
        (LINES[0], OURS[1], OURS[1], LINES[3]),
        ("Server has begun", *OURS[1:]),
    ],
)
def test_a_line_less_or_more_or_elsewhere_or_another_differs(texts: tuple[str, ...]) -> None:
    assert _wrong(_log(500, *texts))


def test_only_the_decided_lines_may_be_missing_or_additional() -> None:
    ours = _log(500, OURS[0], OURS[1], "Server goes on")
    decided = {"lacks": [GONE.format(2), "Exiting"], "adds": ["Server goes on"]}
    assert not _wrong(ours, **decided)
    assert "no line says" in _wrong(ours[:2], **decided)
    assert "no line says" in _wrong(ours, **decided | {"lacks": [*decided["lacks"], "Never said"]})
    assert _wrong(_log(500, *OURS, "Server goes on"), **decided)
    assert _wrong(ours, lacks=decided["lacks"])


def test_reordered_is_another_order_of_the_same_lines() -> None:
    ours = _log(500, "Exiting", OURS[1], OURS[2], OURS[0])
    assert _wrong(ours)
    assert not _wrong(ours, reordered=True)
    assert _wrong(ours[1:], reordered=True)
    assert _wrong([*ours, *_log(500, "Exiting")], reordered=True)


def test_of_some_lines_each_is_there_in_its_voices_order() -> None:
    ours = _log(500, LINES[0], "Something between", GONE.format(11), GONE.format(12), GONE.format(13), "Exiting")
    assert _wrong(ours)
    assert not _wrong(ours, some=True)
    assert _wrong(ours[:-1], some=True)
    assert _wrong(_log(500, "Exiting", GONE.format(11), GONE.format(12), LINES[0]), some=True)
    assert "no client of ours is left for 2" in _wrong(_log(500, LINES[0], GONE.format(11), "Exiting"), some=True)


def test_two_threads_of_the_drivers_server_may_speak_in_either_order() -> None:
    worker, client = (
        "Creating worker thread for client {PID: 1, Context ID: 0}",
        "Client {PID: 1, Context ID: 0} connected",
    )
    step = {"do": "server.log", "lines": _log(SERVER, client, worker)}
    for either, wrong in ((True, False), (False, True)):
        correspondence = Correspondence(frozenset({1, SERVER}))
        assert correspondence.bind(1, 11)
        ours = _log(500, worker.replace("PID: 1,", "PID: 11,"), client.replace("PID: 1,", "PID: 11,"))
        assert bool(Comparison(correspondence).of_log({**step, "either": either}, ours, [], [])) is wrong
