"""Reports clients' memory on the device to the owner whenever it changes, kernels started, and the utilization.

`UtilizationSamples` is the percentage of time in which kernels run, as NVML has it. The problem: NVML reports the
share of the last *sample period* in which a kernel ran on the GPU (nvmlUtilization_t: between 1/6 s and 1 s). The
backend counts only how long kernels have run since the device was opened, and reports are also sent at other moments,
for instance when a client frees memory, so two of them may be a microsecond apart.

The idea: a period begins when the last one ends, and ends at the first report after at least MIN_PERIOD. Until then
the last percentage counts. An example, with the counter in parentheses::

    0 s (0 s)   0.01 s (0.01 s)   1.0 s (0.5 s)   2.0 s (1.5 s)   3.0 s (1.5 s)
    0 %         0 %: too early    50 %            100 %           0 %

Nothing is measured while nobody can launch a kernel: `stop` ends the period without a result, and the next one begins
with the next report, so a long pause is not part of a period.
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
    """The sample periods of a device, one after the other."""

    percentage: int = field(default=0, init=False)
    """The percentage of the last complete period: 0 to 100."""
    _began: tuple[int, int] | None = field(default=None, init=False)
    """The time and the counter at the beginning of this period."""

    def add(self, now: int, busy: int) -> int:
        """Return the percentage at the time ``now``, when kernels have run for ``busy``; both are in nanoseconds."""
        if self._began is None:
            self._began = now, busy
        elapsed, ran = now - self._began[0], busy - self._began[1]
        if elapsed >= MIN_PERIOD:
            self.percentage = min(100, max(0, round(100 * ran / elapsed)))
            self._began = now, busy
        return self.percentage

    def stop(self) -> None:
        """End the period: the next call of `add` begins another."""
        self._began = None


PAUSE_SECONDS: Final = 0.25
"""Seconds between two reports, so that frequent allocations do not make them costly."""
LAUNCH_SECONDS: Final = 0.75
"""Seconds after which launches and utilization are looked at: they are counted anyway, and nothing signals a launch.
With the pause it is 1 s, NVML's longest sample period."""


@define(eq=False)
class MemoryReporter:
    """Sends the memory use of clients if it has changed since the last report; safe to use from several threads."""

    _device: Device
    _send: Callable[[MemoryUsed], None]
    _reported: MemoryUsed = field(factory=lambda: MemoryUsed({}), init=False)
    _counted: int = field(default=0, init=False)
    """The launches that were reported, all together."""
    _samples: UtilizationSamples = field(factory=UtilizationSamples, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def report(self) -> None:
        """Report now."""
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
        """Whether nothing can change before there is a context, whose memory is signalled, and all is reported."""
        return not self._reported.clients and not self._reported.utilization

    def start(self) -> None:
        """Report from now on, in a separate thread that waits for changes."""
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
"""Others may take the memory that was freed for a client: the owner is asked this often."""
_Taken = TypeVar("_Taken")


@define
class _Waiting:
    """A client's worker that waits for the owner's answer."""

    client: int
    answered: threading.Event = field(factory=threading.Event, init=False)
    freed: bool = field(default=False, init=False)


@define(eq=False)
class Shortages:
    """Used by the clients' workers, which wait in it; the owner's thread passes on the answers.

    ``report`` reports to the owner the memory that clients hold now.
    """

    report: Callable[[], None]
    _send: Callable[[object], None]
    _numbers: count[int] = field(factory=lambda: count(1), init=False)
    _waiting: dict[int, _Waiting] = field(factory=dict, init=False)

    def take_with_room(self, client: int, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take`` for a client; while it raises Shortage, request memory from the owner and call it again."""
        for _ in range(MAX_TRIES):
            try:
                return take()
            except Shortage as shortage:
                number = next(self._numbers)
                waiting = self._waiting[number] = _Waiting(client)
                self.report()
                self._send(MemoryShort(number, client, shortage.short))
                # The owner answers always: its end is this process's.
                waiting.answered.wait()
                del self._waiting[number]
                if not waiting.freed:
                    raise
        return take()

    def deliver(self, answer: RoomMade) -> None:
        """Resume a worker."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting.freed = answer.freed
            waiting.answered.set()

    def client_left(self, client: int) -> None:
        """Resume a client's worker, with its error."""
        for waiting in tuple(self._waiting.values()):
            if waiting.client == client:
                waiting.answered.set()
