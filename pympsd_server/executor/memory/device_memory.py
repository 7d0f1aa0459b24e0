"""Report clients' memory on the device, the number of started kernels and the utilization to the owner.

`UtilizationSamples` is the percentage of time in which kernels run, as NVML has it. The problem: NVML reports the
share of the last *sample period* in which a kernel ran on the GPU (nvmlUtilization_t: between 1/6 s and 1 s). The
backend counts only how long kernels have run since the device was opened. Reports are also sent for other reasons,
for example when a client frees memory, so two of them may be a microsecond apart.

The idea: a period begins when the last one ends, and ends with the first report after at least MIN_PERIOD. Until then
the last percentage is reported. An example, with the counter in parentheses::

    0 s (0 s)   0.01 s (0.01 s)   1.0 s (0.5 s)   2.0 s (1.5 s)   3.0 s (1.5 s)
    0 %         0 %: too early    50 %            100 %           0 %

While nobody can launch a kernel, nothing is measured: `stop` ends the period without a result, and the next one
begins with the next report, so a long pause is not part of a period.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from attrs import define, evolve, field

from pympsd.wire.executor_messages import MemoryShort, MemoryUsed, RoomMade
from pympsd_server.backends.budget import Shortage
from pympsd_server.backends.device_interface import Device

MIN_PERIOD: Final = 1_000_000_000 // 6
"""The shortest sample period, in nanoseconds."""


@define
class UtilizationSamples:
    """The consecutive sample periods of a device."""

    percentage: int = field(default=0, init=False)
    """The percentage of the last complete period: 0 to 100."""
    _began: tuple[int, int] | None = field(default=None, init=False)
    """The time and the counter, in nanoseconds, at the start of this period."""

    def add(self, now: int, busy: int) -> int:
        """Return the percentage at the time ``now``, when kernels have run for ``busy``, both in nanoseconds."""
        if self._began is None:
            self._began = now, busy
        elapsed, ran = now - self._began[0], busy - self._began[1]
        if elapsed >= MIN_PERIOD:
            self.percentage = min(100, max(0, round(100 * ran / elapsed)))
            self._began = now, busy
        return self.percentage

    def stop(self) -> None:
        """End the period; the next call of `add` begins another one."""
        self._began = None


PAUSE_SECONDS: Final = 0.25
"""The seconds between two reports. The pause keeps reporting cheap when a client allocates frequently."""
LAUNCH_SECONDS: Final = 0.75
"""The seconds after which launches and utilization are read: launches are counted but not signalled.

With the pause this is 1 s, NVML's longest sample period.
"""


@define(eq=False)
class MemoryReporter:
    """Reports the clients' use of memory if it has changed since the last report. Thread-safe."""

    _device: Device
    _send: Callable[[MemoryUsed], None]
    _reported: MemoryUsed = field(factory=lambda: MemoryUsed({}), init=False)
    _counted: int = field(default=0, init=False)
    """The total number of launches that were reported."""
    _samples: UtilizationSamples = field(factory=UtilizationSamples, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def report(self) -> None:
        """Report to the owner now if something has changed."""
        with self._lock:
            used, trace = dict(self._device.memory_used), self._device.trace
            launches, busy = trace.get("kernels_started", 0), trace.get("busy_nanoseconds")
            utilization = None if busy is None else self._samples.add(time.perf_counter_ns(), busy)
            report = MemoryUsed(used, launches - self._counted, utilization)
            if report != evolve(self._reported, launches=0):
                self._send(report)
                self._reported, self._counted = report, launches
            if self._is_at_rest:
                self._samples.stop()

    @property
    def _is_at_rest(self) -> bool:
        """Whether the last report has no clients and no utilization.

        Then nothing changes before a client takes memory, which wakes the thread.
        """
        return not self._reported.clients and not self._reported.utilization

    def start(self) -> None:
        """Start a thread that waits for changes and reports them."""
        changed = threading.Event()
        self._device.watch_memory(changed.set)
        threading.Thread(target=self._watch, args=(changed,), name="memory report", daemon=True).start()

    def _watch(self, changed: threading.Event) -> None:
        while True:
            changed.wait(None if self._is_at_rest else LAUNCH_SECONDS)
            changed.clear()
            self.report()
            time.sleep(PAUSE_SECONDS)


MAX_TRIES: Final = 3
"""The maximum number of requests to the owner for one allocation, because others may take the freed memory."""
_Taken = TypeVar("_Taken")


@define
class _Waiting:
    """A wait of a client's worker for the owner's answer."""

    client: int
    answered: threading.Event = field(factory=threading.Event, init=False)
    freed: bool = field(default=False, init=False)


@define(eq=False)
class Shortages:
    """The requests for memory that other clients must free.

    Clients' workers wait here; the owner's thread delivers the answers.

    ``report`` reports the memory that clients hold to the owner immediately.
    """

    report: Callable[[], None]
    _send: Callable[[object], None]
    _numbers: count[int] = field(factory=lambda: count(1), init=False)
    _waiting: dict[int, _Waiting] = field(factory=dict, init=False)

    def take_with_room(self, client: int, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take`` for a client and return its result.

        While it raises Shortage, request memory and call it again.
        """
        for _ in range(MAX_TRIES):
            try:
                return take()
            except Shortage as shortage:
                number = next(self._numbers)
                waiting = self._waiting[number] = _Waiting(client)
                self.report()
                self._send(MemoryShort(number, client, shortage.short))
                # The owner always answers, because this process ends with it.
                waiting.answered.wait()
                del self._waiting[number]
                if not waiting.freed:
                    raise
        return take()

    def deliver(self, answer: RoomMade) -> None:
        """Resume the worker that waits for an answer."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting.freed = answer.freed
            waiting.answered.set()

    def client_left(self, client: int) -> None:
        """Resume the waiting worker of a client that has left; its request fails."""
        for waiting in tuple(self._waiting.values()):
            if waiting.client == client:
                waiting.answered.set()
