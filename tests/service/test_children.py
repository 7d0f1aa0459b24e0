"""Server processes without descriptors, or for an impossible user."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from time_limit import SECONDS, with_limit

from pympsd.service import children
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine.events import SpawnFailed
from pympsd.state_machine.instructions import SpawnServer
from tests.service.conftest import RunningDaemon

EXITS_WITH_7 = "import sys; sys.stdin.read(); sys.exit(7)"


@with_limit
async def test_without_descriptors_the_end_of_a_leaving_server_is_still_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", EXITS_WITH_7], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None

    def fail_exhausted(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", fail_exhausted)
    monkeypatch.setattr(children, "LEAVE_SECONDS", SECONDS)  # it may only just be starting
    statuses: list[int] = []

    async def reap() -> None:
        statuses.append(await children.reap(process))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap)
        await trio.testing.wait_all_tasks_blocked()
        await process.stdin.aclose()
    assert statuses == [7]


@with_limit
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers of other users")
async def test_an_impossible_user_gets_no_server(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[object] = []
    monkeypatch.setattr(Dispatcher, "feed", lambda _, event: fed.append(event))
    await children.spawn_server(daemon.dispatcher, SpawnServer(1, 1 << 40, None))
    (failed,) = fed
    assert isinstance(failed, SpawnFailed)
    assert failed.server == 1
    assert failed.reason


@with_limit
async def test_the_lines_of_a_servers_standard_error_are_limited(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dispatcher, "feed", lambda *_: None)
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", "import os; os.write(2, b'line\\n' * 5000)"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    session = ServerSession(1, 0, process.pid, partial(children.kill, process.pid))
    await children.attend(
        daemon.dispatcher, SpawnServer(1, 0, None), session, process, partial(children.wait_for_end, process.pid)
    )
    assert (tmp_path / "server.log").read_text().count("] line\n") == children.MAX_STDERR_LINES
