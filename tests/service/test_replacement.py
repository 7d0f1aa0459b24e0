"""--replace where the daemon ends just then by itself: there is nobody to tell, and its place is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pympsd.service import replacement
from pympsd.service.replacement import CannotReplace, replace
from pympsd.vocabulary import files

HOLD = """
import sys
from pympsd.service.pipe_directory import PipeDirectory
claimed = PipeDirectory.claim(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a pipe directory, and which the pid file names."""
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        (tmp_path / files.PID).write_text(str(process.pid))
        yield process
        process.kill()


@pytest.mark.parametrize("reaped", [True, False])
def test_a_daemon_that_ends_before_it_is_checked_is_gone(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaped: bool
) -> None:
    check = replacement._check

    def ends_first(folder: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            holder.wait()
        check(folder, pid)

    monkeypatch.setattr(replacement, "_check", ends_first)
    replace(str(tmp_path)).leave()


def test_one_that_ends_after_the_check_is_gone_too(
    holder: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = replacement._check

    def ends_then(folder: str, pid: int) -> None:
        check(folder, pid)
        holder.kill()
        holder.wait()

    monkeypatch.setattr(replacement, "_check", ends_then)
    replace(str(tmp_path)).leave()


def test_one_that_lives_and_is_not_the_daemon_is_left_alone(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / files.PID).write_text(str(os.getppid()))
    with pytest.raises(CannotReplace, match="is not the daemon that runs"):
        replace(str(tmp_path))
    assert holder.poll() is None
