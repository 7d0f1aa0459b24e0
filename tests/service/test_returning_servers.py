"""A process that connects as a server of the earlier daemon: which are believed, and what they may report.

The test process plays the server: the kernel reports its PID.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from time_limit import bounded

from pympsd.service.sessions.adoption import KnownProcess
from pympsd.state_machine.persistent_state import PersistentServer
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.versions import Versions
from tests.service.conftest import Caller, RunningDaemon

ME = os.getpid()
CLIENT = link.ReturningClient(5, 4105, 0, "train", 99, ((3, 1, 0),))


@pytest.fixture(autouse=True)
def _no_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not return in time is killed, and here that is this process or its parent."""
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)


def save_predecessor(daemon: RunningDaemon, *, pid: int = ME, uid: int = 0) -> Path:
    """Write the state file of an earlier daemon that had one server; return its path."""
    return daemon.save_predecessor(PersistentServer(1, pid, uid, 60.0, {0: 1 << 30}))


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in the file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


async def returns(
    daemon: RunningDaemon, *clients: link.ReturningClient, count: int = -1, versions: Versions | None = None
) -> tuple[Caller, object]:
    """Return as a server; return its connection and the daemon's first message, None for the end."""
    caller = await daemon.connect()
    number = len(clients) if count < 0 else count
    hello = link.ServerReturn(versions or Versions(), ME, "ACTIVE", False, number)
    await caller.send(b"".join(map(messages.encode, (hello, *clients))))
    frame = await caller.receive()
    return caller, None if frame is None else messages.decode(frame)


def refused(daemon: RunningDaemon) -> list[str]:
    """Return the log lines about refused processes."""
    return [line for line in daemon.sentences() if line.startswith("Refusing process")]


@bounded
async def test_a_server_of_the_earlier_daemon_is_adopted(daemon: RunningDaemon) -> None:
    save_predecessor(daemon)
    daemon.inherit()
    assert [server.awaited for server in daemon.dispatcher.state.servers.values()] == [True]
    caller, message = await returns(daemon, CLIENT)
    assert message == link.ServerAdopted()
    frame = await caller.receive()
    assert frame is not None
    assert messages.decode(frame) == link.LimitsChanged(60.0, {0: 1 << 30})
    (server,) = daemon.dispatcher.state.servers.values()
    (client,) = server.clients.values()
    assert (client.serial, client.pid, client.command, list(client.contexts)) == (5, 4105, "train", [3])
    # New serials are above all earlier ones.
    assert daemon.dispatcher.serials.take() > 1 << 40
    # From now on it is a server like any other.
    await caller.send(messages.encode(link.ClientGone(5)))
    await caller.send(messages.encode(link.LogRecord("server_exiting", {}, 0.0)))
    assert await daemon.still_answers() is False, "there is a server in the list now"
    assert server.clients == {}


@bounded
async def test_a_server_returns_only_once(daemon: RunningDaemon) -> None:
    save_predecessor(daemon)
    daemon.inherit()
    await returns(daemon)
    _, message = await returns(daemon)
    assert isinstance(message, link.ServerDismissed)
    assert len(refused(daemon)) == 1
    assert len(daemon.dispatcher.state.servers) == 1


@bounded
@pytest.mark.parametrize("case", ["none was expected", "another process", "another user's", "a later process"])
async def test_a_process_that_is_not_in_the_file_is_refused(daemon: RunningDaemon, case: str) -> None:
    if case == "another process":
        save_predecessor(daemon, pid=os.getppid())
    elif case == "another user's":
        save_predecessor(daemon, uid=500)
    elif case == "a later process":
        edit(save_predecessor(daemon), f'"started":{{"{ME}":', f'"started":{{"{ME}":1')
    daemon.inherit()
    servers = [server.awaited for server in daemon.dispatcher.state.servers.values()]
    _, message = await returns(daemon, CLIENT)
    assert isinstance(message, link.ServerDismissed)
    (line,) = refused(daemon)
    assert f"Refusing process {ME} of user 0, which says it is a server: " in line
    assert [server.awaited for server in daemon.dispatcher.state.servers.values()] == servers
    assert servers == ([] if case in ("none was expected", "a later process") else [True])


@bounded
@pytest.mark.parametrize("why", ["devices", "versions"])
async def test_a_server_that_cannot_be_adopted_is_dismissed_with_the_reason(daemon: RunningDaemon, why: str) -> None:
    path = save_predecessor(daemon)
    if why == "devices":
        edit(path, "GPU-", "GPU-x")
    daemon.inherit()
    versions = Versions(oldest=8, newest=9) if why == "versions" else Versions()
    _, message = await returns(daemon, CLIENT, versions=versions)
    assert isinstance(message, link.ServerDismissed)
    reason = {"devices": "the devices of this daemon are others", "versions": "it speaks versions 8 to 9"}[why]
    assert message.reason == reason
    assert daemon.sentences()[-1] == f"Server {ME} is not taken in and goes with its last client: {reason}"
    assert daemon.dispatcher.state.servers == {}
    assert await daemon.still_answers()


@bounded
@pytest.mark.parametrize(
    ("client", "count"),
    [
        (link.ReturningClient(5, 4105, 0, "train", 99, ((3, 1, 7),)), 1),
        (link.ReturningClient(5, 4105, 0, "train", 99, ((3, 1, -1),)), 1),
        (link.ReturningClient(5, 4105, 0, "train", 99, ((0, 1, 0),)), 1),
        (link.ReturningClient(5, -1, 0, "train", 99, ()), 1),
        (link.ReturningClient(0, 4105, 0, "train", 99, ()), 1),
        (link.ReturningClient(2 << 40, 4105, 0, "train", 99, ()), 1),
        (link.ReturningClient(5, 4105, 0, "train", 99, tuple((n, n, 0) for n in range(1, 4000))), 1),
        (CLIENT, 1 << 15),
        (CLIENT, -2),
    ],
)
async def test_a_server_with_an_impossible_report_is_killed(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, client: link.ReturningClient, count: int
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(KnownProcess, "kill", lambda process: killed.append(process.pidfd))
    save_predecessor(daemon)
    daemon.inherit()
    caller = await daemon.connect()
    hello = link.ServerReturn(Versions(), ME, "ACTIVE", False, count)
    await caller.send(messages.encode(hello) + messages.encode(client))
    assert await caller.receive() is None
    assert len(killed) == 1
    assert daemon.sentences()[-1].startswith(f"Protocol violation by server {ME}: it ")
    assert all(server.awaited and not server.clients for server in daemon.dispatcher.state.servers.values())


@bounded
async def test_a_state_file_that_is_not_its_own_is_ignored_and_logged(daemon: RunningDaemon) -> None:
    path = save_predecessor(daemon)
    path.chmod(0o644)
    daemon.inherit()
    assert daemon.dispatcher.state.servers == {}
    assert daemon.sentences() == [f"{path} is left out: others than its owner may have changed it"]


@bounded
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESRCH])
async def test_a_server_that_cannot_be_watched_is_logged_and_one_that_is_gone_is_not(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save_predecessor(daemon)

    def fail(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", fail)
    daemon.inherit()
    assert daemon.dispatcher.state.servers == {}
    said = f"Server {ME} is not taken in and goes with its last client: Too many open files: raise the limit"
    assert [line.startswith(said) for line in daemon.sentences()] == ([True] if number == errno.EMFILE else [])
