"""Remaining processes of a session: killed if the session is still the same and they are its user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from attrs import frozen
from processes import alive, wait_until

from pympsd.service.processes.process_sessions import kill_session
from pympsd.service.processes.status import started_at

LEADER = """
import os, signal, sys
if os.fork() == 0:
    if sys.argv[1:] == ["other"]:
        os.setgid(10001)
        os.setuid(10001)
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


@frozen
class Left:
    """A leader that has ended and been reaped, and the stopped process it left."""

    leader: int
    started: int
    member: int


@pytest.fixture
def left(request: pytest.FixtureRequest) -> Iterator[Left]:
    words = [sys.executable, "-c", LEADER, *getattr(request, "param", ())]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        started = started_at(leader.pid)
        os.kill(member, signal.SIGSTOP)
        leader.kill()
        leader.wait()
        yield Left(leader.pid, started, member)
        if alive(member):
            os.kill(member, signal.SIGKILL)


def test_a_remaining_process_is_killed_even_if_stopped(left: Left) -> None:
    assert kill_session(left.leader, os.getuid(), left.started) == [left.member]
    wait_until(lambda: not alive(left.member), "its end")


@pytest.mark.parametrize("left", [("other",)], indirect=True)
def test_another_users_process_is_left_alone(left: Left) -> None:
    assert kill_session(left.leader, os.getuid(), left.started) == []
    assert alive(left.member)


def test_no_process_is_killed_if_the_session_id_is_in_use_again() -> None:
    words = [sys.executable, "-c", LEADER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        assert kill_session(leader.pid, os.getuid(), started_at(leader.pid) - 1) == []
        assert alive(member)
        os.killpg(leader.pid, signal.SIGKILL)
