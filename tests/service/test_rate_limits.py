"""How many log lines clients at the door, and servers, may cause; what is over is counted and told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio.testing
from attrs import define, evolve

from pympsd.journal.dialects import Dialect
from pympsd.journal.setup import control_logger
from pympsd.service import listeners, rate_limit
from pympsd.service.files.state_file import StateFile, device_keys
from pympsd.service.rate_limit import Allowance
from pympsd.service.sessions import server as server_session
from pympsd.service.sessions.adoption import KnownProcess, inherit
from pympsd.service.sessions.peers import credentials
from pympsd.state_machine.persistent_state import PersistentServer, PersistentState
from pympsd.wire import link_messages as link
from pympsd.wire import messages
from pympsd.wire.versions import Versions
from tests.service.conftest import Caller, House, bounded

ME = os.getpid()
USER = 10001
ALLOWED = 30
HELLO = messages.ClientHello(Versions(), 1, "told", 2, {})


@define
class Clock:
    """What the allowances take for the time; timers have the real one."""

    now: float = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still; everybody who connects is USER, with an allowance of ALLOWED."""
    clock = Clock()
    take = Allowance.take
    monkeypatch.setattr(Allowance, "take", lambda self, count, _: take(self, count, clock.now))
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=USER))
    monkeypatch.setattr(rate_limit, "LINES_PER_SECOND", ALLOWED)
    return clock


def speak(house: House, dialect: Dialect) -> None:
    """Have the logs written in a dialect."""
    house.hub.journal = evolve(house.hub.journal, dialect=dialect)
    house.hub.log = control_logger(house.hub.journal)


async def knock(house: House, hello: object) -> None:
    """Say hello, wait until the daemon is through with it, and hang up."""
    caller = await house.connect()
    await caller.say(messages.encode(hello))
    await trio.testing.wait_all_tasks_blocked()
    caller.sock.close()
    await trio.testing.wait_all_tasks_blocked()


