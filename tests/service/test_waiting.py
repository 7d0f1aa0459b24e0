"""Clients that wait, seen from the door: timers that end or are cancelled, and a debugged client's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from pympsd.state_machine import instructions as do
from pympsd.state_machine.timers import Timer, TimerKind
from pympsd.wire import messages
from pympsd.wire.versions import Versions
from tests.service.conftest import bounded

if TYPE_CHECKING:
    from tests.service.conftest import House

HELLO = messages.ClientHello(Versions(), 1, "told", 2, {}, traced=True)


@bounded
async def test_a_cancelled_timer_leaves_nothing_behind(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(type(house.hub), "feed", lambda _, event: ended.append(event))
    tasks = len(house.hub.nursery.child_tasks)
    for number in range(50):
        house.hub._carry_out(do.SetTimer(Timer(TimerKind.TURN, number), 3600.0))
    # Also one that has not begun to wait yet.
    for number in range(25):
        house.hub._carry_out(do.CancelTimer(Timer(TimerKind.TURN, number)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(house.hub.nursery.child_tasks) == tasks + 25
    for number in range(60):
        house.hub._carry_out(do.CancelTimer(Timer(TimerKind.TURN, number)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(house.hub.nursery.child_tasks) == tasks
    assert house.hub.timers == {}
    assert ended == []


@bounded
async def test_a_timer_that_ended_is_told_and_forgotten(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    told = trio.Event()
    monkeypatch.setattr(type(house.hub), "feed", lambda _, event: told.set())
    house.hub._carry_out(do.SetTimer(Timer(TimerKind.TURN, 1), 0.0))
    await told.wait()
    assert house.hub.timers == {}


@bounded
async def test_a_debugged_client_is_told_to_go_on_without_mps(house: House) -> None:
    caller = await house.connect()
    await caller.say(messages.encode(HELLO))
    frame = await caller.hear()
    assert frame is not None
    answer = messages.decode(frame)
    assert isinstance(answer, messages.GoWithoutMps)
    assert "under a debugger" in answer.reason
    assert await caller.hear() is None
    assert house.spawned == []
    assert house.hub.clients == {}


@bounded
async def test_a_debugged_client_that_hangs_up_is_forgotten(house: House) -> None:
    first = await house.connect()
    await first.say(messages.encode(messages.ClientHello(Versions(), 1, "told", 2, {})))
    await trio.testing.wait_all_tasks_blocked()
    debugged = await house.connect()
    await debugged.say(messages.encode(HELLO))
    await trio.testing.wait_all_tasks_blocked()
    assert len(house.hub.mind.debugged) == 1
    debugged.sock.close()
    await trio.testing.wait_all_tasks_blocked()
    assert house.hub.mind.debugged == {}
    assert len(house.hub.clients) == 1
