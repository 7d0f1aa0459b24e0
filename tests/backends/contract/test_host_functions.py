"""Calls to the host in a stream: they come in order, hold what is after them, and hold nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import Device, Outcome, PendingHostFunction, Stream
from tests.backends.contract.port_user import Gate, PortUser, Told
from tests.backends.contract.test_memory import refused
from tests.backends.contract.test_order import told_by


@define(eq=False)
class Held:
    """A call in a stream, and whether it has begun."""

    begun: Told = field(factory=Told)
    call: PendingHostFunction | None = None

    @classmethod
    def of(cls, stream: Stream) -> Held:
        """Put a call into a stream."""
        held = cls()
        held.call = stream.launch_host_function(held.begun)
        return held

    def finish(self) -> None:
        """Let the stream go on."""
        assert self.call is not None
        self.call.finish()


@pytest.fixture
def stream(user: PortUser) -> Any:
    """A stream that does not wait for the default stream."""
    return user.context.create_stream(True, 0)


def test_a_call_comes_after_the_work_before_it(user: PortUser, stream: Stream) -> None:
    gate = Gate.closed(user, stream)
    held = Held.of(stream)
    assert held.begun.stays_silent()
    gate.open()
    assert held.begun.wait() == Result.SUCCESS
    held.finish()


def test_work_after_a_call_waits_for_it(user: PortUser, stream: Stream) -> None:
    word = user.words()
    held = Held.of(stream)
    user.launch("store", word, 7, stream=stream)
    done = told_by(stream)
    assert held.begun.wait() == Result.SUCCESS
    assert done.stays_silent()
    assert not stream.idle
    assert user.word(word) == 0
    held.finish()
    assert done.wait() == Result.SUCCESS
    assert stream.idle
    assert user.word(word) == 7


def test_calls_of_one_stream_come_one_after_the_other(stream: Stream) -> None:
    calls = [Held.of(stream) for _ in range(20)]
    for number, held in enumerate(calls):
        assert held.begun.wait() == Result.SUCCESS
        assert not any(later.begun.told for later in calls[number + 1 :])
        held.finish()
    assert stream.idle


def test_a_call_holds_no_other_stream_and_no_other_context(user: PortUser, stream: Stream, device: Device) -> None:
    held = Held.of(stream)
    free, other = user.context.create_stream(True, 0), PortUser.on(device, client=2)
    for one, of_it in ((user, free), (user, user.default), (other, other.default)):
        word = one.words()
        one.launch("store", word, 3, stream=of_it)
        assert one.word(word, of_it) == 3
        second = Held.of(of_it)
        assert second.begun.wait() == Result.SUCCESS
        second.finish()
    assert not stream.idle
    held.finish()


def test_the_default_stream_and_blocking_streams_wait_for_each_others_calls(user: PortUser) -> None:
    blocking = user.context.create_stream(False, 0)
    for first, second in ((blocking, user.default), (user.default, blocking)):
        held = Held.of(first)
        done = told_by(second)
        assert done.stays_silent()
        assert not second.idle
        held.finish()
        assert done.wait() == Result.SUCCESS


def test_events_and_the_whole_context_wait_for_a_call(user: PortUser, stream: Stream) -> None:
    event, everything, other = user.context.create_event(True), Told(), user.context.create_stream(True, 0)
    held = Held.of(stream)
    stream.record(event)
    other.wait(event)
    user.context.notify(everything)
    assert everything.stays_silent()
    assert not event.done
    assert not other.idle
    held.finish()
    assert everything.wait() == Result.SUCCESS
    assert event.done
    assert other.idle


def test_finishing_twice_does_nothing(user: PortUser, stream: Stream) -> None:
    first, second = Held.of(stream), Held.of(stream)
    first.finish()
    first.finish()
    assert second.begun.wait() == Result.SUCCESS
    assert not stream.idle
    second.finish()


def test_a_call_that_has_not_begun_cannot_be_finished(stream: Stream) -> None:
    first, second = Held.of(stream), Held.of(stream)
    with refused(Result.ERROR_INVALID_VALUE):
        second.finish()
    first.finish()
    assert second.begun.wait() == Result.SUCCESS
    second.finish()
    assert stream.idle


def test_a_fault_releases_what_waits_for_a_call(user: PortUser, stream: Stream) -> None:
    first, second = Held.of(stream), Held.of(stream)
    done = told_by(stream)
    user.launch("trapped", stream=user.context.create_stream(True, 0))
    assert second.begun.wait() == done.wait() == Result.ERROR_LAUNCH_FAILED
    assert first.begun.wait() == Result.SUCCESS
    first.finish()
    second.finish()
    with refused(Result.ERROR_LAUNCH_FAILED):
        Held.of(stream)


def test_terminating_and_destroying_a_context_do_not_wait_for_calls(device: Device) -> None:
    ended, destroyed = PortUser.on(device, client=1), PortUser.on(device, client=2)
    calls = [(Held.of(user.default), Held.of(user.default)) for user in (ended, destroyed)]
    ended.context.terminate(Outcome(Result.ERROR_MPS_CLIENT_TERMINATED, "ended"))
    destroyed.context.destroy()
    codes = (Result.ERROR_MPS_CLIENT_TERMINATED, Result.ERROR_CONTEXT_IS_DESTROYED)
    for (begun, waiting), code in zip(calls, codes, strict=True):
        assert begun.begun.wait() == Result.SUCCESS
        assert waiting.begun.wait() == code
        begun.finish()
        waiting.finish()
    ended.context.destroy()
