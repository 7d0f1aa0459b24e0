"""Server processes where something is short, or a user cannot be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import trio
import trio.testing

from pympsd.service.dispatcher import Hub
from pympsd.service.processes import children
from pympsd.state_machine.events import SpawnFailed
from pympsd.state_machine.instructions import SpawnServer
from tests.service.conftest import SECONDS, House, bounded

LAST_WORDS = "import sys; sys.stdin.read(); sys.exit(7)"


@bounded
async def test_without_a_descriptor_to_be_had_a_server_that_leaves_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", LAST_WORDS], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None

    def exhausted(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", exhausted)
    monkeypatch.setattr(children, "LEAVE_SECONDS", SECONDS)  # it may only just be starting
    statuses: list[int] = []

    async def reap() -> None:
        statuses.append(await children._reap(process))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap)
        await trio.testing.wait_all_tasks_blocked()
        await process.stdin.aclose()
    assert statuses == [7]


@bounded
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers of other users")
async def test_a_user_that_cannot_be_gets_no_server(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[object] = []
    monkeypatch.setattr(Hub, "feed", lambda _, event: fed.append(event))
    await children.spawn_server(house.hub, SpawnServer(1, 1 << 40, None))
    (failed,) = fed
    assert isinstance(failed, SpawnFailed)
    assert failed.server == 1
    assert failed.reason
