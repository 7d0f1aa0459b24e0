"""Admitted clients: the daemon itself sees their processes end, and each costs few descriptors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from time_limit import with_limit

from pympsd.channel.message_channel import MessageChannel
from pympsd.service.processes import fd_quota
from pympsd.service.processes.peers import KnownPeer
from pympsd.service.sessions import conversation
from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine import events
from pympsd.takeover.servers import KnownProcess
from pympsd.takeover.state.records import PersistentServer
from pympsd.vocabulary.identities import Peer
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.messages import Versions
from tests.service.conftest import Caller, RunningDaemon

ME = os.getpid()
HELLO = messages.ClientHello(Versions(), 1, "reported", 2, {})


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as running:
        yield running
        running.kill()


@pytest.fixture
def client_is_process(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every client that connects the pidfd of ``process``."""

    def open_pidfd(_: socket.socket, peer: Peer) -> KnownPeer:
        return KnownPeer(peer, os.pidfd_open(process.pid))

    monkeypatch.setattr(conversation, "open_pidfd", open_pidfd)


def pidfds() -> int:
    """Return the number of pidfds this process has."""
    links = (Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum(path.is_symlink() and "pidfd" in os.readlink(path) for path in links)


async def receive_client(channel: MessageChannel) -> link.AdmitClient:
    """Receive the next client as a server does; close its descriptors."""
    received = await channel.receive_message()
    assert received is not None
    message, fds = received
    assert isinstance(message, link.AdmitClient)
    for fd in fds:
        os.close(fd)
    return message


async def serve(daemon: RunningDaemon) -> MessageChannel:
    """Add a ready server without a process; return its end of the link."""
    (spawn,) = daemon.spawned
    own_end, peer_end = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = ServerSession(spawn.server, spawn.uid, 847, lambda: None, MessageChannel(own_end))

    async def run() -> None:
        try:
            await session.run(daemon.dispatcher)
        finally:
            session.channel.close()
        daemon.dispatcher.feed(events.ServerExited(spawn.server, -9))

    daemon.dispatcher.sessions.servers[spawn.server] = session
    daemon.dispatcher.nursery.start_soon(run)
    daemon.dispatcher.feed(events.ServerSpawned(spawn.server, 847))
    daemon.dispatcher.feed(events.StatusPushed(spawn.server, "ACTIVE"))
    return MessageChannel(peer_end, fds_allowed=2)


async def connect_client(daemon: RunningDaemon) -> Caller:
    """Connect as a client."""
    caller = await daemon.connect()
    await caller.send(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked()
    return caller


async def answer(caller: Caller) -> object:
    """Return the daemon's answer to a client; then disconnect it."""
    channel = MessageChannel(caller.sock, fds_allowed=1)
    received = await channel.receive_message()
    assert received is not None
    for fd in received[1]:
        os.close(fd)
    channel.close()
    return received[0]


async def until_ended(daemon: RunningDaemon, client: int) -> None:
    """Wait until the state machine knows that a client's process has ended."""
    (server,) = daemon.dispatcher.state.servers.values()
    while not server.clients[client].ended:
        await trio.lowlevel.checkpoint()


@pytest.mark.usefixtures("client_is_process")
@with_limit
async def test_the_daemon_sees_the_end_of_an_admitted_clients_process_without_its_server(
    daemon: RunningDaemon, process: subprocess.Popen[bytes]
) -> None:
    before = pidfds()
    await connect_client(daemon)
    channel = await serve(daemon)
    client = (await receive_client(channel)).client
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before + 1, "only the one that was opened on connect"
    (server,) = daemon.dispatcher.state.servers.values()
    assert not server.clients[client].ended
    process.kill()
    await until_ended(daemon, client)
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before
    channel.close()


@pytest.mark.parametrize("end", ["it is gone", "the server ends"])
@pytest.mark.usefixtures("client_is_process")
@with_limit
async def test_a_client_that_is_gone_from_its_server_is_no_longer_watched(daemon: RunningDaemon, end: str) -> None:
    before = pidfds()
    await connect_client(daemon)
    channel = await serve(daemon)
    client = (await receive_client(channel)).client
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before + 1
    if end == "it is gone":
        channel.send(link.ClientGone(client))
    else:
        channel.close()
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before
    if end == "it is gone":
        channel.close()


@pytest.mark.usefixtures("client_is_process")
@with_limit
async def test_with_few_descriptors_only_the_server_reports_the_end(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fd_quota, "fd_quota", lambda _: 2)
    before = pidfds()
    await connect_client(daemon)
    channel = await serve(daemon)
    for _ in range(2):
        await receive_client(channel)
        await connect_client(daemon)
    await receive_client(channel)
    await trio.testing.wait_all_tasks_blocked()
    (server,) = daemon.dispatcher.state.servers.values()
    assert (len(server.clients), pidfds()) == (3, before + 2)
    channel.close()


@with_limit
async def test_a_server_that_accepts_no_clients_uses_a_limited_number_of_descriptors(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    await connect_client(daemon)
    channel = await serve(daemon)
    (server,) = daemon.dispatcher.sessions.servers.values()
    server.channel.send_raw(bytes(1 << 20))  # the socket is full: the server does not read
    answers: list[object] = []
    while not answers or not isinstance(answers[-1], messages.Refused):
        assert len(answers) < 20
        answers.append(await answer(await connect_client(daemon)))
    assert answers[-1] == messages.Refused(
        805, f"no session can be made: the server of user {os.geteuid()} accepts no clients: it is stopped or stuck"
    )
    assert server.channel.queued_descriptors == 16
    assert all(isinstance(answer, messages.SessionGranted) for answer in answers[:-1])
    (entry,) = daemon.dispatcher.state.servers.values()
    assert len(entry.clients) == len(answers), "with the first one, without the refused one"
    assert daemon.sentences()[-1].startswith(f"Refusing client {ME} from user {os.geteuid()}: no session can be made")
    channel.close()
    await trio.testing.wait_all_tasks_blocked()


# --- of an earlier daemon


@with_limit
async def test_the_clients_of_a_server_that_returns_are_watched_by_their_pids(
    daemon: RunningDaemon, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    daemon.save_predecessor(PersistentServer(1, ME, 0, 100.0, {}))
    (server_end,) = daemon.take_over(1)
    before = pidfds()
    # One that lives, one that has ended, and two PIDs that no process can have.
    pids = (process.pid, ended.pid, 0, 1 << 40)
    clients = (link.ReturningClient(number, pid, 0, "train", 99, ()) for number, pid in enumerate(pids, 1))
    await server_end.report(ME, *clients)
    assert await server_end.message() == link.ServerAdopted()
    await trio.testing.wait_all_tasks_blocked()
    (server,) = daemon.dispatcher.state.servers.values()
    assert [client.ended for client in server.clients.values()] == [False, True, False, False]
    assert pidfds() == before + 1
    os.kill(process.pid, signal.SIGKILL)
    await until_ended(daemon, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before
    assert not any("internal error" in line for line in daemon.sentences())
