"""Users who want the daemon for themselves, with real connections and UIDs: what they cost, and who is served.

The bounds are those of docs/security.md.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from operators import Operator
from processes import ClientProcess, DaemonProcess, kill_after, wait_until

from pympsd.vocabulary.shares import BUFFERS

HOSTILE, HONEST = 10001, 10002
PROGRAM = str(Path(__file__).parents[1] / "support" / "hostile_program.py")
ROOT = str(Path(__file__).parents[2])
CONNECTIONS = 1000
MIB = 1 << 20
COST_OF_BUFFERS = 3
"""Bytes of memory that a byte of buffers costs at most, with what malloc adds."""
COST_OF_CONNECTION = 20 << 10

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@contextmanager
def hostile(daemon: DaemonProcess, *kinds: str, count: int = CONNECTIONS, uid: int = HOSTILE) -> Iterator[None]:
    """Let a user try that many connections of each kind; on return all have been tried, and it continues."""
    control = str(daemon.directory / "pipe" / "control")
    program = subprocess.Popen(
        [sys.executable, PROGRAM, control, str(count), *kinds],
        env={"PYTHONPATH": ROOT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=uid,
    )
    with kill_after(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "all tried\n"
        yield


def resident(pid: int, field: str = "VmHWM") -> int:
    """Return the bytes of memory of a process: now (VmRSS), or the most that it has had (VmHWM)."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0]) << 10


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def run_command(daemon: DaemonProcess, uid: int, line: str) -> str:
    """Run a command as a user; return its standard output."""
    done = daemon.run([], f"{line}\n", uid=uid)
    assert done.returncode == 0, done.stderr
    return done.stdout


def count_used(daemon: DaemonProcess, name: str) -> int:
    """Return what the hostile user has of a resource."""
    rows = run_command(daemon, 0, f"share list --uid={HOSTILE} --format=csv,noheader").splitlines()
    return next(int(row.split(",")[3]) for row in rows if row.split(",")[1].strip() == name)


@pytest.mark.long(but=["unresponsive"])
@pytest.mark.parametrize("kind", ["half_frames", "unread", "unresponsive", "idle", "garbage"])
def test_a_thousand_connections_cost_no_more_than_is_documented(
    daemon: DaemonProcess, make_client: Callable[..., ClientProcess], kind: str
) -> None:
    if daemon.uid == 0 and resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4 * CONNECTIONS:
        pytest.fail("this test needs a hard limit of 4,000 open files or more")
    before, opened = resident(daemon.pid, "VmRSS"), descriptors(daemon.pid)

    def list_closed() -> list[str]:
        return [line for line in daemon.log() if f"Closing a connection from user {HOSTILE}: " in line]

    with hostile(daemon, kind):
        if kind in ("half_frames", "unread"):
            wait_until(list_closed, "the end of a connection over the share")
        assert count_used(daemon, "buffers") <= BUFFERS.share
        assert run_command(daemon, HONEST, "ps") == "Server not found\n"
        client = make_client(HONEST).connect()
        client.end()
        assert descriptors(daemon.pid) <= opened + 2 * CONNECTIONS + 100
    wait_until(lambda: count_used(daemon, "connections") == 0, "the end of the hostile user's connections")
    assert count_used(daemon, "buffers") == 0
    most = COST_OF_BUFFERS * BUFFERS.share + COST_OF_CONNECTION * CONNECTIONS
    assert resident(daemon.pid) - before <= most
    assert bool(list_closed()) == (kind in ("half_frames", "unread"))


@pytest.mark.long
def test_users_together_leave_buffers_for_another_and_for_root(daemon: DaemonProcess) -> None:
    control = str(daemon.directory / "pipe" / "control")
    with hostile(daemon, "half_frames", count=40), hostile(daemon, "unread", count=400, uid=HONEST + 1):
        for uid in (HONEST, 0):
            assert run_command(daemon, uid, "ps") == "Server not found\n"
            # A line of 100 kB has to be kept until it is complete.
            long_line = daemon.run([], "x" * 100_000 + "\n", uid=uid)
            assert "Unknown command" in long_line.stdout
        with Operator.at(control) as operator:
            assert operator.run_command("get_server_list") == ""


def test_a_share_is_set_by_an_option(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "--user-share", "buffers=4M,connections=100").returncode == 0
    with hostile(daemon, "half_frames", "idle", count=200):
        assert count_used(daemon, "buffers") <= 4 * MIB
        assert count_used(daemon, "connections") <= 100
        assert run_command(daemon, HONEST, "ps") == "Server not found\n"


@pytest.mark.long
def test_a_hostile_user_of_named_servers_leaves_others_served(make_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = make_daemon()
    assert daemon.start("-d", "-p", "3").returncode == 0
    opened = descriptors(daemon.pid)
    with hostile(daemon, "servers", "namespaces"), hostile(daemon, "half_frames", "unread", count=100, uid=10003):
        wait_until(lambda: count_used(daemon, "servers") > 0, "the hostile user's first server")
        control = str(daemon.directory / "pipe" / "control")
        with Operator.at(control) as operator:
            assert operator.run_command("server create mine") == ""
        assert "mine" in run_command(daemon, HONEST, "server list")
        assert descriptors(daemon.pid) <= opened + 2 * 200 + count_used(daemon, "descriptors") + 100
