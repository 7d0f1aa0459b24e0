"""The order of work: streams, the legacy default stream, events, completions."""

from __future__ import annotations

import pytest

from pympsd.vocabulary.results import Result
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Launch, Stream
from tests.backends.contract.port_user import Gate, Notified, PortUser, fill
from tests.backends.contract.test_memory import expect_refusal


def notification_of(stream: Stream) -> Notified:
    """Return the notification that the work before it is done."""
    notified = Notified()
    stream.notify(notified)
    return notified


def test_work_in_a_stream_is_done_in_order(user: PortUser) -> None:
    stream, word = user.context.create_stream(True, 0), user.words()
    gate = Gate.closed(user, stream)
    user.launch("store", word, 1, stream=stream)
    user.launch("until", word, 1, stream=stream)
    copied = user.write(word, b"\2\0\0\0", stream)
    stream.fill(fill(word + 1, 7, 1, 1))
    done = notification_of(stream)
    assert copied.stays_silent()
    assert not stream.idle
    gate.open()
    assert done.wait() == copied.wait() == Result.SUCCESS
    assert user.word(word) == 0x0702
    assert stream.idle


def test_an_idle_stream_notifies_immediately(user: PortUser) -> None:
    assert notification_of(user.default).called
    assert notification_of(user.context.create_stream(False, 0)).called


def test_streams_do_not_wait_for_each_other(user: PortUser) -> None:
    first, second = (user.context.create_stream(False, 0) for _ in range(2))
    gate = Gate.closed(user, first)
    user.launch("empty", stream=second)
    assert notification_of(second).wait() == Result.SUCCESS
    assert not first.idle
    gate.open()
    assert notification_of(first).wait() == Result.SUCCESS


def test_the_default_stream_waits_for_blocking_streams(user: PortUser) -> None:
    gate = Gate.closed(user, user.context.create_stream(False, 0))
    user.launch("empty")
    done = notification_of(user.default)
    assert done.stays_silent()
    assert not user.default.idle
    gate.open()
    assert done.wait() == Result.SUCCESS


def test_blocking_streams_wait_for_the_default_stream(user: PortUser) -> None:
    stream = user.context.create_stream(False, 0)
    gate = Gate.closed(user)
    user.launch("empty", stream=stream)
    done = notification_of(stream)
    assert done.stays_silent()
    assert not stream.idle
    gate.open()
    assert done.wait() == Result.SUCCESS


def test_non_blocking_streams_and_the_default_stream_do_not_wait_for_each_other(user: PortUser) -> None:
    free, default_gate = user.context.create_stream(True, 0), Gate.closed(user)
    assert notification_of(free).wait() == Result.SUCCESS
    default_gate.open()
    assert notification_of(user.default).wait() == Result.SUCCESS
    free_gate = Gate.closed(user, free)
    assert notification_of(user.default).wait() == Result.SUCCESS
    free_gate.open()
    assert user.synchronize() == Result.SUCCESS


def test_the_default_stream_waits_for_a_blocking_stream_that_was_destroyed(user: PortUser) -> None:
    stream, word = user.context.create_stream(False, 0), user.words()
    gate = Gate.closed(user, stream)
    user.launch("store", word, 5, stream=stream)
    stream.destroy()
    done = notification_of(user.default)
    assert done.stays_silent()
    gate.open()
    assert done.wait() == Result.SUCCESS
    assert user.word(word) == 5


def test_contexts_do_not_wait_for_each_other(device: Device) -> None:
    first, second = PortUser.on(device, client=1), PortUser.on(device, client=1)
    assert second.module  # loading it may wait for kernels
    gate = Gate.closed(first)
    second.launch("empty")
    assert second.synchronize() == Result.SUCCESS
    gate.open()
    assert first.synchronize() == Result.SUCCESS


def test_a_context_notifies_when_all_its_streams_are_done(user: PortUser) -> None:
    gates = [Gate.closed(user, user.context.create_stream(True, 0)) for _ in range(2)]
    done = Notified()
    user.context.notify(done)
    gates[0].open()
    assert done.stays_silent()
    gates[1].open()
    assert done.wait() == Result.SUCCESS


