"""The servers of an earlier daemon, with links that the keeper held: which are believed, and what they may report.

The test process plays the server: the state file names its PID.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from time_limit import with_limit

from pympsd.service.sessions.server import MAX_CONTEXTS
from pympsd.state_machine.state.server import Phase
from pympsd.takeover import servers
from pympsd.takeover.servers import KnownProcess
from pympsd.takeover.state.records import PersistentServer
from pympsd.vocabulary.limits import LimitsInForce
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.messages import Versions
from tests.service.conftest import RunningDaemon

ME = os.getpid()
SERVER_ID = 1
CLIENT = link.ReturningClient(5, 4105, 0, "train", 99, ((3, 1, 0),))


@pytest.fixture(autouse=True)
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pidfds through which a server was to be killed; here that is this process or its parent."""
    pidfds: list[int] = []
    monkeypatch.setattr(KnownProcess, "kill", lambda process: pidfds.append(process.pidfd))
    return pidfds


def save_predecessor(daemon: RunningDaemon, *, pid: int = ME, uid: int = 0, backend: str = "") -> Path:
    """Write the state file of an earlier daemon that had one server; return its path."""
    return daemon.save_predecessor(PersistentServer(SERVER_ID, pid, uid, 60.0, {0: 1 << 30}), backend)


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in the file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@with_limit
async def test_a_server_of_the_earlier_daemon_is_taken_over(daemon: RunningDaemon) -> None:
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    assert [server.pending for server in daemon.dispatcher.state.servers.values()] == [True]
    await server_end.report(ME, CLIENT)
    assert await server_end.message() == link.ServerAdopted()
    assert await server_end.message() == link.LimitsChanged(60.0, {0: 1 << 30})
    (server,) = daemon.dispatcher.state.servers.values()
    (client,) = server.clients.values()
    assert (client.id, client.pid, client.process.command, list(client.contexts)) == (5, 4105, "train", [3])
    assert daemon.pending[0].resolved.is_set()
    # New ids are above all earlier ones.
    assert daemon.dispatcher.sessions.ids.take() > 1 << 40
    # From now on it is a server like any other.
    await server_end.send(messages.encode(link.ClientGone(5)))
    await server_end.send(messages.encode(link.LogRecord("server_exiting", {}, 0.0)))
    assert await daemon.still_answers() is False, "there is a server in the list now"
    assert server.clients == {}


@with_limit
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        *(
            ([link.MemoryReported(memory, device=0)], "nobody holds such memory")
            for memory in ({5: 1 << 63}, {5: (1 << 64) - 1, 6: (1 << 64) - 1}, {5: -1})
        ),
        (
            # The ends of contexts that did not exist do not make room for others.
            [link.ContextGone(5, 0)] * MAX_CONTEXTS
            + [link.ContextReported(5, n, n, 0) for n in range(1, MAX_CONTEXTS + 2)],
            f"more than {MAX_CONTEXTS} contexts at a time",
        ),
        *(
            ([link.ClientJoined(5, limits)], "a client cannot have the limits that it reports")
            for limits in (
                LimitsInForce(math.nan, 0, {}, {}),
                LimitsInForce(50.0, 0, {}, {}, {0: math.inf}),
                LimitsInForce(50.0, 0, {7: 1}, {}),
                LimitsInForce(50.0, -1, {}, {}),
            )
        ),
        ([link.LogRecord("x" * 50_000, {}, 0.0)], f"a log record that is not in the catalogue: '{'x' * 900}"),
    ],
)
async def test_a_server_with_an_impossible_message_is_killed(
    daemon: RunningDaemon, killed: list[int], sent: list[object], reason: str
) -> None:
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    await server_end.report(ME, CLIENT)
    assert await server_end.message() == link.ServerAdopted()
    for message in sent:
        await server_end.send(messages.encode(message))
    while await server_end.message() is not None:
        pass
    assert killed
    assert daemon.sentences()[-1].startswith(f"Protocol violation by server {ME}: {reason}")
    assert len(daemon.sentences()[-1]) < 1100


