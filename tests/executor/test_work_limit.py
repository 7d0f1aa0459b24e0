"""The limit on one client's unfinished work counts what is spread thinly over many streams too."""

from __future__ import annotations

from typing import Any

from attrs import define, field

from pympsd_server.backends.interface import Outcome
from pympsd_server.executor.work_limit import LIMIT, WorkLimit


@define(eq=False)
class FakeStream:
    """A stream whose work ends when the test says so."""

    done: list[Any] = field(factory=list)

    def notify(self, done: Any) -> None:
        self.done.append(done)

    def finish(self) -> None:
        waiting, self.done = self.done, []
        for each in waiting:
            each(Outcome())


@define(eq=False)
class Entry:
    """What the executor keeps of a stream."""

    backend: FakeStream = field(factory=FakeStream)
    uncounted: int = 0


def is_full(limit: WorkLimit) -> bool:
    return limit._unfinished >= LIMIT


def test_one_stream_fills_it_and_its_end_empties_it() -> None:
    limit, entry = WorkLimit(), Entry()
    for _ in range(LIMIT):
        limit.enter(entry)  # type: ignore[arg-type]  # a stand-in
    assert is_full(limit)
    entry.backend.finish()
    assert not is_full(limit)
    limit.wait_for_room()


def test_one_operation_in_each_of_very_many_streams_fills_it() -> None:
    limit, entries = WorkLimit(), [Entry() for _ in range(LIMIT)]
    for entry in entries:
        limit.enter(entry)  # type: ignore[arg-type]  # a stand-in
    assert is_full(limit)
    for entry in entries:
        entry.backend.finish()
    assert not is_full(limit)