CASES = {
    "who wait": (HELLO, "NEW CLIENT "),
    "who are refused": (HELLO, "Refusing client "),
    "under a debugger": (evolve(HELLO, traced=True), "Client "),
    "who say they are servers": (link.ServerReturn(Versions(), 7, "ACTIVE", False, 0), "Refusing process "),
}


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENTED, Dialect.R580])
@pytest.mark.parametrize("who", CASES)
@bounded
async def test_clients_in_a_loop_cannot_fill_the_log(house: House, clock: Clock, who: str, dialect: Dialect) -> None:
    hello, beginning = CASES[who]
    speak(house, dialect)
    if who == "who are refused":
        house.hub.mind.uid = 500
    # Two lines each, the second of them (as the dialect has it or not) the client's.
    spoken = dialect is Dialect.DOCUMENTED or beginning in ("NEW CLIENT ", "Refusing client ")
    for _ in range(3 * ALLOWED):
        await knock(house, hello)
    said = house.sentences()
    assert said.count("Accepting connection...") == ALLOWED // 2
    assert sum(text.startswith(beginning) for text in said) == (ALLOWED // 2 if spoken else 0)
    clock.now += 2
    await knock(house, hello)
    told, accepted, *rest = house.sentences()[len(said) :]
    assert told == f"{5 * ALLOWED} log lines that user {USER} caused were dropped: too many at once"
    assert accepted == "Accepting connection..."
    assert [text.startswith(beginning) for text in rest] == [True] * spoken


@bounded
async def test_what_is_not_logged_is_done_all_the_same(house: House, clock: Clock) -> None:
    callers = [await house.connect() for _ in range(2 * ALLOWED)]
    for caller in callers:
        await caller.say(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked()
    assert len(house.hub.mind.queue) == 2 * ALLOWED
    assert len(house.spawned) == 1
    house.hub._refuse(house.hub.mind.queue[0].client, 805, "a reason")
    frame = await callers[0].hear()
    assert frame is not None
    assert messages.decode(frame) == messages.Refused(805, "a reason")
    assert not any("a reason" in text for text in house.sentences())


@bounded
async def test_others_have_their_own(house: House, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(ALLOWED):
        await knock(house, HELLO)
    before = len(house.sentences())
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=USER + 1))
    await knock(house, HELLO)
    assert [text.partition(" ")[0] for text in house.sentences()[before:]][:2] == ["Accepting", "NEW"]


@bounded
async def test_connections_turned_away_have_theirs(
    house: House, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(listeners, "user_of", lambda sock: USER)
    with monkeypatch.context() as patched:
        patched.setattr(listeners.os, "dup", no_more)
        for _ in range(2 * ALLOWED):
            assert await (await house.connect()).hear() is None
    assert len(house.sentences()) == ALLOWED
    clock.now += 2
    assert await house.still_answers()
    assert house.sentences()[ALLOWED].startswith(f"{ALLOWED} log lines that user {USER} caused were dropped")


# --- servers


async def server_of(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Caller, Path]:
    """Come as a server that a daemon before had, with one client; return its link and server.log."""
    monkeypatch.setattr(server_session, "LOG_RECORDS_PER_SECOND", ALLOWED)
    monkeypatch.setattr(listeners, "credentials", credentials)
    # The test process plays the server.
    monkeypatch.setattr(KnownProcess, "kill", lambda _: None)
    server = PersistentServer(1, ME, 0, 100.0, {})
    StateFile(str(tmp_path), device_keys(house.hub.mind.devices), house.hub.log).keep(
        PersistentState(servers=(server,))
    )
    inherit(house.hub, str(tmp_path))
    caller = await house.connect()
    hello = link.ServerReturn(Versions(), ME, "ACTIVE", False, 1)
    client = link.ReturningClient(5, 4105, 0, "train", 99, ())
    await caller.say(messages.encode(hello) + messages.encode(client))
    assert await caller.hear() is not None
    return caller, tmp_path / "server.log"


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENTED, Dialect.R580])
@bounded
async def test_a_server_cannot_fill_the_logs_with_contexts(
    house: House, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    caller, log = await server_of(house, tmp_path, monkeypatch)
    speak(house, dialect)
    for serial in range(1, 3 * ALLOWED + 1):
        made = messages.encode(link.ContextReported(5, serial, 1, 0))
        await caller.say(made + messages.encode(link.ContextGone(5, serial)))
    await trio.testing.wait_all_tasks_blocked()
    assert sum(text.startswith("NEW CLIENT") for text in house.sentences()) == ALLOWED
    assert log.read_text() == ""
    clock.now += 2
    await caller.say(messages.encode(link.ContextReported(5, 1000, 1, 0)))
    await trio.testing.wait_all_tasks_blocked()
    assert sum(text.startswith("NEW CLIENT") for text in house.sentences()) == ALLOWED + 1
    assert log.read_text().endswith(f"] {2 * ALLOWED} log lines were dropped: too many at once\n")
    (server,) = house.hub.mind.servers.values()
    assert list(server.clients[5].contexts) == [1000]


@bounded
async def test_long_lines_of_a_server_count_as_several_and_what_was_dropped_last_is_told_at_its_end(
    house: House, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, log = await server_of(house, tmp_path, monkeypatch)
    reason = "x" * (rate_limit.LINE_BYTES * 4 + 1)
    for _ in range(ALLOWED):
        await caller.say(messages.encode(link.LogRecord("context_refused_reason", {"reason": reason}, 0.0)))
    await trio.testing.wait_all_tasks_blocked()
    assert log.read_text().count(reason) == ALLOWED // 5
    caller.sock.close()
    await trio.testing.wait_all_tasks_blocked()
    told = log.read_text().splitlines()[-1]
    assert told.endswith(f"] {ALLOWED - ALLOWED // 5} log lines were dropped: too many at once")