@with_limit
async def test_messages_before_a_servers_report_are_ignored(daemon: RunningDaemon) -> None:
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    # Most of it was true for the earlier daemon; a new one knows none of these clients and contexts.
    report = link.ServerReturn(Versions(), ME, "FAULT", False, 0, 1)
    for message in (
        report,
        link.StatusChanged("FAULT"),
        link.ClientGone(5),
        link.ContextReported(5, 3, 1, 0),
        CLIENT,
    ):
        await server_end.send(messages.encode(message))
    await server_end.report(ME, CLIENT)
    assert await server_end.message() == link.ServerAdopted()
    (server,) = daemon.dispatcher.state.servers.values()
    assert (server.phase, list(server.clients[5].contexts)) == (Phase.ACTIVE, [3])


@with_limit
@pytest.mark.parametrize("message", ["nothing", "its report without its clients", "half of a message"])
async def test_a_server_that_ends_before_it_has_reported_is_not_taken_over(
    daemon: RunningDaemon, killed: list[int], monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    monkeypatch.setattr(servers, "LEAVE_SECONDS", 0.0)
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    if message == "its report without its clients":
        await server_end.report(ME, CLIENT, count=2)
    elif message == "half of a message":
        await server_end.report(ME, count=1)
        await server_end.send(messages.encode(CLIENT)[:20])
    server_end.sock.close()
    while not killed:
        await trio.lowlevel.checkpoint()  # its process has not ended with its link
    (server,) = daemon.dispatcher.state.servers.values()
    assert (server.pending, server.clients) == (True, {})
    violations = [line for line in daemon.sentences() if line.startswith("Protocol violation")]
    assert len(violations) == (1 if message == "half of a message" else 0)


@with_limit
@pytest.mark.parametrize("adopted", [True, False])
async def test_a_server_that_has_not_read_all_of_the_earlier_daemons_messages_gets_those_of_the_next(
    daemon: RunningDaemon, adopted: bool
) -> None:
    save_predecessor(daemon, backend="" if adopted else "cuda")
    (server_end,) = daemon.take_over(SERVER_ID, full=True)
    await trio.testing.wait_all_tasks_blocked()
    while (message := await server_end.message()) == link.ShutDown(False):
        pass
    if not adopted:
        assert isinstance(message, link.ServerDismissed)
        return
    assert isinstance(message, link.ReportRequest)
    await server_end.send(messages.encode(link.ServerReturn(Versions(), ME, "ACTIVE", False, 0, message.token)))
    assert await server_end.message() == link.ServerAdopted()


@with_limit
@pytest.mark.parametrize("case", ["another link", "a later process", "no state file"])
async def test_the_link_of_a_server_that_is_not_in_the_file_is_closed(daemon: RunningDaemon, case: str) -> None:
    if case != "no state file":
        path = save_predecessor(daemon)
    if case == "a later process":
        edit(path, f'"started":{{"{ME}":', f'"started":{{"{ME}":1')
    (server_end,) = daemon.take_over(2 if case == "another link" else SERVER_ID)
    assert await server_end.message() is None
    # The server without a link has some seconds to end, and is then killed.
    servers = [server.pending for server in daemon.dispatcher.state.servers.values()]
    assert servers == ([True] if case == "another link" else [])


@with_limit
async def test_a_process_that_claims_to_be_a_server_is_refused(daemon: RunningDaemon) -> None:
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    caller = await daemon.connect()
    await caller.send(messages.encode(link.ServerReturn(Versions(), ME, "ACTIVE", False, 0)))
    assert await caller.message() is None
    assert daemon.sentences()[-1] == "Unable to read new connection type information"
    assert [server.pending for server in daemon.dispatcher.state.servers.values()] == [True]
    await server_end.report(ME, CLIENT)
    assert await server_end.message() == link.ServerAdopted()


@with_limit
@pytest.mark.parametrize("why", ["devices", "versions", "backend"])
async def test_a_server_that_cannot_be_taken_over_is_dismissed_with_the_reason(
    daemon: RunningDaemon, why: str
) -> None:
    path = save_predecessor(daemon, backend="cuda" if why == "backend" else "")
    if why == "devices":
        edit(path, "GPU-", "GPU-x")
    (server_end,) = daemon.take_over(SERVER_ID)
    if why == "versions":
        await server_end.report(ME, CLIENT, versions=Versions(oldest=8, newest=9))
    reasons = {
        "devices": "this daemon has other devices",
        "versions": "the server has protocol versions 8 to 9",
        "backend": "the backend of this daemon is auto, not cuda",
    }
    assert await server_end.message() == link.ServerDismissed(reasons[why])
    assert await server_end.message() is None, "it reports to no daemon after this"
    text = f"Not taking over server {ME} ({reasons[why]}); it will exit with its last client"
    assert daemon.sentences()[-1] == text
    assert daemon.dispatcher.state.servers == {}
    assert await daemon.still_answers()


@with_limit
async def test_a_drivers_server_that_cannot_be_taken_over_ends_with_its_link(daemon: RunningDaemon) -> None:
    save_predecessor(daemon, backend="vendor")
    (server_end,) = daemon.take_over(SERVER_ID)
    assert await server_end.receive() is None
    assert daemon.dispatcher.state.servers == {}


@with_limit
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
        (evolve(CLIENT, since=1e300), 1),
        (evolve(CLIENT, since=math.nan), 1),
        (evolve(CLIENT, groups={7: ()}), 1),
        (evolve(CLIENT, limits=LimitsInForce(math.nan, 0, {}, {})), 1),
        (CLIENT, 1 << 15),
        (CLIENT, -2),
    ],
)
async def test_a_server_with_an_impossible_report_is_killed(
    daemon: RunningDaemon, killed: list[int], client: link.ReturningClient, count: int
) -> None:
    save_predecessor(daemon)
    (server_end,) = daemon.take_over(SERVER_ID)
    await server_end.report(ME, client, count=count)
    assert await server_end.message() is None
    assert len(killed) == 1
    assert daemon.sentences()[-1].startswith(f"Protocol violation by server {ME}: the server ")
    assert all(server.pending and not server.clients for server in daemon.dispatcher.state.servers.values())


