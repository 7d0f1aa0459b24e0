"""The server's side of its link while nobody reads: it stays, and reports at the end what became of the clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
import trio
from time_limit import with_limit

from pympsd.channel.message_channel import MessageChannel
from pympsd.vocabulary.results import ServerStatus
from pympsd.wire import link_messages as link
from pympsd_server.service import daemon_link
from pympsd_server.service.daemon_link import DaemonLink

Message = TypeVar("Message")
Ends = tuple[DaemonLink, MessageChannel]


@pytest.fixture
async def ends(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ends]:
    """A link of two clients, of which one has a context, and the daemon's end, which takes little."""
    monkeypatch.setattr(daemon_link, "MAX_CLIENT_TABLE_BYTES", 2000)
    monkeypatch.setattr(daemon_link, "MAX_LOG_BYTES", 1000)
    own_end, peer_end = trio.socket.socketpair(type=socket.SOCK_SEQPACKET)
    server, daemon = DaemonLink(MessageChannel(peer_end, fds_allowed=2)), MessageChannel(own_end)
    nursery.start_soon(server.run_sender)
    for client in (5, 6):
        server.client_admitted(link.AdmitClient(client, 4000 + client, 500, "train", 99, 500, 0, {}))
    server.context_opened(5, 1, 1, 0)
    yield server, daemon
    daemon.close()
    server.disconnect()


async def receive(daemon: MessageChannel) -> object:
    """Return the next message."""
    received = await daemon.receive_message()
    assert received is not None
    return received[0]


async def receive_first(daemon: MessageChannel, kind: type[Message]) -> Message:
    """Return the next message of a kind; those before it are dropped."""
    while not isinstance(message := await receive(daemon), kind):
        pass
    return message


def fill(server: DaemonLink) -> None:
    """Log until nothing more is taken."""
    while server.channel.queued_bytes <= daemon_link.MAX_LOG_BYTES:
        server.log("client_disconnected", {"pid": 1}, 0.0)


def churn(server: DaemonLink, contexts: int, left: int) -> None:
    """Fill the link; open and close a client's contexts, far more than it would hold, and open one of the other's."""
    fill(server)
    for context in range(2, 2 + contexts):
        server.context_opened(5, context, context, 0)
        server.context_closed(5, context)
    server.context_opened(6, left, 1, 1)


@with_limit
async def test_contexts_that_come_and_go_without_a_daemon_do_not_break_the_link(ends: Ends) -> None:
    server, daemon = ends
    churn(server, 200_000, left=300_000)
    server.context_closed(5, 1)
    server.client_left(5)
    server.status(ServerStatus.FAULT)
    assert server.channel.queued_bytes < 2 * daemon_link.MAX_CLIENT_TABLE_BYTES
    client_table: dict[int, set[int]] = {5: set(), 6: set()}
    while client_table != {6: {300_000}}:
        match await receive(daemon):
            case link.ContextReported(client, context, _, _):
                client_table[client].add(context)
            case link.ContextGone(client, context):
                client_table[client].remove(context)
            case link.ClientGone(client):
                assert not client_table.pop(client), "its contexts went before it"
    # Then changes are sent as they come.
    server.context_closed(6, 300_000)
    while (message := await receive(daemon)) != link.ContextGone(6, 300_000):
        assert isinstance(message, link.LogRecord | link.LogDropped)


@with_limit
async def test_a_report_contains_the_clients_and_contexts_of_unsent_messages(ends: Ends) -> None:
    server, daemon = ends
    churn(server, 2000, left=3000)
    server.report(7, leaving=True)
    server.context_opened(6, 3001, 2, 1)
    message = await receive_first(daemon, link.ServerReturn)
    assert (message.token, message.leaving, message.clients) == (7, True, 2)
    assert await receive(daemon) == link.ReturningClient(5, 4005, 500, "train", 99, ((1, 1, 0),))
    assert await receive(daemon) == link.ReturningClient(6, 4006, 500, "train", 99, ((3000, 1, 1),))
    assert await receive(daemon) == link.ContextReported(6, 3001, 2, 1)


@with_limit
async def test_log_records_beyond_the_limit_are_counted(ends: Ends) -> None:
    server, daemon = ends
    fill(server)
    for _ in range(3):
        server.log("client_disconnected", {"pid": 2}, 0.0)
    while server.channel.queued_bytes > daemon_link.MAX_LOG_BYTES:
        await receive(daemon)
    server.log("client_disconnected", {"pid": 3}, 0.0)
    assert await receive_first(daemon, link.LogDropped) == link.LogDropped(3)
    assert await receive(daemon) == link.LogRecord("client_disconnected", {"pid": 3}, 0.0)


@with_limit
async def test_a_report_longer_than_a_packet_is_received_whole(ends: Ends) -> None:
    server, daemon = ends
    for context in range(10_000, 20_000):
        server.context_opened(5, context, context, 0)
    server.report(1, leaving=False)
    await receive_first(daemon, link.ServerReturn)
    message = await receive(daemon)
    assert isinstance(message, link.ReturningClient)
    assert len(message.contexts) == 10_001
