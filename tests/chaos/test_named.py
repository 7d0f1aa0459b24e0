"""The judge of a round of protocol 3: which errors of a client are explained, and which successes are wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.chaos import testbed
from tests.chaos.history import Life, Step
from tests.chaos.named import Change, NamedSoak
from tests.chaos.schedule import DEFAULT_KINDS, NAMED, ClientPlan

UIDS = (100, 101, 102)
THERE = frozenset({("a", "default"), ("a", "hi"), ("b", "default")})


@pytest.fixture
def judge(tmp_path: Path) -> NamedSoak:
    """Return the judge of a round that has the places THERE from 2 s on; from 10 to 11 s, a/hi is deleted."""
    running = NamedSoak(testbed.Testbed(tmp_path, UIDS, io.StringIO(), NAMED), 1, 60, DEFAULT_KINDS)
    running.changes = [
        Change(1, THERE, 2, THERE),
        Change(10, frozenset({("a", "hi")}), 11, THERE - {("a", "hi")}),
    ]
    return running


@pytest.mark.parametrize(
    ("place", "uid", "step", "why"),
    [
        ("a/hi", 100, ("init", 5, 0), ""),
        ("a/hi", 100, ("init", 5, 805), "has no cause"),
        ("a/hi", 100, ("init", 10.5, 805), ""),
        ("a/hi", 100, ("copies", 10.5, 810), ""),
        ("a", 100, ("copies", 10.5, 810), "has no cause"),
        ("b/default", 101, ("copies", 10.5, 806), "has no cause"),
        ("a/hi", 100, ("copies", 30, 0), "the namespace was not there"),
        ("a/hi", 100, ("init", 30, 807), ""),
        ("c/lo", 102, ("init", 5, 0), "the namespace was not there"),
        ("a", 101, ("init", 5, 800), ""),
        ("a", 101, ("init", 5, 0), "it is user 100's"),
        ("a", 100, ("init", 5, 800), "has no cause"),
        ("", 100, ("init", 5, 805), "has no cause"),
    ],
)
def test_the_judge_explains_each_step_as_listed(
    judge: NamedSoak, place: str, uid: int, step: tuple[str, float, int], why: str
) -> None:
    name, began, code = step
    folder = str(judge.testbed.directory / "pipe" / place)
    life = Life(ClientPlan(0, 1, 0, "copies", (0,), 1, 1, (("CUDA_MPS_PIPE_DIRECTORY", folder),)), 7, uid, began)
    life.status, life.ended = 0, began + 1
    life.steps.append(Step(name, began, began + 0.1, 0, 1, code))
    problems = list(judge.problems(life))
    assert len(problems) == bool(why)
    assert why in "".join(problems)
