"""Tests that run in a process of their own (the contract's, on a GPU) among others that do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
import os
import pytest
from tests.backends.contract.children import reports_from_child

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if "child" not in item.name:
        return None
    for report in reports_from_child(item, nextitem, lambda: os.environ.update(PREPARED="yes")):
        item.ihook.pytest_runtest_logreport(report=report)
    return True

@pytest.fixture(scope="module")
def shared(request):
    yield os.getpid()
    process = "tester" if os.environ["TESTER"] == str(os.getpid()) else "child"
    with open("ends", "a") as ends:
        print(request.module.__name__, process, file=ends)

def pytest_sessionstart(session):
    os.environ["TESTER"] = str(os.getpid())
"""
FIRST = """
import os

def test_here(shared):
    assert shared == os.getpid()

def test_here_again(shared):
    assert "PREPARED" not in os.environ

def test_child(shared):
    assert shared != os.getpid()  # what was set up before the fork is there still
    assert os.environ.pop("PREPARED") == "yes"
"""
SECOND = """
import os

def test_child_of_another_file(shared):
    assert shared == os.getpid()

def test_child_that_fails():
    assert 1 == 2, "as it should"

def test_child_that_ends():
    os._exit(3)
"""
THIRD = """
def test_here_in_a_third_file(shared):
    pass

def test_child_at_the_end():
    pass
"""


def test_tests_of_an_own_process_take_turns_with_others(tmp_path: Path) -> None:
    """Each sets up and tears down what it needs, whichever process the tests before it ran in."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number, text in enumerate((FIRST, SECOND, THIRD)):
        (tmp_path / f"test_{number}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    how = dict(re.findall(r"::(\w+) (PASSED|FAILED|ERROR)", done.stdout))
    wrong = {name for name, outcome in how.items() if outcome != "PASSED"}
    assert wrong == {"test_child_that_fails", "test_child_that_ends"}, done.stdout
    assert len(how) == 8, done.stdout
    assert "as it should" in done.stdout
    assert "ended with wait status 0x300" in done.stdout
    ends = [tuple(line.split()) for line in (tmp_path / "ends").read_text().splitlines()]
    assert ends == [("test_0", "tester"), ("test_1", "child"), ("test_2", "tester")]
