"""Host functions in a stream: they run in order, delay the work after them, and block no other stream."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import PendingHostFunction, Status, Stream
from tests.backends.contract.port_user import Gate, Notified, PortUser
from tests.backends.contract.test_memory import expect_refusal
from tests.backends.contract.test_order import notification_of


@define(eq=False)
class HostFunction:
    """A host function in a stream, and whether it has begun."""

    begun: Notified = field(factory=Notified)
    function: PendingHostFunction | None = None

    @classmethod
    def of(cls, stream: Stream) -> HostFunction:
        """Launch a host function in a stream."""
        placed = cls()
        placed.function = stream.launch_host_function(placed.begun)
        return placed

    def finish(self) -> None:
        """Resume the stream."""
        assert self.function is not None
        self.function.finish()


@pytest.fixture
def stream(user: PortUser) -> Any:
    """A stream that does not wait for the default stream."""
    return user.context.create_stream(True, 0)


def test_a_host_function_begins_after_the_work_before_it(user: PortUser, stream: Stream) -> None:
    gate = Gate.closed(user, stream)
    placed = HostFunction.of(stream)
    assert placed.begun.stays_silent()
    gate.open()
    assert placed.begun.wait() == Result.SUCCESS
    placed.finish()


def test_work_after_a_host_function_waits_for_it(user: PortUser, stream: Stream) -> None:
    word = user.words()
    placed = HostFunction.of(stream)
    user.launch("store", word, 7, stream=stream)
    done = notification_of(stream)
    assert placed.begun.wait() == Result.SUCCESS
    assert done.stays_silent()
    assert not stream.idle
    assert user.word(word) == 0
    placed.finish()
    assert done.wait() == Result.SUCCESS
    assert stream.idle
    assert user.word(word) == 7


def test_host_functions_of_one_stream_run_one_after_the_other(stream: Stream) -> None:
    calls = [HostFunction.of(stream) for _ in range(20)]
    for number, placed in enumerate(calls):
        assert placed.begun.wait() == Result.SUCCESS
        assert not any(later.begun.called for later in calls[number + 1 :])
        placed.finish()
    assert stream.idle


def test_a_host_function_blocks_no_other_stream_or_context(user: PortUser, stream: Stream, device: Device) -> None:
    placed = HostFunction.of(stream)
    free, other = user.context.create_stream(True, 0), PortUser.on(device, client=2)
    for first, of_it in ((user, free), (user, user.default), (other, other.default)):
        word = first.words()
        first.launch("store", word, 3, stream=of_it)
        assert first.word(word, of_it) == 3
        second = HostFunction.of(of_it)
        assert second.begun.wait() == Result.SUCCESS
        second.finish()
    assert not stream.idle
    placed.finish()


def test_the_default_stream_and_blocking_streams_wait_for_each_others_host_functions(user: PortUser) -> None:
    blocking = user.context.create_stream(False, 0)
    for first, second in ((blocking, user.default), (user.default, blocking)):
        placed = HostFunction.of(first)
        done = notification_of(second)
        assert done.stays_silent()
        assert not second.idle
        placed.finish()
        assert done.wait() == Result.SUCCESS


def test_events_and_the_whole_context_wait_for_a_host_function(user: PortUser, stream: Stream) -> None:
    event, everything, other = user.context.create_event(True), Notified(), user.context.create_stream(True, 0)
    placed = HostFunction.of(stream)
    stream.record(event)
    other.wait(event)
    user.context.notify(everything)
    assert everything.stays_silent()
    assert not event.done
    assert not other.idle
    placed.finish()
    assert everything.wait() == Result.SUCCESS
    assert event.done
    assert other.idle


def test_finishing_twice_does_nothing(user: PortUser, stream: Stream) -> None:
    first, second = HostFunction.of(stream), HostFunction.of(stream)
    first.finish()
    first.finish()
    assert second.begun.wait() == Result.SUCCESS
    assert not stream.idle
    second.finish()


def test_a_host_function_that_has_not_begun_cannot_be_finished(stream: Stream) -> None:
    first, second = HostFunction.of(stream), HostFunction.of(stream)
    with expect_refusal(Result.ERROR_INVALID_VALUE):
        second.finish()
    first.finish()
    assert second.begun.wait() == Result.SUCCESS
    second.finish()
    assert stream.idle


def test_a_fault_releases_what_waits_for_a_host_function(user: PortUser, stream: Stream) -> None:
    first, second = HostFunction.of(stream), HostFunction.of(stream)
    done = notification_of(stream)
    user.launch("trapped", stream=user.context.create_stream(True, 0))
    assert second.begun.wait() == done.wait() == Result.ERROR_LAUNCH_FAILED
    assert first.begun.wait() == Result.SUCCESS
    first.finish()
    second.finish()
    with expect_refusal(Result.ERROR_LAUNCH_FAILED):
        HostFunction.of(stream)


def test_terminating_and_destroying_a_context_do_not_wait_for_host_functions(device: Device) -> None:
    ended, destroyed = PortUser.on(device, client=1), PortUser.on(device, client=2)
    calls = [(HostFunction.of(user.default), HostFunction.of(user.default)) for user in (ended, destroyed)]
    ended.context.terminate(Status(Result.ERROR_MPS_CLIENT_TERMINATED, "ended"))
    destroyed.context.destroy()
    codes = (Result.ERROR_MPS_CLIENT_TERMINATED, Result.ERROR_CONTEXT_IS_DESTROYED)
    for (begun, waiting), code in zip(calls, codes, strict=True):
        assert begun.begun.wait() == Result.SUCCESS
        assert waiting.begun.wait() == code
        begun.finish()
        waiting.finish()
    ended.context.destroy()
