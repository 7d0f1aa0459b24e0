"""A policy: the work whose deadline is next runs first.

Work is due some time after it became ready: one period in a stream of the lowest priority, half as long for each step
of priority above that, and 16 times as long for clients below normal. Work that is not finished by then gets a new
deadline, because kernels may wait for each other. So no kernel keeps the device longer than its period while other
work is ready.
"""

import time
from collections.abc import Callable
from typing import Final

from pympsd_server.backends.emulated.scheduling import policy

DEFAULT_MILLISECONDS: Final = 50.0
_WEIGHT_OF_LEAST: Final = policy.weight_of_priority(policy.LEAST_PRIORITY)
_BELOW_NORMAL: Final = 16


class Deadlines:
    """The policy ``deadline:MILLISECONDS``: earliest deadline first.

    Args:
        argument: The period in milliseconds, above 0 and at most 60,000; default 50.
        clock: Returns the time in nanoseconds.

    Raises:
        ValueError: The argument is not such a number.
    """

    def __init__(self, argument: str = "", clock: Callable[[], int] = time.monotonic_ns) -> None:
        try:
            milliseconds = float(argument or DEFAULT_MILLISECONDS)
        except ValueError:
            milliseconds = 0.0
        if not 0 < milliseconds <= 60_000:
            raise ValueError(f"the period must be a number of milliseconds above 0, at most 60000; not {argument!r}")
        self._period = milliseconds * 1e6
        self._clock = clock
        self._due: dict[policy.Runnable, float] = {}

    def add(self, work: policy.Runnable) -> None:
        """Give work that became ready its deadline.

        The time until the deadline depends on priorities, as the module's description explains.
        """
        work.queue.ready.append(work)
        self._due[work] = self._deadline(work)

    def _deadline(self, work: policy.Runnable) -> float:
        # A weight is 2 ** steps; a stream of the lowest priority has the greatest weight.
        period = self._period * work.time_share.weight / _WEIGHT_OF_LEAST
        return self._clock() + period * (_BELOW_NORMAL if work.queue.level else 1)

    def remove(self, work: policy.Runnable) -> None:
        """Remove work that has finished.

        Its deadline may have passed or not.
        """
        work.queue.ready.remove(work)
        del self._due[work]

    def drop(self, queue: policy.ContextQueue) -> None:
        """Remove all work of a context, which has faulted or was destroyed.

        A context without ready work is allowed.
        """
        for work in queue.ready:
            del self._due[work]
        queue.ready.clear()

    def next(self) -> policy.Runnable | None:
        """Return the work that is due first, among the work that can run; None if none can.

        Blocked work keeps its deadline, so it is among the first as soon as there is space for it.
        """
        able = (work for work in self._due if not work.is_blocked)
        return min(able, key=self._due.__getitem__, default=None)

    def charge(self, work: policy.Runnable, nanoseconds: int) -> None:
        """Give work that has missed its deadline a new one.

        ``nanoseconds`` is ignored, because this policy does not depend on how much time work has had.
        """
        if work in self._due and self._due[work] < self._clock():
            self._due[work] = self._deadline(work)
