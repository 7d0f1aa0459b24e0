"""Clients that are admitted: the daemon sees their processes' ends itself, and each costs few descriptors."""

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

from pympsd.channel.awaited import MessageChannel
from pympsd.service import listeners
from pympsd.service.files.state_file import StateFile, device_keys
from pympsd.service.sessions import server as server_session
from pympsd.service.sessions.adoption import KnownProcess, inherit
from pympsd.service.sessions.peers import KnownPeer
from pympsd.service.sessions.server import ServerSession
from pympsd.state_machine import events
from pympsd.state_machine.persistent_state import PersistentServer, PersistentState
from pympsd.vocabulary.identities import Peer
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.versions import Versions
from tests.service.conftest import Caller, House, bounded

ME = os.getpid()
HELLO = messages.ClientHello(Versions(), 1, "told", 2, {})


class Process:
    """Nobody's: what a server session would kill."""

    def kill(self) -> None:
        """Do nothing."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as running:
        yield running
        running.kill()


@pytest.fixture
def at_the_door(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knocks is the process, as far as its pidfd goes."""

    def with_pidfd(_: socket.socket, peer: Peer) -> KnownPeer:
        return KnownPeer(peer, os.pidfd_open(process.pid))

    monkeypatch.setattr(listeners, "with_pidfd", with_pidfd)


def pidfds() -> int:
    """Return how many pidfds this process has."""
    links = (Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum(path.is_symlink() and "pidfd" in os.readlink(path) for path in links)


async def told(channel: MessageChannel) -> link.AdmitClient:
    """Take the next client as a server does, without using what comes along."""
    received = await channel.receive_message()
    assert received is not None
    message, fds = received
    assert isinstance(message, link.AdmitClient)
    for fd in fds:
        os.close(fd)
    return message


async def serve(house: House) -> MessageChannel:
    """Have a server that is ready, without a process; return its end of the link."""
    (spawn,) = house.spawned
    ours, theirs = trio.socket.socketpair()
    session = ServerSession(spawn.server, spawn.uid, 847, Process(), MessageChannel(ours))

    async def run() -> None:
        try:
            await session.run(house.hub)
        finally:
            session.channel.close()
        house.hub.feed(events.ServerExited(spawn.server, -9))

    house.hub.servers[spawn.server] = session
    house.hub.nursery.start_soon(run)
    house.hub.feed(events.ServerSpawned(spawn.server, 847))
    house.hub.feed(events.StatusPushed(spawn.server, "ACTIVE"))
    return MessageChannel(theirs, fds_allowed=2)


async def knock(house: House) -> Caller:
    """Come as a client."""
    caller = await house.connect()
    await caller.say(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked()
    return caller


async def answer(caller: Caller) -> object:
    """Return the daemon's answer to a client, who then leaves with what came along."""
    channel = MessageChannel(caller.sock, fds_allowed=1)
    received = await channel.receive_message()
    assert received is not None
    for fd in received[1]:
        os.close(fd)
    channel.close()
    return received[0]


async def until_ended(house: House, client: int) -> None:
    """Wait until the mind knows that a client's process has ended."""
    (server,) = house.hub.mind.servers.values()
    while not server.clients[client].ended:
        await trio.lowlevel.checkpoint()


@pytest.mark.usefixtures("at_the_door")
@bounded
async def test_the_end_of_an_admitted_clients_process_is_seen_without_its_server(
    house: House, process: subprocess.Popen[bytes]
) -> None:
    before = pidfds()
    await knock(house)
    channel = await serve(house)
    client = (await told(channel)).client
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before + 1, "the one that was opened at the door, and no other"
    (server,) = house.hub.mind.servers.values()
    assert not server.clients[client].ended
    process.kill()
    await until_ended(house, client)
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before
    channel.close()


@pytest.mark.parametrize("end", ["it is gone", "the server ends"])
@pytest.mark.usefixtures("at_the_door")
@bounded
async def test_a_client_that_its_server_has_done_with_is_watched_no_more(house: House, end: str) -> None:
    before = pidfds()
    await knock(house)
    channel = await serve(house)
    client = (await told(channel)).client
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


@pytest.mark.usefixtures("at_the_door")
@bounded
async def test_where_descriptors_are_few_it_is_left_to_the_server(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_session, "share_of_descriptors", lambda _: 2)
    before = pidfds()
    await knock(house)
    channel = await serve(house)
    for _ in range(2):
        await told(channel)
        await knock(house)
    await told(channel)
    await trio.testing.wait_all_tasks_blocked()
    (server,) = house.hub.mind.servers.values()
    assert (len(server.clients), pidfds()) == (3, before + 2)
    channel.close()


@bounded
async def test_a_server_that_takes_no_clients_costs_only_so_many_descriptors(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    await knock(house)
    channel = await serve(house)
    (server,) = house.hub.servers.values()
    server.channel.send_raw(bytes(1 << 20))  # the socket is full: the server does not read
    answers: list[object] = []
    while not answers or not isinstance(answers[-1], messages.Refused):
        assert len(answers) < 20
        answers.append(await answer(await knock(house)))
    assert answers[-1] == messages.Refused(
        805, f"no session can be made: the server of user {os.geteuid()} takes no clients: it is stopped or stuck"
    )
    assert server.channel.queued_descriptors == 16
    assert all(isinstance(answer, messages.SessionGranted) for answer in answers[:-1])
    (known,) = house.hub.mind.servers.values()
    assert len(known.clients) == len(answers), "with the first one, without the one that was refused"
    assert house.sentences()[-1].startswith(f"Refusing client {ME} from user {os.geteuid()}: no session can be made")
    channel.close()
    await trio.testing.wait_all_tasks_blocked()


# --- of a daemon before


def left_behind(house: House, tmp_path: Path) -> None:
    """A daemon has died that had one server: this process."""
    server = PersistentServer(1, ME, 0, 100.0, {})
    StateFile(str(tmp_path), device_keys(house.hub.mind.devices), house.hub.log).keep(
        PersistentState(servers=(server,))
    )
    inherit(house.hub, str(tmp_path))


async def returns(house: House, *pids: int) -> Caller:
    """Come back as a server with clients of these PIDs, numbered from 1."""
    told = [link.ReturningClient(number, pid, 0, "train", 99, ()) for number, pid in enumerate(pids, 1)]
    caller = await house.connect()
    hello = link.ServerReturn(Versions(), ME, "ACTIVE", False, len(told))
    await caller.say(b"".join(map(messages.encode, (hello, *told))))
    assert await caller.hear() is not None
    return caller


@bounded
async def test_the_clients_of_a_server_that_returns_are_watched_by_their_pids(
    house: House, tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)
    with subprocess.Popen([sys.executable, "-c", ""]) as over:
        pass
    left_behind(house, tmp_path)
    before = pidfds()
    # One that lives, one that has ended, two that no process can be.
    await returns(house, process.pid, over.pid, 0, 1 << 40)
    await trio.testing.wait_all_tasks_blocked()
    (server,) = house.hub.mind.servers.values()
    assert [client.ended for client in server.clients.values()] == [False, True, False, False]
    assert pidfds() == before + 1
    os.kill(process.pid, signal.SIGKILL)
    await until_ended(house, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert pidfds() == before
    assert not any("defect" in line for line in house.sentences())
