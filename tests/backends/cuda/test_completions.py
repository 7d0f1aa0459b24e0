"""Completions, the thread that sees markers passed, and the cleanup thread; without a driver."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event as Flag
from typing import Any

import pytest
from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.memory.cleanup_thread import CleanupThread
from pympsd_server.backends.cuda.submission.completions import PendingCompletions
from pympsd_server.backends.cuda.submission.stream_markers import MarkerWatcher
from pympsd_server.backends.interface import BackendError, Status

SECONDS = 30.0
FAULT = Status(Result.ERROR_LAUNCH_FAILED, "a fault")


@define(eq=False)
class FakeMarker:
    """A marker that is passed when the test sets it; querying it fails with ``error``, as on a faulted device."""

    is_passed: bool = False
    was_queried: Flag = field(factory=Flag)
    error: Exception | None = None

    @property
    def passed(self) -> bool:
        """Whether it is."""
        self.was_queried.set()
        if self.error is not None:
            raise self.error
        return self.is_passed


@define(eq=False)
class Notes:
    """Records values, with a flag for each."""

    values: list[Any] = field(factory=list)
    flag: Flag = field(factory=Flag)

    def add(self, value: Any) -> None:
        """Record a value."""
        self.values.append(value)
        self.flag.set()

    def wait(self) -> None:
        """Wait for the next."""
        assert self.flag.wait(SECONDS)
        self.flag.clear()


@pytest.fixture
def poisonings() -> Notes:
    """The errors with which the watcher poisons the device."""
    return Notes()


@pytest.fixture
def watcher(poisonings: Notes) -> Iterator[MarkerWatcher]:
    """A watcher that looks at nothing else."""
    opened = MarkerWatcher(lambda: None, poisonings.add)
    yield opened
    opened.close()


@pytest.fixture
def cleanup() -> Iterator[CleanupThread]:
    """A cleanup thread."""
    opened = CleanupThread()
    yield opened
    opened.close()


def test_a_completion_is_called_once() -> None:
    completions, notes = PendingCompletions(), Notes()
    by_work, by_fault = completions.add(notes.add), completions.add(notes.add)
    by_work(Status())
    completions.end(FAULT)
    by_work(FAULT)
    by_fault(Status())
    assert notes.values == [Status(), FAULT]


def test_a_removed_completion_is_never_called() -> None:
    completions, notes = PendingCompletions(), Notes()
    pending = completions.add(notes.add)
    assert completions.take(pending)
    assert not completions.take(pending)
    completions.end(FAULT)
    assert notes.values == []


def test_markers_of_a_stream_pass_in_order_and_streams_do_not_wait_for_each_other(watcher: MarkerWatcher) -> None:
    notes, first, second, other = Notes(), FakeMarker(), FakeMarker(is_passed=True), FakeMarker()
    watcher.add("stream", first, lambda: notes.add("first"))
    watcher.add("stream", second, lambda: notes.add("second"))
    watcher.add("other", other, lambda: notes.add("other"))
    assert first.was_queried.wait(SECONDS)
    other.is_passed = True
    notes.wait()
    assert notes.values == ["other"]
    assert not second.was_queried.is_set(), "only a stream's first marker is queried"
    last = Notes()
    watcher.add("stream", FakeMarker(is_passed=True), lambda: last.add("third"))
    first.is_passed = True
    last.wait()
    assert notes.values == ["other", "first", "second"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackendError(FAULT.code, FAULT.reason), FAULT.code),
        (BackendError(Result.ERROR_UNKNOWN, "an unexpected code"), Result.ERROR_UNKNOWN),
        (RuntimeError("a defect"), Result.ERROR_UNKNOWN),
    ],
)
def test_a_marker_that_cannot_be_queried_poisons_the_device_and_the_watcher_continues(
    watcher: MarkerWatcher, poisonings: Notes, error: Exception, code: Result
) -> None:
    notes, late = Notes(), Notes()
    watcher.add("stream", FakeMarker(error=error), lambda: notes.add("dead"))
    poisonings.wait()
    assert [status.code for status in poisonings.values] == [code]
    watcher.add("other", FakeMarker(is_passed=True), lambda: late.add("late"))
    late.wait()
    assert notes.values == []


@pytest.mark.parametrize("error", [BackendError(FAULT.code, FAULT.reason), KeyError("a defect")])
def test_an_error_in_a_callback_does_not_affect_the_others(
    watcher: MarkerWatcher, poisonings: Notes, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = Notes()

    def broken() -> None:
        raise error

    watcher.add("stream", FakeMarker(is_passed=True), broken)
    watcher.add("stream", FakeMarker(is_passed=True), lambda: notes.add("notified"))
    notes.wait()
    assert poisonings.values == []
    assert ("KeyError: 'a defect'" in capfd.readouterr().err) is isinstance(error, KeyError)


def test_an_idle_watcher_looks_at_all_work_regularly() -> None:
    looked = Flag()
    watcher = MarkerWatcher(looked.set, lambda status: None)
    assert looked.wait(SECONDS)
    watcher.close()


def test_the_completion_thread_continues_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    looks, again = iter(range(100)), Flag()

    def look() -> None:
        if not next(looks):
            raise RuntimeError("a defect")
        again.set()

    watcher = MarkerWatcher(look, lambda status: None)
    assert again.wait(SECONDS)
    watcher.close()
    assert "RuntimeError: a defect" in capfd.readouterr().err


@pytest.mark.parametrize("error", [BackendError(FAULT.code, FAULT.reason), KeyError("a defect")])
def test_the_cleanup_thread_acts_when_ready_and_continues_after_errors(
    cleanup: CleanupThread, error: Exception
) -> None:
    notes, may = Notes(), Flag()

    def broken() -> bool:
        raise error

    was_queried = Notes()

    def ready() -> bool:
        was_queried.add("asked")
        return may.is_set()

    cleanup.add(ready, lambda: notes.add("waited"))
    cleanup.add(broken, lambda: notes.add("never"))
    cleanup.add(lambda: True, lambda: notes.add("at once"))
    notes.wait()
    assert notes.values == ["at once"]
    may.set()
    notes.wait()
    assert notes.values == ["at once", "waited"]
