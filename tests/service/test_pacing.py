"""No user takes all of the daemon's time: turns, and credit in processor time."""

from __future__ import annotations

import pytest
import trio
from attrs import define, evolve
from time_limit import with_limit

from pympsd.service import listeners, pacing
from pympsd.service.pacing import BURST_SECONDS, MAX_IDLE_USERS, USER_RATE, Pacing
from pympsd.service.processes.peers import credentials
from pympsd.wire import frames
from tests.service.conftest import Caller, RunningDaemon

HOSTILE, HONEST = 10001, 10002
PER_CONNECTION, CONNECTIONS = 20, 20
LINE = frames.encode(frames.OPERATOR_LINE, b"get_server_list")


@define
class Processor:
    """The processor time that the daemon's thread has used."""

    used: float = 0.0


def use(pacing: Pacing, processor: Processor, uid: int, seconds: float) -> None:
    """Charge a user with processor time."""
    with pacing.charge(uid):
        processor.used += seconds


@with_limit
async def test_a_user_without_credit_waits_until_it_is_regained(autojump_clock: object) -> None:
    processor = Processor()
    pacing = Pacing(frozenset({0}), processor_time=lambda: processor.used)
    await pacing.wait(HOSTILE, 0)
    use(pacing, processor, HOSTILE, BURST_SECONDS + USER_RATE * 5)
    began = trio.current_time()
    await pacing.wait(HONEST, 0)
    assert trio.current_time() == began
    await pacing.wait(HOSTILE, 0)
    assert 5 <= trio.current_time() - began <= 5.1


@with_limit
async def test_trusted_users_never_wait(autojump_clock: object) -> None:
    processor = Processor()
    pacing = Pacing(frozenset({0}), processor_time=lambda: processor.used)
    began = trio.current_time()
    for _ in range(3):
        use(pacing, processor, 0, 100 * BURST_SECONDS)
        await pacing.wait(0, 100 * BURST_SECONDS)
    assert trio.current_time() == began


@with_limit
async def test_a_thousand_connections_at_a_time_are_not_paced(autojump_clock: object) -> None:
    made = Pacing(frozenset({0}))
    began = trio.current_time()
    for _ in range(1000):
        await made.wait(HONEST, pacing.CONNECTION_SECONDS + pacing.COMMAND_SECONDS)
    assert trio.current_time() == began


@with_limit
async def test_users_with_full_credit_are_forgotten_and_others_are_not(autojump_clock: object) -> None:
    pacing = Pacing(frozenset({0}))
    await pacing.wait(HOSTILE, 1.5 * BURST_SECONDS)
    for uid in range(20000, 20000 + 3 * MAX_IDLE_USERS):
        await pacing.wait(uid, 0)
    began = trio.current_time()
    await pacing.wait(HOSTILE, 0)
    assert trio.current_time() - began > BURST_SECONDS


@with_limit
async def test_one_command_of_another_user_does_not_wait_for_hundreds(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [HOSTILE]
    monkeypatch.setattr(listeners, "credentials", lambda plain: evolve(credentials(plain), uid=users[0]))
    monkeypatch.setattr("pympsd.service.sessions.conversation.operator_uid", lambda sock, peer, state: peer.uid)
    hostile = [await daemon.operator() for _ in range(CONNECTIONS)]
    for caller in hostile:
        assert await caller.ask(b"get_server_list")
    users[0] = HONEST
    honest = await daemon.operator()
    assert await honest.ask(b"get_server_list")
    answered = 0

    async def count(caller: Caller) -> None:
        nonlocal answered
        for _ in range(PER_CONNECTION):
            assert await caller.receive() is not None
            answered += 1

    async with trio.open_nursery() as nursery:
        for caller in hostile:
            await caller.send(LINE * PER_CONNECTION)
            nursery.start_soon(count, caller)
        assert await honest.ask(b"get_server_list")
        assert answered < PER_CONNECTION * CONNECTIONS / 4
    assert answered == PER_CONNECTION * CONNECTIONS


@with_limit
async def test_commands_whose_sender_has_gone_are_not_done(daemon: RunningDaemon) -> None:
    caller = await daemon.operator()
    assert await caller.ask(b"get_server_list")
    await caller.send(LINE * 1000)
    caller.sock.close()
    other = await daemon.operator()
    while len(daemon.dispatcher.sessions.operators) > 1:
        assert await other.ask(b"ps")
    done = sum(line == "Cmd:get_server_list" for line in daemon.sentences())
    assert done < 500
