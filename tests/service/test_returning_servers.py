"""A process at the door that says it is a server of the daemon before: which are believed, and what they may report.

The test process plays the server: the kernel says its PID at the door.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pympsd.service.files.state_file import StateFile, device_keys
from pympsd.service.sessions.adoption import KnownProcess, inherit
from pympsd.state_machine.persistent_state import PersistentServer, PersistentState
from pympsd.vocabulary import files
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.versions import Versions
from tests.service.conftest import Caller, House, bounded

ME = os.getpid()
CLIENT = link.ReturningClient(5, 4105, 0, "train", 99, ((3, 1, 0),))


@pytest.fixture(autouse=True)
def _nobody_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not return in time would be, and here that is this process, or the one that started it."""
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)


def left_behind(house: House, tmp_path: Path, *, pid: int = ME, uid: int = 0) -> Path:
    """What a daemon leaves that had one server."""
    server = PersistentServer(1, pid, uid, 60.0, {0: 1 << 30})
    StateFile(str(tmp_path), device_keys(house.hub.mind.devices), house.hub.log).keep(
        PersistentState(servers=(server,))
    )
    return tmp_path / files.STATE


def edited(path: Path, old: str, new: str) -> None:
    """Change a word of the file in place."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


async def returns(
    house: House, *clients: link.ReturningClient, count: int = -1, versions: Versions | None = None
) -> tuple[Caller, object]:
    """Come back as a server; return its connection and the first word of the daemon, None for its end."""
    caller = await house.connect()
    number = len(clients) if count < 0 else count
    hello = link.ServerReturn(versions or Versions(), ME, "ACTIVE", False, number)
    await caller.say(b"".join(map(messages.encode, (hello, *clients))))
    frame = await caller.hear()
    return caller, None if frame is None else messages.decode(frame)


def refused(house: House) -> list[str]:
    """Return what the log says of processes that were refused."""
    return [line for line in house.sentences() if line.startswith("Refusing process")]


@bounded
async def test_a_server_of_the_daemon_before_is_taken_in(house: House, tmp_path: Path) -> None:
    left_behind(house, tmp_path)
    inherit(house.hub, str(tmp_path))
    assert [server.awaited for server in house.hub.mind.servers.values()] == [True]
    caller, word = await returns(house, CLIENT)
    assert word == link.ServerTakenIn()
    frame = await caller.hear()
    assert frame is not None
    assert messages.decode(frame) == link.LimitsChanged(60.0, {0: 1 << 30})
    (server,) = house.hub.mind.servers.values()
    (client,) = server.clients.values()
    assert (client.serial, client.pid, client.command, list(client.contexts)) == (5, 4105, "train", [3])
    # New serials lie above all there were.
    assert house.hub.serials.take() > 1 << 40
    # From here on it is a server like any other.
    await caller.say(messages.encode(link.ClientGone(5)))
    await caller.say(messages.encode(link.LogRecord("server_exiting", {}, 0.0)))
    assert await house.still_answers() is False, "there is a server in the list now"
    assert server.clients == {}


@bounded
async def test_it_comes_back_once(house: House, tmp_path: Path) -> None:
    left_behind(house, tmp_path)
    inherit(house.hub, str(tmp_path))
    await returns(house)
    _, word = await returns(house)
    assert isinstance(word, link.ServerDismissed)
    assert len(refused(house)) == 1
    assert len(house.hub.mind.servers) == 1


@bounded
@pytest.mark.parametrize("who", ["nobody was expected", "another process", "another user's", "a later process"])
async def test_a_process_that_is_not_in_the_file_is_refused(house: House, tmp_path: Path, who: str) -> None:
    if who == "another process":
        left_behind(house, tmp_path, pid=os.getppid())
    elif who == "another user's":
        left_behind(house, tmp_path, uid=500)
    elif who == "a later process":
        edited(left_behind(house, tmp_path), f'"started":{{"{ME}":', f'"started":{{"{ME}":1')
    inherit(house.hub, str(tmp_path))
    servers = [server.awaited for server in house.hub.mind.servers.values()]
    _, word = await returns(house, CLIENT)
    assert isinstance(word, link.ServerDismissed)
    (line,) = refused(house)
    assert f"Refusing process {ME} of user 0, which says it is a server: " in line
    assert [server.awaited for server in house.hub.mind.servers.values()] == servers
    assert servers == ([] if who in ("nobody was expected", "a later process") else [True])


@bounded
@pytest.mark.parametrize("why", ["devices", "versions"])
async def test_one_that_cannot_be_taken_in_is_told_to_go_by_itself(house: House, tmp_path: Path, why: str) -> None:
    path = left_behind(house, tmp_path)
    if why == "devices":
        edited(path, "GPU-", "GPU-x")
    inherit(house.hub, str(tmp_path))
    versions = Versions(oldest=8, newest=9) if why == "versions" else Versions()
    _, word = await returns(house, CLIENT, versions=versions)
    assert isinstance(word, link.ServerDismissed)
    reason = {"devices": "the devices of this daemon are others", "versions": "it speaks versions 8 to 9"}[why]
    assert word.reason == reason
    assert house.sentences()[-1] == f"Server {ME} is not taken in and goes with its last client: {reason}"
    assert house.hub.mind.servers == {}
    assert await house.still_answers()


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
async def test_a_report_that_cannot_be_is_the_end_of_the_server(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: link.ReturningClient, count: int
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(KnownProcess, "kill", lambda process: killed.append(process.pidfd))
    left_behind(house, tmp_path)
    inherit(house.hub, str(tmp_path))
    caller = await house.connect()
    hello = link.ServerReturn(Versions(), ME, "ACTIVE", False, count)
    await caller.say(messages.encode(hello) + messages.encode(client))
    assert await caller.hear() is None
    assert len(killed) == 1
    assert house.sentences()[-1].startswith(f"Server {ME} broke the conversation: it ")
    assert all(server.awaited and not server.clients for server in house.hub.mind.servers.values())


@bounded
async def test_a_file_that_is_not_its_own_is_left_out_with_a_line(house: House, tmp_path: Path) -> None:
    path = left_behind(house, tmp_path)
    path.chmod(0o644)
    inherit(house.hub, str(tmp_path))
    assert house.hub.mind.servers == {}
    assert house.sentences() == [f"{path} is left out: others than its owner may have changed it"]


@bounded
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESRCH])
async def test_one_that_cannot_be_watched_is_told_from_one_that_is_gone(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    left_behind(house, tmp_path)

    def fail(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", fail)
    inherit(house.hub, str(tmp_path))
    assert house.hub.mind.servers == {}
    said = f"Server {ME} is not taken in and goes with its last client: Too many open files: raise the limit"
    assert [line.startswith(said) for line in house.sentences()] == ([True] if number == errno.EMFILE else [])
