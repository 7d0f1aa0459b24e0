"""Markers in streams, and the thread that sees when the device passes them.

The thread polls because that is faster. After a kernel that takes 5 us with its launch, polling an event sees its end
after 13 us; a blocking wait ends, and a host function is called, only after 48 us
(docs/decisions/004-what-the-gpu-decided.md). A stream passes its markers in order, so only its first is polled.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, call_isolated, cu, report_internal_error
from pympsd_server.backends.interface import BackendError, Status

_BUSY_POLL_SECONDS: Final = 0.0005
"""The time in seconds for which the thread polls without a pause after a marker was passed."""
_PAUSE_SECONDS: Final = 0.00005
_LONG_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.02
_LONG_PAUSE_SECONDS: Final = 0.0005
"""The pause in seconds if no marker was passed for _LONG_SECONDS.

Polling more often would cost workers more than it gains.
"""
_WHERE: Final = "the thread that sees work done"


@define(eq=False)
class EventPool:
    """CUevents for reuse, because making one takes a driver call, and every completion needs one."""

    _driver: Driver
    _free: dict[bool, deque[Any]] = field(factory=lambda: {False: deque(), True: deque()}, init=False)

    def take(self, timing: bool) -> Any:
        """Return an event."""
        try:
            return self._free[timing].pop()
        except IndexError:
            flags = cu.CUevent_flags
            flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
            return self._driver.call(cu.cuEventCreate, int(flag))

    def give(self, event: Any, timing: bool) -> None:
        """Put back an event that nothing queries any more."""
        self._free[timing].append(event)


class StreamMarker:
    """A position in a stream, recorded in a CUevent of its own, so that recording again does not move it."""

    __slots__ = ("_driver", "_events", "_passed", "event", "timing")

    def __init__(self, driver: Driver, events: EventPool, stream: Any, timing: bool = False) -> None:
        self._driver = driver
        self._events = events
        self._passed = False
        self.timing = timing
        self.event = events.take(timing)
        driver.call(cu.cuEventRecord, self.event, stream)

    @property
    def passed(self) -> bool:
        """Whether the work before the marker is done; raises BackendError if the device is faulted."""
        if not self._passed:
            self._passed = self._driver.is_done(cu.cuEventQuery, self.event)
        return self._passed

    def __del__(self) -> None:
        # The event can be reused, because a wait that was issued before keeps the work that it waits for.
        if hasattr(self, "event"):
            self._events.give(self.event, self.timing)


class MarkerWatcher:
    """The thread that calls back when markers are passed, in the order of each stream."""

    def __init__(self, look: Callable[[], object], fault: Callable[[Status], None]) -> None:
        """``look`` asks the driver about all unfinished work, to notice a fault that no completion waits for.

        ``fault`` is called if a marker cannot be queried, because the state of all work is unknown then.
        """
        self._look = look
        self._fault = fault
        self._new: deque[tuple[Hashable, StreamMarker, Callable[[], None]]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="completions", daemon=True)
        self._thread.start()

    def add(self, stream: Hashable, marker: StreamMarker, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the thread when a marker is passed; never if the device is faulted first."""
        self._new.append((stream, marker, callback))
        self._wake.set()

    def close(self) -> None:
        """Stop the thread; no more callbacks are called."""
        self._closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        """Poll the markers of all streams until close, and call the callbacks of markers that were passed."""
        queues: dict[Hashable, deque[tuple[StreamMarker, Callable[[], None]]]] = {}
        latest = time.monotonic()
        while not self._closed:
            if not queues and not self._new:
                if not self._wake.wait(_LOOK_SECONDS):
                    self._look_at_all()
                    continue
                latest = time.monotonic()
            self._wake.clear()
            while self._new:
                stream, marker, callback = self._new.popleft()
                queues.setdefault(stream, deque()).append((marker, callback))
            try:
                any_passed = sum(_advance(queue) for queue in queues.values())
            except Exception as error:  # the fault makes the contexts call all pending completions
                queues.clear()
                self._fault(_status_of(error))
                continue
            if any_passed:
                latest = time.monotonic()
                queues = {stream: queue for stream, queue in queues.items() if queue}
            elif queues:
                idle_seconds = time.monotonic() - latest
                if idle_seconds < _BUSY_POLL_SECONDS:
                    time.sleep(0)
                else:
                    time.sleep(_PAUSE_SECONDS if idle_seconds < _LONG_SECONDS else _LONG_PAUSE_SECONDS)

    def _look_at_all(self) -> None:
        try:
            self._look()
        except Exception as error:
            report_internal_error(_WHERE, error)


def _advance(queue: deque[tuple[StreamMarker, Callable[[], None]]]) -> int:
    count = 0
    while queue and queue[0][0].passed:
        call_isolated(_WHERE, queue.popleft()[1])
        count += 1
    return count


def _status_of(error: Exception) -> Status:
    if isinstance(error, BackendError):
        return Status(error.code, error.reason)
    report_internal_error(_WHERE, error)
    return Status(Result.ERROR_UNKNOWN, f"the executor failed: {type(error).__name__}: {error}")