@with_limit
@pytest.mark.parametrize("case", ["another user's client", "the same client twice", "no status", "not a client"])
async def test_a_server_whose_messages_contradict_themselves_is_killed(
    daemon: RunningDaemon, killed: list[int], case: str
) -> None:
    save_predecessor(daemon, uid=10001 if case == "another user's client" else 0)
    (server_end,) = daemon.take_over(SERVER_ID)
    if case == "no status":
        await server_end.report(ME, status="HAPPY")
    elif case == "not a client":
        await server_end.report(ME, count=1)
        await server_end.send(messages.encode(link.ClientGone(5)))
    else:
        twice = case == "the same client twice"
        await server_end.report(ME, *([CLIENT] * (2 if twice else 1)))
    while await server_end.message() is not None:
        pass
    assert len(killed) == 1
    assert daemon.sentences()[-1].startswith(f"Protocol violation by server {ME}: ")
    assert all(server.pending and not server.clients for server in daemon.dispatcher.state.servers.values())


@with_limit
async def test_a_state_file_that_is_not_its_own_is_ignored_and_logged(daemon: RunningDaemon) -> None:
    path = save_predecessor(daemon)
    path.chmod(0o644)
    (server_end,) = daemon.take_over(SERVER_ID)
    assert await server_end.message() is None
    assert daemon.dispatcher.state.servers == {}
    assert daemon.sentences() == [f"Ignoring {path}: users other than the owner may have changed the file"]


@with_limit
async def test_a_damaged_state_file_is_ignored_and_logged(daemon: RunningDaemon) -> None:
    path = save_predecessor(daemon)
    path.write_text(path.read_text()[:-5])
    (server_end,) = daemon.take_over(SERVER_ID)
    assert await server_end.message() is None
    assert daemon.dispatcher.state.servers == {}
    (line,) = daemon.sentences()
    assert line.startswith(f"Ignoring {path}: the file is damaged: ")


@with_limit
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESRCH])
async def test_a_server_that_cannot_be_watched_is_logged_and_one_that_is_gone_is_not(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save_predecessor(daemon)

    def fail(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", fail)
    (server_end,) = daemon.take_over(SERVER_ID)
    assert await server_end.message() is None
    assert daemon.dispatcher.state.servers == {}
    text = f"Not taking over server {ME} (Too many open files: raise the limit"
    assert [line.startswith(text) for line in daemon.sentences()] == ([True] if number == errno.EMFILE else [])
