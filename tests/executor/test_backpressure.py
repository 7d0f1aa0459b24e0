"""The limit on one client's unfinished work counts what is spread thinly over many streams too."""

from __future__ import annotations

from typing import Any

from attrs import define, field

from pympsd_server.backends.interface import Status
from pympsd_server.executor.requests.backpressure import HALF_OF_MAX, MAX_UNFINISHED, Backpressure


@define(eq=False)
class FakeStream:
    """A stream whose work ends when the test decides."""

    done: list[Any] = field(factory=list)

    def notify(self, done: Any) -> None:
        self.done.append(done)

    def finish(self) -> None:
        waiting, self.done = self.done, []
        for callback in waiting:
            callback(Status())


@define(eq=False)
class Entry:
    """What the executor keeps of a stream."""

    backend: FakeStream = field(factory=FakeStream)
    uncounted: int = 0


def is_full(limit: Backpressure) -> bool:
    return limit._unfinished >= MAX_UNFINISHED


def test_one_stream_reaches_the_limit_and_its_end_frees_all() -> None:
    limit, entry = Backpressure(), Entry()
    for _ in range(MAX_UNFINISHED):
        limit.enter(entry)  # type: ignore[arg-type]  # a fake
    assert is_full(limit)
    entry.backend.finish()
    assert not is_full(limit)
    limit.wait_for_room()


def test_one_operation_in_each_of_many_streams_reaches_the_limit() -> None:
    limit, entries = Backpressure(), [Entry() for _ in range(MAX_UNFINISHED)]
    for entry in entries:
        limit.enter(entry)  # type: ignore[arg-type]  # a fake
    assert is_full(limit)
    for entry in entries:
        entry.backend.finish()
    assert not is_full(limit)


def test_waiters_are_notified_when_half_is_free() -> None:
    limit, entry, notified = Backpressure(), Entry(), []
    limit.call_when_half_is_free(lambda: notified.append("at once"))
    for _ in range(HALF_OF_MAX):
        limit.enter(entry)  # type: ignore[arg-type]  # a fake
    limit.call_when_half_is_free(lambda: notified.append("later"))
    limit.call_when_half_is_free(lambda: notified.append("later too"))
    assert notified == ["at once"]
    entry.backend.finish()
    assert notified == ["at once", "later", "later too"]
    limit.enter(entry)  # type: ignore[arg-type]  # a fake
    entry.backend.finish()
    assert len(notified) == 3


def test_a_request_for_room_counts_work_that_is_not_counted_yet() -> None:
    limit, entries, notified = Backpressure(), [Entry() for _ in range(HALF_OF_MAX)], []
    for entry in entries:
        limit.enter(entry)  # type: ignore[arg-type]  # a fake
    limit.call_when_half_is_free(lambda: notified.append(True))
    assert not notified
    entries[0].backend.finish()
    assert notified
