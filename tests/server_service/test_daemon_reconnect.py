"""A server whose daemon has died: what it reports to the next one, where it connects, and when it gives up."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from attrs import define, field

from pympsd.channel.message_channel import MessageChannel
from pympsd.vocabulary.statuses import ServerStatus
from pympsd.wire import link_messages as link
from pympsd_server.service import daemon_link, daemon_reconnect
from pympsd_server.service.daemon_link import DaemonLink
from pympsd_server.service.daemon_reconnect import DaemonAddress, reconnect

SECONDS = 30


@define
class FakeServer:
    """The server's part that reconnecting needs."""

    link: DaemonLink
    roster: SimpleNamespace = field(factory=lambda: SimpleNamespace(clients={}))
    leaving: bool = False
    ending: bool = False
    log: Any = field(init=False)

    @log.default
    def _to_the_link(self) -> SimpleNamespace:
        return SimpleNamespace(info=lambda event, **fields: self.link.log(event, fields, 0.0))

    def leave_without_daemon(self) -> None:
        """End at once."""
        self.ending = True


@define
class NextDaemon:
    """A daemon's listening socket, and what servers send to it."""

    path: str
    listener: trio.socket.SocketType

    async def accept(self) -> MessageChannel:
        """Accept the next server."""
        with trio.fail_after(SECONDS):
            return MessageChannel((await self.listener.accept())[0])

    async def receive(self, channel: MessageChannel) -> object:
        """Return the next message, None at the end."""
        with trio.fail_after(SECONDS):
            received = await channel.receive_message()
        return None if received is None else received[0]


@pytest.fixture(autouse=True)
def _keep_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_reconnect, "_redirect_stderr", lambda: None)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A server with a client of two contexts, one of them closed, whose daemon has died."""
    ours, theirs = socket.socketpair()
    theirs.close()
    server = FakeServer(DaemonLink(MessageChannel(trio.socket.from_stdlib_socket(ours))))
    server.link.status(ServerStatus.ACTIVE)
    server.link.client_admitted(link.AdmitClient(5, 4105, 500, 500, "train", 0, {}, 99))
    server.link.client_admitted(link.AdmitClient(6, 4106, 500, 500, "gone", 0, {}, 99))
    server.link.context_opened(5, 1, 1, 0)
    server.link.context_opened(5, 2, 2, 1)
    server.link.context_closed(5, 1)
    server.link.client_left(6)
    server.roster.clients[5] = "train"
    yield server
    if not server.link.is_disconnected:
        server.link.channel.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[NextDaemon]:
    """Yield the next daemon."""
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(tmp_path / "control"))
    listener.listen(8)
    yield NextDaemon(str(tmp_path / "control"), listener)
    listener.close()


async def test_it_reports_its_roster_and_what_happened_meanwhile(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_link, "KEPT_RECORDS", 3)
    outcome: list[bool] = []

    async def serve() -> None:
        outcome.append(await reconnect(server, DaemonAddress(os.getuid(), daemon.path), nursery))

    nursery.start_soon(serve)
    channel = await daemon.accept()
    hello = await daemon.receive(channel)
    assert isinstance(hello, link.ServerReturn)
    assert (hello.pid, hello.status, hello.leaving, hello.clients) == (os.getpid(), "ACTIVE", False, 1)
    assert await daemon.receive(channel) == link.ReturningClient(5, 4105, 500, "train", 99, ((2, 2, 1),))
    for number in range(4):
        server.link.log("client_disconnected", {"pid": number}, 1.0)
    # Changes are pushed from now on, but no log records: the daemon may still dismiss the server.
    server.link.context_opened(5, 3, 3, 0)
    assert await daemon.receive(channel) == link.ContextReported(5, 3, 3, 0)
    channel.send(link.ServerAdopted())
    assert await daemon.receive(channel) == link.LogDropped(2)
    kept = [await daemon.receive(channel) for _ in range(4)]
    assert [each.event for each in kept if isinstance(each, link.LogRecord)] == [
        *["client_disconnected"] * 3,
        "server_taken_in",
    ]
    assert outcome == [True]
    server.link.disconnect()
    assert await daemon.receive(channel) is None
    channel.close()


async def test_without_clients_it_ends_at_once(server: FakeServer, nursery: trio.Nursery) -> None:
    server.roster.clients.clear()
    assert not await reconnect(server, DaemonAddress(os.getuid(), "/nonexistent/control"), nursery)
    assert server.ending


async def test_a_dismissed_server_ends_by_itself(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery
) -> None:
    outcome: list[bool] = []

    async def serve() -> None:
        outcome.append(await reconnect(server, DaemonAddress(os.getuid(), daemon.path), nursery))

    nursery.start_soon(serve)
    channel = await daemon.accept()
    channel.send(link.ServerDismissed("other devices"))
    while await daemon.receive(channel) is not None:
        pass
    channel.close()
    assert outcome == [False]
    assert server.ending


async def expect_connects(server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, times: int) -> None:
    """Accept the server's connection ``times`` times without an answer."""
    async with trio.open_nursery() as inner:
        inner.start_soon(reconnect, server, DaemonAddress(os.getuid(), daemon.path), nursery)
        for _ in range(times):
            channel = await daemon.accept()
            assert isinstance(await daemon.receive(channel), link.ServerReturn)
            channel.close()
        inner.cancel_scope.cancel()


async def test_the_descriptor_of_the_lost_link_is_enough(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("dup", "open", "pipe"):
        monkeypatch.setattr(os, name, no_more)
    await expect_connects(server, daemon, nursery, times=1)


async def test_without_a_descriptor_it_tries_again(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, tries = trio.socket.socket, 0

    def the_third(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(*arguments)

    monkeypatch.setattr(trio.socket, "socket", the_third)
    await expect_connects(server, daemon, nursery, times=1)
    assert tries == 3


def test_standard_error_is_redirected_without_a_spare_descriptor() -> None:
    """The server's standard output is /dev/null; its standard error was a pipe of the daemon's."""
    script = (
        "import os, resource\n"
        "from pympsd_server.service.daemon_reconnect import _redirect_stderr\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "_redirect_stderr()\n"
        "os.write(2, b'this is never read')\n"
    )
    with open(os.devnull, "wb") as null:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=null, stderr=subprocess.PIPE, timeout=SECONDS, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


async def test_without_an_answer_it_connects_again(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery
) -> None:
    await expect_connects(server, daemon, nursery, times=3)


async def test_nothing_is_reported_to_another_users_daemon(
    server: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_reconnect, "GRACE_SECONDS", 0.1)
    outcome: list[bool] = []

    async def serve() -> None:
        outcome.append(await reconnect(server, DaemonAddress(os.getuid() + 1, daemon.path), nursery))

    async with trio.open_nursery() as inner:
        inner.start_soon(serve)
        channel = await daemon.accept()
        assert await daemon.receive(channel) is None
        channel.close()
        assert not server.ending
        # Its last client leaves, and no daemon comes.
        server.roster.clients.clear()
    assert outcome == [False]
    assert server.ending
