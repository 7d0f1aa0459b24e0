"""A server whose daemon has died: what it remembers, at which door it knocks, and when it gives up."""

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
from pympsd_server.service.daemon_reconnect import Door, serve_on

SECONDS = 30


@define
class FakeServer:
    """What an orphan needs of its server."""

    link: DaemonLink
    roster: SimpleNamespace = field(factory=lambda: SimpleNamespace(clients={}))
    leaving: bool = False
    ending: bool = False
    log: Any = field(init=False)

    @log.default
    def _to_the_link(self) -> SimpleNamespace:
        return SimpleNamespace(info=lambda event, **fields: self.link.log(event, fields, 0.0))

    def orphaned(self) -> None:
        """It goes."""
        self.ending = True


@define
class NextDaemon:
    """A listening socket, and what servers say at it."""

    path: str
    listener: trio.socket.SocketType

    async def accept(self) -> MessageChannel:
        """Take the next server."""
        with trio.fail_after(SECONDS):
            return MessageChannel((await self.listener.accept())[0])

    async def hear(self, channel: MessageChannel) -> object:
        """Return the next message, None at the end."""
        with trio.fail_after(SECONDS):
            received = await channel.receive_message()
        return None if received is None else received[0]


@pytest.fixture(autouse=True)
def _stderr_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_reconnect, "_let_go_of_stderr", lambda: None)


@pytest.fixture
async def orphan() -> AsyncIterator[FakeServer]:
    """A server with a client of two contexts, one of them closed, whose daemon has died."""
    ours, theirs = socket.socketpair()
    theirs.close()
    server = FakeServer(DaemonLink(MessageChannel(trio.socket.from_stdlib_socket(ours))))
    server.link.status(ServerStatus.ACTIVE)
    server.link.client_came(link.AdmitClient(5, 4105, 500, 500, "train", 0, {}, 99))
    server.link.client_came(link.AdmitClient(6, 4106, 500, 500, "gone", 0, {}, 99))
    server.link.context_made(5, 1, 1, 0)
    server.link.context_made(5, 2, 2, 1)
    server.link.context_gone(5, 1)
    server.link.client_gone(6)
    server.roster.clients[5] = "train"
    yield server
    if not server.link.adrift:
        server.link.channel.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[NextDaemon]:
    """The next daemon."""
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(tmp_path / "control"))
    listener.listen(8)
    yield NextDaemon(str(tmp_path / "control"), listener)
    listener.close()


async def test_it_says_who_is_here_and_what_happened_meanwhile(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_link, "KEPT_RECORDS", 3)
    outcome: list[bool] = []

    async def go_on() -> None:
        outcome.append(await serve_on(orphan, Door(os.getuid(), daemon.path), nursery))

    nursery.start_soon(go_on)
    channel = await daemon.accept()
    hello = await daemon.hear(channel)
    assert isinstance(hello, link.ServerReturn)
    assert (hello.pid, hello.status, hello.leaving, hello.clients) == (os.getpid(), "ACTIVE", False, 1)
    assert await daemon.hear(channel) == link.ReturningClient(5, 4105, 500, "train", 99, ((2, 2, 1),))
    for number in range(4):
        orphan.link.log("client_disconnected", {"pid": number}, 1.0)
    # What happens from now on is pushed, but no log: it may still be turned away.
    orphan.link.context_made(5, 3, 3, 0)
    assert await daemon.hear(channel) == link.ContextReported(5, 3, 3, 0)
    channel.send(link.ServerAdopted())
    assert await daemon.hear(channel) == link.LogDropped(2)
    kept = [await daemon.hear(channel) for _ in range(4)]
    assert [said.event for said in kept if isinstance(said, link.LogRecord)] == [
        *["client_disconnected"] * 3,
        "server_taken_in",
    ]
    assert outcome == [True]
    orphan.link.lose()
    assert await daemon.hear(channel) is None
    channel.close()


async def test_without_clients_it_goes_at_once(orphan: FakeServer, nursery: trio.Nursery) -> None:
    orphan.roster.clients.clear()
    assert not await serve_on(orphan, Door(os.getuid(), "/nonexistent/control"), nursery)
    assert orphan.ending


async def test_one_that_is_dismissed_goes_by_itself(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery
) -> None:
    outcome: list[bool] = []

    async def go_on() -> None:
        outcome.append(await serve_on(orphan, Door(os.getuid(), daemon.path), nursery))

    nursery.start_soon(go_on)
    channel = await daemon.accept()
    channel.send(link.ServerDismissed("other devices"))
    while await daemon.hear(channel) is not None:
        pass
    channel.close()
    assert outcome == [False]
    assert orphan.ending


async def it_knocks(orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, times: int) -> None:
    """Have the server knock at the next daemon's door, which gives no answer, so many times."""
    async with trio.open_nursery() as inner:
        inner.start_soon(serve_on, orphan, Door(os.getuid(), daemon.path), nursery)
        for _ in range(times):
            channel = await daemon.accept()
            assert isinstance(await daemon.hear(channel), link.ServerReturn)
            channel.close()
        inner.cancel_scope.cancel()


async def test_the_one_descriptor_that_the_lost_link_gives_back_is_enough(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for takes_one in ("dup", "open", "pipe"):
        monkeypatch.setattr(os, takes_one, no_more)
    await it_knocks(orphan, daemon, nursery, times=1)


async def test_without_any_it_tries_again(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, tries = trio.socket.socket, 0

    def the_third(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(*arguments)

    monkeypatch.setattr(trio.socket, "socket", the_third)
    await it_knocks(orphan, daemon, nursery, times=1)
    assert tries == 3


def test_its_standard_error_is_let_go_of_without_a_descriptor_to_spare() -> None:
    """The server's standard output is /dev/null; its standard error was a pipe of the daemon's."""
    script = (
        "import os, resource\n"
        "from pympsd_server.service.daemon_reconnect import _let_go_of_stderr\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "_let_go_of_stderr()\n"
        "os.write(2, b'nobody reads this')\n"
    )
    with open(os.devnull, "wb") as null:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=null, stderr=subprocess.PIPE, timeout=SECONDS, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


async def test_one_that_gets_no_answer_knocks_again(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery
) -> None:
    await it_knocks(orphan, daemon, nursery, times=3)


async def test_somebody_elses_daemon_is_told_nothing(
    orphan: FakeServer, daemon: NextDaemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_reconnect, "GRACE", 0.1)
    outcome: list[bool] = []

    async def go_on() -> None:
        outcome.append(await serve_on(orphan, Door(os.getuid() + 1, daemon.path), nursery))

    async with trio.open_nursery() as inner:
        inner.start_soon(go_on)
        channel = await daemon.accept()
        assert await daemon.hear(channel) is None
        channel.close()
        assert not orphan.ending
        # Its last client leaves, and nobody comes.
        orphan.roster.clients.clear()
    assert outcome == [False]
    assert orphan.ending
