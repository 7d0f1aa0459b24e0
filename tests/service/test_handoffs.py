"""Clients handed over to the driver's server where descriptors run out."""

from __future__ import annotations

import errno
import os
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from pympsd.service.sessions.vendor.handoffs import Handoffs
from pympsd.service.sessions.vendor.server import VendorServerSession


class Newcomer:
    """A client that keeps the error it is refused with."""

    client = 1
    peer = Mock(uid=0)

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.failed = trio.Event()

    def take(self, connection: int) -> None: ...

    def wait_again(self) -> None: ...

    def fail(self, error: OSError) -> None:
        self.error = error
        self.failed.set()


async def test_out_of_descriptors_for_the_copy_it_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    link: Any = Mock()
    dispatcher: Any = Mock()
    handoffs, newcomer = Handoffs(dispatcher, 1, os.getpid()), Newcomer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handoffs.run, link, False)
        await trio.testing.wait_all_tasks_blocked()
        before = os.listdir("/proc/self/fd")
        monkeypatch.setattr(os, "dup", refuse)
        handoffs.add(newcomer, 0)
        with trio.fail_after(30):
            await newcomer.failed.wait()
        assert os.listdir("/proc/self/fd") == before
        nursery.cancel_scope.cancel()
    assert newcomer.error is not None
    assert newcomer.error.errno == errno.EMFILE
    assert not link.mock_calls


async def test_a_server_that_has_ended_since_it_registered_is_not_served() -> None:
    dispatcher: Any = Mock()
    dispatcher.state.servers = {}
    session = VendorServerSession(dispatcher, 1, 0, os.getpid(), Mock())
    await session.serve(Mock(), b"")
    assert session.ended.is_set()
    assert not session.registered.is_set()
