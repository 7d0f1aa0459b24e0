"""Points in streams, and the thread that sees them passed.

It asks rather than waits: after a kernel of 5 us, launch included, an event that is asked for is seen after 13 us, a
blocking wait or a host function comes after 48 us (docs/decisions/004-what-the-gpu-decided.md). A stream's points are
passed in order, so only its first is asked for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu
from pympsd_server.backends.cuda.driver.internal_errors import call_apart, tell_defect
from pympsd_server.backends.interface import BackendError, Outcome

_BRISK_SECONDS: Final = 0.0005
"""So long after something was passed the thread asks without a pause."""
_PAUSE_SECONDS: Final = 0.00005
_LONG_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.02
_LONG_PAUSE_SECONDS: Final = 0.0005
"""Where nothing was passed for _LONG_SECONDS, asking more often would cost the workers more than it gains."""
_WHERE: Final = "the thread that sees work done"


class Events:
    """CUevents to use again: making one is a driver call, and every completion takes one."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: dict[bool, deque[Any]] = {False: deque(), True: deque()}

    def take(self, timing: bool) -> Any:
        """Return an event."""
        try:
            return self._free[timing].pop()
        except IndexError:
            flags = cu.CUevent_flags
            flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
            return self._driver.call(cu.cuEventCreate, int(flag))

    def give(self, event: Any, timing: bool) -> None:
        """Give it back when nothing asks for it any more."""
        self._free[timing].append(event)


class Point:
    """A point in a stream, recorded in a CUevent of its own, so that recording again leaves it what it is."""

    __slots__ = ("_driver", "_events", "_passed", "event", "timing")

    def __init__(self, driver: Driver, events: Events, stream: Any, timing: bool = False) -> None:
        self._driver = driver
        self._events = events
        self._passed = False
        self.timing = timing
        self.event = events.take(timing)
        driver.call(cu.cuEventRecord, self.event, stream)

    @property
    def passed(self) -> bool:
        """Whether the work before it is done; BackendError when the device is ruined."""
        if not self._passed:
            self._passed = self._driver.is_done(cu.cuEventQuery, self.event)
        return self._passed

    def __del__(self) -> None:
        # A wait that was issued keeps what the event stood for then.
        if hasattr(self, "event"):
            self._events.give(self.event, self.timing)


class Watch:
    """The thread that calls back when points are passed, in the order of each stream."""

    def __init__(self, look: Callable[[], object], ruin: Callable[[Outcome], None]) -> None:
        """``look`` asks the driver about all unfinished work: a fault that nobody waits for is seen by that.

        ``ruin`` is told when a point cannot be asked for: nothing is known of any work then, and all are to hear.
        """
        self._look = look
        self._ruin = ruin
        self._new: deque[tuple[Hashable, Point, Callable[[], None]]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="completions", daemon=True)
        self._thread.start()

    def add(self, stream: Hashable, point: Point, passed: Callable[[], None]) -> None:
        """Have ``passed`` called, in the thread; never when the device is ruined before."""
        self._new.append((stream, point, passed))
        self._wake.set()

    def close(self) -> None:
        """Call nobody any more."""
        self._closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        lines: dict[Hashable, deque[tuple[Point, Callable[[], None]]]] = {}
        latest = time.monotonic()
        while not self._closed:
            if not lines and not self._new:
                if not self._wake.wait(_LOOK_SECONDS):
                    self._look_at_all()
                    continue
                latest = time.monotonic()
            self._wake.clear()
            while self._new:
                stream, point, passed = self._new.popleft()
                lines.setdefault(stream, deque()).append((point, passed))
            try:
                any_passed = sum(_advance(line) for line in lines.values())
            except Exception as error:  # whoever waits is told by the contexts
                lines.clear()
                self._ruin(_outcome_of(error))
                continue
            if any_passed:
                latest = time.monotonic()
                lines = {stream: line for stream, line in lines.items() if line}
            elif lines:
                _pause(time.monotonic() - latest)

    def _look_at_all(self) -> None:
        try:
            self._look()
        except Exception as error:
            tell_defect(_WHERE, error)


def _advance(line: deque[tuple[Point, Callable[[], None]]]) -> int:
    count = 0
    while line and line[0][0].passed:
        call_apart(_WHERE, line.popleft()[1])
        count += 1
    return count


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, BackendError):
        return Outcome(error.code, error.reason)
    tell_defect(_WHERE, error)
    return Outcome(Result.ERROR_UNKNOWN, f"the executor failed: {type(error).__name__}: {error}")


def _pause(fruitless: float) -> None:
    if fruitless < _BRISK_SECONDS:
        time.sleep(0)
    else:
        time.sleep(_PAUSE_SECONDS if fruitless < _LONG_SECONDS else _LONG_PAUSE_SECONDS)
