"""The number of log lines that connecting clients and servers may cause; lines over the limit are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio.testing
from attrs import define, evolve
from time_limit import with_limit

from pympsd.journal.catalogue import RENAMED_SERVER_EVENTS, SERVER_LINES
from pympsd.journal.line_format import Dialect
from pympsd.journal.setup import control_logger
from pympsd.service import listeners, rate_limit, user_budgets
from pympsd.service.processes.peers import credentials
from pympsd.service.rate_limit import RateLimit
from pympsd.service.sessions import conversation
from pympsd.service.sessions import server as server_session
from pympsd.takeover.servers import KnownProcess
from pympsd.takeover.state.records import PersistentServer
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.messages import Versions
from tests.service.conftest import Caller, RunningDaemon

ME = os.getpid()
USER = 10001
ALLOWED = 30
HELLO = messages.ClientHello(Versions(), 1, "reported", 2, {})


@define
class Clock:
    """The time that rate limits see; timers see the real one."""

    now: float = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clock; make every connecting user USER, with a limit of ALLOWED."""
    clock = Clock()
    take = RateLimit.take
    monkeypatch.setattr(RateLimit, "take", lambda self, count, _: take(self, count, clock.now))
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=USER))
    monkeypatch.setattr(user_budgets, "LINES_PER_SECOND", ALLOWED)
    return clock


def set_dialect(daemon: RunningDaemon, dialect: Dialect) -> None:
    """Write the logs in a dialect."""
    daemon.dispatcher.journal = evolve(daemon.dispatcher.journal, dialect=dialect)
    daemon.dispatcher.log = control_logger(daemon.dispatcher.journal)


async def connect_client(daemon: RunningDaemon, hello: object) -> None:
    """Send a hello, wait until the daemon has handled it, and disconnect."""
    caller = await daemon.connect()
    await caller.send(messages.encode(hello))
    await trio.testing.wait_all_tasks_blocked()
    caller.sock.close()
    await trio.testing.wait_all_tasks_blocked()


CASES = {
    "waiting": (HELLO, "NEW CLIENT "),
    "refused": (HELLO, "Refusing client "),
    "under a debugger": (evolve(HELLO, traced=True), "Client "),
}


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENTED, Dialect.R580])
@pytest.mark.parametrize("case", CASES)
@with_limit
async def test_clients_in_a_loop_cannot_fill_the_log(
    daemon: RunningDaemon, clock: Clock, case: str, dialect: Dialect
) -> None:
    hello, beginning = CASES[case]
    set_dialect(daemon, dialect)
    if case == "refused":
        daemon.dispatcher.state.options = evolve(daemon.dispatcher.state.options, uid=500)
    # Two lines each, the second of them (as the dialect has it or not) the client's.
    logged = dialect is Dialect.DOCUMENTED or beginning in ("NEW CLIENT ", "Refusing client ")
    for _ in range(3 * ALLOWED):
        await connect_client(daemon, hello)
    lines = daemon.sentences()
    assert lines.count("Accepting connection...") == ALLOWED // 2
    assert sum(text.startswith(beginning) for text in lines) == (ALLOWED // 2 if logged else 0)
    clock.now += 2
    await connect_client(daemon, hello)
    dropped, accepted, *rest = daemon.sentences()[len(lines) :]
    assert dropped == f"Dropped {5 * ALLOWED} log lines caused by user {USER}: too many in a short time"
    assert accepted == "Accepting connection..."
    assert [text.startswith(beginning) for text in rest] == [True] * logged


@with_limit
async def test_events_that_are_not_logged_are_still_handled(daemon: RunningDaemon, clock: Clock) -> None:
    callers = [await daemon.connect() for _ in range(2 * ALLOWED)]
    for caller in callers:
        await caller.send(messages.encode(HELLO))
        await trio.testing.wait_all_tasks_blocked()
    assert len(daemon.dispatcher.state.queue) == 2 * ALLOWED
    assert len(daemon.spawned) == 1
    daemon.dispatcher._refuse(daemon.dispatcher.state.queue.entries[0].client, 805, "a reason")
    frame = await callers[0].receive()
    assert frame is not None
    assert messages.decode(frame) == messages.Refused(805, "a reason")
    assert not any("a reason" in text for text in daemon.sentences())


@with_limit
async def test_each_user_has_a_limit(daemon: RunningDaemon, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(ALLOWED):
        await connect_client(daemon, HELLO)
    before = len(daemon.sentences())
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=USER + 1))
    await connect_client(daemon, HELLO)
    assert [text.partition(" ")[0] for text in daemon.sentences()[before:]][:2] == ["Accepting", "NEW"]


