"""Clients handed over to the driver's server where descriptors run out, or the keeper is stopped."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from pympsd.service.sessions.driver.handoffs import Handoffs, Offer
from pympsd.service.sessions.driver.server import DriverServerSession
from pympsd.wire.driver.server_commands import NEW_CLIENT


class NewClient:
    """A client that has its end of its connection, or never takes it."""

    peer = Mock(uid=0)
    offered_at = 0.0

    def __init__(self, client: int, *, is_ready: bool) -> None:
        self.client, self.is_ready = client, is_ready
        self.offer = Offer.make(DISPATCHER, client)

    def take(self) -> Offer:
        return self.offer

    def wait_again(self) -> None: ...


DISPATCHER: Any = Mock()


def test_out_of_descriptors_an_offer_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(socket.socket, "setsockopt", Mock(side_effect=OSError(errno.EMFILE, "no more")))
    with pytest.raises(OSError, match="no more"):
        Offer.make(DISPATCHER, 1)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_keeper_that_does_not_answer_is_given_no_end_of_a_client(is_silent: bool) -> None:
    """In its link the end would outlive the client, and the server would continue counting it."""
    link: Any = Mock()
    dispatcher: Any = Mock()
    dispatcher.keeper.is_silent = is_silent
    handoffs, new_client = Handoffs(dispatcher, 1, os.getpid()), NewClient(1, is_ready=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handoffs.run, link, False)
        handoffs.add(new_client, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert dispatcher.keeper.hold.called is not is_silent
        nursery.cancel_scope.cancel()
    (_, servers), _ = link.send.call_args
    os.close(servers)


async def test_a_client_that_takes_nothing_is_in_nobodys_way() -> None:
    link: Any = Mock()
    dispatcher: Any = Mock()
    handoffs, late, next_one = (
        Handoffs(dispatcher, 1, os.getpid()),
        NewClient(1, is_ready=False),
        NewClient(2, is_ready=True),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handoffs.run, link, False)
        handoffs.add(late, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert not link.send.called
        handoffs.add(next_one, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert link.send.call_args[0] == (NEW_CLIENT, next_one.offer.servers)
        assert handoffs.clients() == (1,)
        nursery.cancel_scope.cancel()
    os.close(next_one.offer.servers)
    late.offer.close()


@pytest.mark.parametrize("has_it", [False, True])
async def test_a_server_that_an_earlier_daemon_gave_a_client_is_not_given_it_again(has_it: bool) -> None:
    """That daemon was killed before it could report it to the keeper."""
    link: Any = Mock()
    new_client = NewClient(1, is_ready=True)
    new_client.offer.is_inherited = True
    servers = new_client.offer.servers
    with subprocess.Popen(["sleep", "1000"], pass_fds=[servers] if has_it else []) as server:
        handoffs = Handoffs(Mock(), 1, server.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handoffs.run, link, False)
            handoffs.add(new_client, 0)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        server.kill()
    assert link.send.called is not has_it
    assert link.ask.called
    if not has_it:
        os.close(servers)


async def test_a_server_that_has_ended_since_it_registered_is_not_served() -> None:
    dispatcher: Any = Mock()
    dispatcher.state.servers = {}
    session = DriverServerSession(dispatcher, 1, 0, os.getpid(), Mock())
    await session.serve(Mock(), b"")
    assert session.ended.is_set()
    assert not session.registered.is_set()
