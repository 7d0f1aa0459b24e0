"""A process is its PID and its start: a process with the PID of an earlier one is a different process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.identity import GONE, NO_PROCESS, ProcessKey, key_of, strike, there


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_there_until_it_ends(child: subprocess.Popen[bytes]) -> None:
    process_key = key_of(child.pid)
    assert process_key.started > 0
    assert there(process_key)
    assert strike(process_key, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not there(process_key), "it is a zombie"
    child.wait()
    assert not there(process_key)
    assert key_of(child.pid) == ProcessKey(child.pid, GONE)
    assert not there(key_of(child.pid))
    assert not strike(process_key, signal.SIGKILL)


def test_another_process_of_its_pid_is_not_it_and_is_never_struck(child: subprocess.Popen[bytes]) -> None:
    now = key_of(child.pid)
    before = ProcessKey(child.pid, now.started - 1)
    assert not there(before)
    assert not strike(before, signal.SIGKILL)
    assert there(now)


def test_no_process_never_exists_and_is_never_struck() -> None:
    assert not there(NO_PROCESS)
    assert not strike(NO_PROCESS, signal.SIGKILL)
    assert not there(ProcessKey(os.getpid(), GONE))