@with_limit
async def test_lines_about_refused_connections_are_limited_too(
    daemon: RunningDaemon, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(listeners, "user_of", lambda sock: USER)
    with monkeypatch.context() as patched:
        patched.setattr(conversation, "MessageChannel", no_more)
        for _ in range(2 * ALLOWED):
            assert await (await daemon.connect()).receive() is None
    assert len(daemon.sentences()) == ALLOWED
    clock.now += 2
    assert await daemon.still_answers()
    assert daemon.sentences()[ALLOWED].startswith(f"Dropped {3 * ALLOWED} log lines caused by user {USER}: ")


# --- servers


async def server_of(daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Caller, Path]:
    """Be a server of an earlier daemon, with one client; return its end of the link and the path of server.log."""
    monkeypatch.setattr(server_session, "LOG_RECORDS_PER_SECOND", ALLOWED)
    monkeypatch.setattr(listeners, "credentials", credentials)
    # The test process plays the server.
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)
    daemon.save_predecessor(PersistentServer(1, ME, 0, 100.0, {}))
    (caller,) = daemon.take_over(1)
    await caller.report(ME, link.ReturningClient(5, 4105, 0, "train", 99, ()))
    assert await caller.message() == link.ServerAdopted()
    return caller, tmp_path / "server.log"


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENTED, Dialect.R580])
@with_limit
async def test_a_server_cannot_fill_the_logs_with_contexts(
    daemon: RunningDaemon, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    caller, log = await server_of(daemon, tmp_path, monkeypatch)
    set_dialect(daemon, dialect)
    for context in range(1, 3 * ALLOWED + 1):
        opened = messages.encode(link.ContextReported(5, context, 1, 0))
        await caller.send(opened + messages.encode(link.ContextGone(5, context)))
    await trio.testing.wait_all_tasks_blocked()
    assert sum(text.startswith("NEW CLIENT") for text in daemon.sentences()) == ALLOWED
    assert log.read_text() == ""
    clock.now += 2
    await caller.send(messages.encode(link.ContextReported(5, 1000, 1, 0)))
    await trio.testing.wait_all_tasks_blocked()
    assert sum(text.startswith("NEW CLIENT") for text in daemon.sentences()) == ALLOWED + 1
    assert log.read_text().endswith(f"] Dropped {2 * ALLOWED} log lines: too many in a short time\n")
    (server,) = daemon.dispatcher.state.servers.values()
    assert list(server.clients[5].contexts) == [1000]


LONG = "x" * (rate_limit.LINE_BYTES * 4 + 1)


@pytest.mark.parametrize(
    ("dialect", "fields"), [(Dialect.DOCUMENTED, {"reason": LONG}), (Dialect.JSON, {"reason": "", LONG: ""})]
)
@with_limit
async def test_long_lines_of_a_server_count_as_several_and_dropped_ones_are_logged_at_its_end(
    daemon: RunningDaemon,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dialect: Dialect,
    fields: dict[str, str],
) -> None:
    caller, log = await server_of(daemon, tmp_path, monkeypatch)
    set_dialect(daemon, dialect)
    for _ in range(ALLOWED):
        await caller.send(messages.encode(link.LogRecord("context_refused_reason", fields, 0.0)))
    await trio.testing.wait_all_tasks_blocked()
    assert log.read_text().count(LONG) == ALLOWED // 5
    caller.sock.close()
    await trio.testing.wait_all_tasks_blocked()
    last = log.read_text().splitlines()[-1]
    dropped = ALLOWED - ALLOWED // 5
    texts = (
        f"] Dropped {dropped} log lines: too many in a short time",
        f'"records_dropped", "fields": {{"count": {dropped}}}}}',
    )
    assert last.endswith(texts)


@with_limit
async def test_events_of_a_server_of_an_earlier_version_are_logged_by_their_new_names(
    daemon: RunningDaemon, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, log = await server_of(daemon, tmp_path, monkeypatch)
    for event in RENAMED_SERVER_EVENTS:
        await caller.send(messages.encode(link.LogRecord(event, {}, 0.0)))
    await trio.testing.wait_all_tasks_blocked()
    lines = [line.partition("] ")[2] for line in log.read_text().splitlines()]
    assert lines == [SERVER_LINES[event].documented for event in RENAMED_SERVER_EVENTS.values()]