def test_an_event_is_done_with_the_work_before_it(user: PortUser) -> None:
    event, stream = user.context.create_event(True), user.context.create_stream(True, 0)
    assert event.done
    gate = Gate.closed(user, stream)
    stream.record(event)
    assert not event.done
    notified = Notified()
    event.notify(notified)
    later = Gate.closed(user, stream)
    gate.open()
    assert notified.wait() == Result.SUCCESS
    assert event.done
    later.open()
    assert user.synchronize() == Result.SUCCESS


def test_a_stream_waits_for_an_event_of_another(user: PortUser) -> None:
    first, second = (user.context.create_stream(True, 0) for _ in range(2))
    event, word = user.context.create_event(False), user.words()
    gate = Gate.closed(user, first)
    user.launch("store", word, 3, stream=first)
    first.record(event)
    second.wait(event)
    user.launch("until", word, 3, stream=second)
    done = notification_of(second)
    assert done.stays_silent()
    gate.open()
    assert done.wait() == Result.SUCCESS


def test_a_wait_is_for_the_last_record_before_it(user: PortUser) -> None:
    first, second = (user.context.create_stream(True, 0) for _ in range(2))
    event = user.context.create_event(False)
    second.wait(event)  # never recorded
    assert second.idle
    early = Gate.closed(user, first)
    first.record(event)
    second.wait(event)
    late = Gate.closed(user, first)
    first.record(event)
    done = notification_of(second)
    early.open()
    assert done.wait() == Result.SUCCESS
    assert not event.done
    late.open()
    assert user.synchronize() == Result.SUCCESS
    assert event.done


def test_time_between_events(user: PortUser) -> None:
    start, end, plain, never = (user.context.create_event(timing) for timing in (True, True, False, True))
    stream = user.context.create_stream(True, 0)
    stream.record(start)
    gate = Gate.closed(user, stream)
    stream.record(end)
    stream.record(plain)
    with expect_refusal(Result.ERROR_NOT_READY):
        end.milliseconds_since(start)
    assert notification_of(stream).stays_silent()
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert 40 < end.milliseconds_since(start) < 30_000
    assert start.milliseconds_since(end) == -end.milliseconds_since(start)
    for other in (plain, never):
        with expect_refusal(Result.ERROR_INVALID_HANDLE):
            other.milliseconds_since(start)


def test_objects_of_another_context_are_refused(device: Device) -> None:
    mine, theirs = PortUser.on(device, client=1), PortUser.on(device, client=1)
    with expect_refusal(Result.ERROR_INVALID_HANDLE):
        mine.default.record(theirs.context.create_event(True))
    with expect_refusal(Result.ERROR_INVALID_HANDLE):
        mine.default.launch(Launch(theirs.module, 0, (1, 1, 1), (1, 1, 1), 0, b""))


@pytest.mark.parametrize("priority", [-100, -5, -3, 0, 100])
def test_priorities_are_accepted(user: PortUser, priority: int) -> None:
    least, greatest = user.device.stream_priorities
    assert least >= greatest
    stream = user.context.create_stream(True, priority)
    user.launch("empty", stream=stream)
    assert notification_of(stream).wait() == Result.SUCCESS


def test_a_low_priority_is_never_starved(device: Device) -> None:
    high, low = PortUser.on(device, client=1), PortUser.on(device, client=2, priority=1)
    word = high.words()
    assert low.module  # loading it may wait for kernels
    gate = Gate.closed(high, high.context.create_stream(True, -5))
    high.launch("store", word, 1, stream=high.context.create_stream(True, 0))
    low.launch("empty")
    assert low.synchronize() == Result.SUCCESS
    side = high.context.create_stream(True, 0)
    assert notification_of(side).wait() == Result.SUCCESS
    gate.open()
    assert high.synchronize() == Result.SUCCESS


def test_many_launches_in_many_streams(user: PortUser) -> None:
    streams, words = [user.context.create_stream(False, 0) for _ in range(8)], user.words(8)
    gate = Gate.closed(user)
    for value in range(1, 51):
        for index, stream in enumerate(streams):
            user.launch("store", words + 4 * index, value, stream=stream)
    gate.open()
    assert user.synchronize() == Result.SUCCESS
    assert user.read(words, 32) == b"\x32\0\0\0" * 8


def test_a_destroyed_context_calls_pending_completions(user: PortUser) -> None:
    user.launch("endless")
    notified = notification_of(user.default)
    user.context.destroy()
    assert notified.wait() == Result.ERROR_CONTEXT_IS_DESTROYED
    with pytest.raises(BackendError):
        user.context.allocate(1)
