"""Who is told what: completions, the thread that sees points passed, and the janitor. The driver here is made up."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event as Flag
from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.reclaim.janitor import Janitor
from pympsd_server.backends.cuda.submission.completions import PendingCompletions
from pympsd_server.backends.cuda.submission.stream_markers import MarkerWatcher
from pympsd_server.backends.interface import BackendError, Outcome

SECONDS = 30.0
FAULT = Outcome(Result.ERROR_LAUNCH_FAILED, "a fault")


@define(eq=False)
class FakeMarker:
    """A point that is passed when the test says so; asking for it fails with ``error``, on a ruined device."""

    is_passed: bool = False
    asked: Flag = field(factory=Flag)
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether it is."""
        self.asked.set()
        if self.error is not None:
            raise self.error
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
def ruins() -> Notes:
    """What the watch was told to ruin the device with."""
    return Notes()


@pytest.fixture
def watch(ruins: Notes) -> Iterator[MarkerWatcher]:
    """A watch that looks at nothing else."""
    opened = MarkerWatcher(lambda: None, ruins.add)
    yield opened
    opened.close()


@pytest.fixture
def janitor() -> Iterator[Janitor]:
    """A janitor."""
    opened = Janitor()
    yield opened
    opened.close()


def test_a_promise_is_told_once_whoever_comes_first() -> None:
    completions, notes = PendingCompletions(), Notes()
    by_work, by_fault = completions.add(notes.add), completions.add(notes.add)
    by_work(Outcome())
    completions.end(FAULT)
    by_work(FAULT)
    by_fault(Outcome())
    assert notes.told == [Outcome(), FAULT]


def test_a_promise_that_is_taken_back_is_never_told() -> None:
    completions, notes = PendingCompletions(), Notes()
    promise = completions.add(notes.add)
    assert completions.take(promise)
    assert not completions.take(promise)
    completions.end(FAULT)
    assert notes.told == []


def test_points_of_a_stream_are_told_in_order_and_streams_do_not_wait_for_each_other(watch: MarkerWatcher) -> None:
    notes, first, second, other = Notes(), FakeMarker(), FakeMarker(is_passed=True), FakeMarker()
    watch.add("stream", first, lambda: notes.add("first"))
    watch.add("stream", second, lambda: notes.add("second"))
    watch.add("other", other, lambda: notes.add("other"))
    assert first.asked.wait(SECONDS)
    other.is_passed = True
    notes.wait()
    assert notes.told == ["other"]
    assert not second.asked.is_set(), "only a stream's first point is asked for"
    last = Notes()
    watch.add("stream", FakeMarker(is_passed=True), lambda: last.add("third"))
    first.is_passed = True
    last.wait()
    assert notes.told == ["other", "first", "second"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackendError(FAULT.code, FAULT.reason), FAULT.code),
        (BackendError(Result.ERROR_UNKNOWN, "a code that nobody expects"), Result.ERROR_UNKNOWN),
        (RuntimeError("a defect"), Result.ERROR_UNKNOWN),
    ],
)
def test_where_a_point_cannot_be_asked_for_the_device_is_ruined_and_the_watch_goes_on(
    watch: MarkerWatcher, ruins: Notes, error: Exception, code: Result
) -> None:
    notes, late = Notes(), Notes()
    watch.add("stream", FakeMarker(error=error), lambda: notes.add("dead"))
    ruins.wait()
    assert [outcome.code for outcome in ruins.told] == [code]
    watch.add("other", FakeMarker(is_passed=True), lambda: late.add("late"))
    late.wait()
    assert notes.told == []


@pytest.mark.parametrize("error", [BackendError(FAULT.code, FAULT.reason), KeyError("a defect")])
def test_what_one_callback_meets_is_not_the_others(
    watch: MarkerWatcher, ruins: Notes, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = Notes()

    def broken() -> None:
        raise error

    watch.add("stream", FakeMarker(is_passed=True), broken)
    watch.add("stream", FakeMarker(is_passed=True), lambda: notes.add("told"))
    notes.wait()
    assert ruins.told == []
    assert ("KeyError: 'a defect'" in capfd.readouterr().err) is isinstance(error, KeyError)


def test_a_watch_with_nothing_to_watch_looks_at_everything_now_and_then() -> None:
    looked = Flag()
    watch = MarkerWatcher(looked.set, lambda outcome: None)
    assert looked.wait(SECONDS)
    watch.close()


def test_it_goes_on_looking_whatever_that_meets(capfd: pytest.CaptureFixture[str]) -> None:
    looks, again = iter(range(100)), Flag()

    def look() -> None:
        if not next(looks):
            raise RuntimeError("a defect")
        again.set()

    watch = MarkerWatcher(look, lambda outcome: None)
    assert again.wait(SECONDS)
    watch.close()
    assert "RuntimeError: a defect" in capfd.readouterr().err


@pytest.mark.parametrize("error", [BackendError(FAULT.code, FAULT.reason), KeyError("a defect")])
def test_the_janitor_acts_when_it_may_and_is_not_stopped_by_errors(janitor: Janitor, error: Exception) -> None:
    notes, may = Notes(), Flag()

    def broken() -> bool:
        raise error

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
