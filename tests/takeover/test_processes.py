"""Remaining processes of a session: killed if the session is still the same and they are its user's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from attrs import frozen
from processes import alive, wait_until

from pympsd.service.processes.status import process_end, start_time_of
from pympsd.takeover.servers import kill_session

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
        started = start_time_of(leader.pid)
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
        assert kill_session(leader.pid, os.getuid(), start_time_of(leader.pid) - 1) == []
        assert alive(member)
        os.killpg(leader.pid, signal.SIGKILL)


async def test_a_wait_for_an_end_is_not_ended_by_a_file_that_had_the_same_number() -> None:
    own_end, peer_end = socket.socketpair()
    with own_end, peer_end, subprocess.Popen(["sleep", "600"]) as process:
        copy = os.dup(own_end.fileno())  # as the keeper has one: epoll continues watching the file
        number = own_end.fileno()
        with trio.move_on_after(0):
            await trio.lowlevel.wait_readable(number)
        pidfd = os.pidfd_open(process.pid)
        ended = trio.Event()

        async def wait() -> None:
            await process_end(number)
            ended.set()

        try:
            os.dup2(pidfd, number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                peer_end.close()
                await trio.testing.wait_all_tasks_blocked(cushion=0.05)
                assert not ended.is_set()
                process.kill()
                with trio.fail_after(30):
                    await ended.wait()
        finally:
            process.kill()
            for fd in (copy, pidfd):
                os.close(fd)
