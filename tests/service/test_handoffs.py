"""Clients handed over to the driver's server where descriptors run out, or the keeper is stopped."""

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
        self.taken: list[int] = []

    def take(self, connection: int) -> None:
        self.taken.append(connection)

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


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_keeper_that_does_not_answer_is_given_no_end_of_a_client(is_silent: bool) -> None:
    """In its link the end would outlive the client, and the server would go on counting it."""
    link: Any = Mock()
    dispatcher: Any = Mock()
    dispatcher.keeper.is_silent = is_silent
    handoffs, newcomer = Handoffs(dispatcher, 1, os.getpid()), Newcomer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handoffs.run, link, False)
        handoffs.add(newcomer, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert dispatcher.hold.called is not is_silent
        nursery.cancel_scope.cancel()
    (_, servers), _ = link.tell.call_args
    for end in (*newcomer.taken, servers):
        os.close(end)


async def test_a_server_that_has_ended_since_it_registered_is_not_served() -> None:
    dispatcher: Any = Mock()
    dispatcher.state.servers = {}
    session = VendorServerSession(dispatcher, 1, 0, os.getpid(), Mock())
    await session.serve(Mock(), b"")
    assert session.ended.is_set()
    assert not session.registered.is_set()
