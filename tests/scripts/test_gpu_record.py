"""What scripts/test-gpu reports of tests while they run: all that is known when the run is cut short."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.gpu.record import Record

def pytest_configure(config):
    config.pluginmanager.register(Record.of(config, "record"))
"""
TESTS = """
import os
import signal

def test_that_passes():
    pass

def test_that_fails():
    print("what it printed")
    assert 1 == 2, "as it should"

def test_that_never_ends():
    os.write(WRITER, b"!")
    signal.pause()
"""
SECONDS = 60.0


def pytest_in(folder: Path, *arguments: str, **more: tuple[int, ...]) -> subprocess.Popen[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "--rootdir", str(folder)]
    return subprocess.Popen(
        [*command, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
    )  # fmt: skip


@pytest.mark.long
def test_a_run_that_is_killed_has_recorded_what_failed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    (tmp_path / "test_it.py").write_text(TESTS.replace("WRITER", str(writer)))
    with pytest_in(tmp_path, pass_fds=(writer,)) as process:
        os.close(writer)
        assert select.select([reader], [], [], SECONDS)[0], "the last test did not begin"
        assert os.read(reader, 1) == b"!"
        os.close(reader)
        process.send_signal(signal.SIGKILL)
    record = (tmp_path / "record").read_text()
    assert "passed test_it.py::test_that_passes" in record
    assert "FAILED test_it.py::test_that_fails (call)" in record
    assert "AssertionError: as it should" in record
    assert "what it printed" in record
    assert record.endswith("began test_it.py::test_that_never_ends\n")


def test_what_cannot_be_collected_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import nothing_of_that_name\n")
    output, _ = pytest_in(tmp_path).communicate(timeout=SECONDS)
    assert "No module named 'nothing_of_that_name'" in (tmp_path / "record").read_text(), output


@pytest.mark.long
def test_the_summary_does_not_say_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_that_fails():\n    assert 1 == 2, 'as it should'\n")
    output, _ = pytest_in(tmp_path).communicate(timeout=SECONDS)
    assert "FAILED test_it.py::test_that_fails" in output
    assert "= FAILURES =" not in output
    assert "as it should" in (tmp_path / "record").read_text()
