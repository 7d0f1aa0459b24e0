"""Who is told what: promises, the thread that sees points passed, and the janitor. The driver here is made up."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event as Flag
from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.janitor import Janitor
from pympsd_server.backends.cuda.points import Watch
from pympsd_server.backends.cuda.promises import Promises
from pympsd_server.backends.interface import BackendError, Outcome

SECONDS = 30.0
FAULT = Outcome(Result.ERROR_LAUNCH_FAILED, "a fault")


@define(eq=False)
class FakePoint:
    """A point that is passed when the test says so; asking a ruined device fails."""

    is_passed: bool = False
    asked: Flag = field(factory=Flag)
    ruined: bool = False

    @property
    def passed(self) -> bool:
        """Whether it is."""
        self.asked.set()
        if self.ruined:
            raise BackendError(FAULT.code, FAULT.reason)
        return self.is_passed


@define(eq=False)
class Notes:
    """What was told, and a flag for each."""

    told: list[Any] = field(factory=list)
    flag: Flag = field(factory=Flag)

    def add(self, what: Any) -> None:
        """Tell it."""
        self.told.append(what)
        self.flag.set()

    def wait(self) -> None:
        """Wait for the next."""
        assert self.flag.wait(SECONDS)
        self.flag.clear()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A watch that looks at nothing else."""
    opened = Watch(lambda: None)
    yield opened
    opened.close()


@pytest.fixture
def janitor() -> Iterator[Janitor]:
    """A janitor."""
    opened = Janitor()
    yield opened
    opened.close()


def test_a_promise_is_told_once_whoever_comes_first() -> None:
    promises, notes = Promises(), Notes()
    by_work, by_fault = promises.make(notes.add), promises.make(notes.add)
    by_work(Outcome())
    promises.end(FAULT)
    by_work(FAULT)
    by_fault(Outcome())
    assert notes.told == [Outcome(), FAULT]


def test_a_promise_that_is_taken_back_is_never_told() -> None:
    promises, notes = Promises(), Notes()
    promise = promises.make(notes.add)
    assert promises.take(promise)
    assert not promises.take(promise)
    promises.end(FAULT)
    assert notes.told == []


def test_points_of_a_stream_are_told_in_order_and_streams_do_not_wait_for_each_other(watch: Watch) -> None:
    notes, first, second, other = Notes(), FakePoint(), FakePoint(is_passed=True), FakePoint()
    watch.add("stream", first, lambda: notes.add("first"))
    watch.add("stream", second, lambda: notes.add("second"))
    watch.add("other", other, lambda: notes.add("other"))
    assert first.asked.wait(SECONDS)
    other.is_passed = True
    notes.wait()
    assert notes.told == ["other"]
    assert not second.asked.is_set(), "only a stream's first point is asked for"
    last = Notes()
    watch.add("stream", FakePoint(is_passed=True), lambda: last.add("third"))
    first.is_passed = True
    last.wait()
    assert notes.told == ["other", "first", "second"]


def test_after_a_ruin_the_watch_goes_on_and_tells_nobody_of_before(watch: Watch) -> None:
    notes, dead = Notes(), FakePoint(ruined=True)
    watch.add("stream", dead, lambda: notes.add("dead"))
    assert dead.asked.wait(SECONDS)
    late = Notes()
    watch.add("other", FakePoint(is_passed=True), lambda: late.add("late"))
    late.wait()
    assert notes.told == []


def test_a_watch_with_nothing_to_watch_looks_at_everything_now_and_then() -> None:
    looked = Flag()
    watch = Watch(looked.set)
    assert looked.wait(SECONDS)
    watch.close()


def test_the_janitor_acts_when_it_may_and_is_not_stopped_by_errors(janitor: Janitor) -> None:
    notes, may = Notes(), Flag()

    def broken() -> bool:
        raise BackendError(FAULT.code, FAULT.reason)

    asked = Notes()

    def ready() -> bool:
        asked.add("asked")
        return may.is_set()

    janitor.add(ready, lambda: notes.add("waited"))
    janitor.add(broken, lambda: notes.add("never"))
    janitor.add(lambda: True, lambda: notes.add("at once"))
    notes.wait()
    assert notes.told == ["at once"]
    may.set()
    notes.wait()
    assert notes.told == ["at once", "waited"]
