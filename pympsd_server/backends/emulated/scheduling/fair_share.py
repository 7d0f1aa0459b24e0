"""Fair sharing of the compute thread: by priority level, then among contexts, then among their streams.

A context below normal priority runs when no normal work can. In addition, it gets one turn when the normal level has
had 16 turns and 16 times the time of the last turn below normal. So its share is small but never zero, and a new
context never runs ahead of a normal one that is as new.

Within a level, every context has a ``TimeShare``, the time that it has used. Within a context, every stream has one
too, in which time is multiplied by a weight. The one with the least time runs next. So a weight of 16 means one
sixteenth of the time while others need it too, but never no time: kernels that wait for each other make progress
whatever their priorities are.
"""

from typing import Final

from attrs import define, field

from pympsd_server.backends.emulated.scheduling.policy import ContextQueue, Runnable

TURNS_OF_NORMAL: Final = 16
"""The number of turns that the normal level gets for one turn below normal, and the ratio of the times they get."""


@define(eq=False)
class _Level:
    """The contexts of one priority level that have work to run."""

    queues: list[ContextQueue] = field(factory=list)
    _floor: int = 0

    def enter(self, queue: ContextQueue) -> None:
        """Add a context that has work to run again; its idle time gives it no head start.

        Its used time is raised to the least used time of the others, or to that of the last context that ran.
        """
        floor = min((queue.time_share.used for queue in self.queues), default=self._floor)
        queue.time_share.used = max(queue.time_share.used, floor)
        self.queues.append(queue)

    def next(self) -> Runnable | None:
        """Return the work that runs next at this level; None if all of it is blocked."""
        for queue in sorted(self.queues, key=lambda candidate: candidate.time_share.rank):
            work = queue.first()
            if work is not None:
                self._floor, queue.floor = queue.time_share.used, work.time_share.used
                return work
        return None


class FairQueue:
    """The policy ``fair``: by priority level, then among contexts, then among their streams.

    An argument raises ValueError. The module's description above has the details.
    """

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ValueError("the policy takes no argument")
        self._normal = _Level()
        self._below = _Level()
        self._turns_due = 0
        """The turns, and the nanoseconds, that the normal level gets before work below it may run first."""
        self._time_due = 0
        self._overtaking = False
        """Whether the work last returned by ``next`` overtook normal work that could have run."""

    def add(self, work: Runnable) -> None:
        """Add work that became ready.

        Its context and its stream get no credit for the time in which they had no work. Each begins with at least
        the least time that others at its level have used.
        """
        queue = work.queue
        if not queue.ready:
            level = self._level(queue)
            if level is self._below and not level.queues:
                self._turns_due = TURNS_OF_NORMAL
            level.enter(queue)
        within = min((item.time_share.used for item in queue.ready), default=queue.floor)
        work.time_share.used = max(work.time_share.used, within)
        queue.ready.append(work)

    def _level(self, queue: ContextQueue) -> _Level:
        return self._below if queue.level else self._normal

    def remove(self, work: Runnable) -> None:
        """Remove work that has finished.

        Its stream and its context keep the time that they have used.
        """
        queue = work.queue
        queue.ready.remove(work)
        if not queue.ready:
            self._level(queue).queues.remove(queue)

    def drop(self, queue: ContextQueue) -> None:
        """Remove all work of a context, which has faulted or was destroyed.

        A context without ready work is allowed.
        """
        queue.ready.clear()
        level = self._level(queue)
        if queue in level.queues:
            level.queues.remove(queue)

    def next(self) -> Runnable | None:
        """Return the work to run now, or None if none can run. It stays ready until removed.

        Work of a context below normal is returned if nothing normal can run, or if its turn has come (see the
        module's description). `charge` must follow.
        """
        self._overtaking = False
        normal = self._normal.next()
        if not self._below.queues or (normal is not None and not self._is_due):
            return normal
        below = self._below.next()
        if below is None:
            return normal
        self._overtaking = normal is not None
        return below

    @property
    def _is_due(self) -> bool:
        return self._turns_due <= 0 and self._time_due <= 0

    def charge(self, work: Runnable, nanoseconds: int) -> None:
        """Account for the time that the work last returned by ``next`` has used.

        ``nanoseconds`` is charged to its stream, times the stream's weight, and to its context.

        >>> from types import SimpleNamespace
        >>> from pympsd_server.backends.emulated.scheduling.policy import TimeShare
        >>> first, second = (
        ...     SimpleNamespace(is_blocked=False, time_share=TimeShare(), queue=ContextQueue()) for _ in range(2)
        ... )
        >>> fair = FairQueue()
        >>> fair.add(first)
        >>> fair.add(second)
        >>> fair.charge(first, 1_000_000)
        >>> fair.next() is second
        True
        """
        work.time_share.used += nanoseconds * work.time_share.weight
        queue = work.queue
        queue.time_share.used += nanoseconds * queue.time_share.weight
        if queue.level == 0:
            self._turns_due = max(0, self._turns_due - 1)
            self._time_due = max(0, self._time_due - nanoseconds)
            return
        self._turns_due = TURNS_OF_NORMAL
        if self._overtaking:
            self._time_due = TURNS_OF_NORMAL * nanoseconds


_SCALE: Final = 1 << 50
"""The dividend of weights: a weight is this number divided by bytes.

The number is large enough for any amount of device memory.
"""
_MIN_BYTES: Final = 1 << 20


class MemoryShare(FairQueue):
    """The policy ``memory``: as ``fair``, but a context gets time in proportion to the memory that its client holds.

    A client with less than 1 MiB counts as one with 1 MiB.
    """

    def charge(self, work: Runnable, nanoseconds: int) -> None:
        """Account for the time that the work last returned by ``next`` has used.

        The more memory the client holds on the device now, the less a nanosecond weighs.
        """
        work.queue.time_share.weight = _SCALE // max(work.queue.memory_used(), _MIN_BYTES)
        super().charge(work, nanoseconds)
