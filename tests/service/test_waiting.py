"""Waiting clients: timers that end or are cancelled, and the answer to a debugged client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from time_limit import with_limit

from pympsd.state_machine import instructions as do
from pympsd.state_machine.instructions import Timer, TimerKind
from pympsd.wire import messages
from pympsd.wire.messages import Versions

if TYPE_CHECKING:
    from tests.service.conftest import RunningDaemon

HELLO = messages.ClientHello(Versions(), 1, "reported", 2, {}, traced=True)


@with_limit
async def test_a_cancelled_timer_leaves_nothing_behind(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(type(daemon.dispatcher), "feed", lambda _, event: ended.append(event))
    tasks = len(daemon.dispatcher.nursery.child_tasks)
    for number in range(50):
        daemon.dispatcher._carry_out(do.SetTimer(Timer(TimerKind.TURN, number), 3600.0))
    # Including timers whose tasks have not started.
    for number in range(25):
        daemon.dispatcher._carry_out(do.CancelTimer(Timer(TimerKind.TURN, number)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(daemon.dispatcher.nursery.child_tasks) == tasks + 25
    for number in range(60):
        daemon.dispatcher._carry_out(do.CancelTimer(Timer(TimerKind.TURN, number)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(daemon.dispatcher.nursery.child_tasks) == tasks
    assert daemon.dispatcher.timers == {}
    assert ended == []


@with_limit
async def test_a_timer_that_ends_is_reported_and_removed(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = trio.Event()
    monkeypatch.setattr(type(daemon.dispatcher), "feed", lambda _, event: fed.set())
    daemon.dispatcher._carry_out(do.SetTimer(Timer(TimerKind.TURN, 1), 0.0))
    await fed.wait()
    assert daemon.dispatcher.timers == {}


@with_limit
async def test_a_debugged_client_continues_without_mps(daemon: RunningDaemon) -> None:
    caller = await daemon.connect()
    await caller.send(messages.encode(HELLO))
    frame = await caller.receive()
    assert frame is not None
    answer = messages.decode(frame)
    assert isinstance(answer, messages.GoWithoutMps)
    assert "is being debugged" in answer.reason
    assert await caller.receive() is None
    assert daemon.spawned == []
    assert daemon.dispatcher.sessions.clients == {}


@with_limit
async def test_a_debugged_client_that_disconnects_is_removed(daemon: RunningDaemon) -> None:
    first = await daemon.connect()
    await first.send(messages.encode(messages.ClientHello(Versions(), 1, "reported", 2, {})))
    await trio.testing.wait_all_tasks_blocked()
    debugged = await daemon.connect()
    await debugged.send(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked()
    assert len(daemon.dispatcher.state.queue.debugged) == 1
    debugged.sock.close()
    await trio.testing.wait_all_tasks_blocked()
    assert daemon.dispatcher.state.queue.debugged == {}
    assert len(daemon.dispatcher.sessions.clients) == 1
