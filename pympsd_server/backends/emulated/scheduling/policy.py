"""Scheduling policies of the emulated device: the work that they see, and the methods that they have.

A policy decides whose work the compute thread runs next. ``PYMPSD_SCHEDULING_POLICY=NAME[:ARGUMENT]`` names one that
is an entry point of the group ``pympsd.scheduling_policies``: a callable that takes the argument ("" without one),
raises ValueError if it is wrong, and returns a `Policy`, one for each device. docs/research.md shows how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from pympsd.vocabulary.settings import SCHEDULING_POLICIES, SCHEDULING_POLICY, load_policy

GREATEST_PRIORITY: Final = -5
LEAST_PRIORITY: Final = 0


def weight_of_priority(priority: int) -> int:
    """Return a stream's weight, 1 to 32. Each step of priority halves it; priorities out of range are clamped.

    >>> weight_of_priority(0), weight_of_priority(-5), weight_of_priority(-9)
    (32, 1, 1)
    """
    clamped = max(GREATEST_PRIORITY, min(LEAST_PRIORITY, priority))
    return 1 << (clamped - GREATEST_PRIORITY)


@define(eq=False)
class TimeShare:
    """The time of the compute thread that a context or stream has used.

    >>> TimeShare(weight=2, used=500).rank < TimeShare(weight=1, used=600).rank
    True
    """

    weight: int = 1
    """The weight of a nanosecond: the greater, the less time it gets."""
    used: int = 0
    """Nanoseconds times weight."""

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest goes first; on a tie the higher priority.

        The key of `min` when the next stream is chosen: time used, in nanoseconds times weight, then the weight.
        """
        return self.used, self.weight


class Runnable(Protocol):
    """Work that waits for the compute thread: a kernel, a copy, an event.

    A policy reads these three, and may add to ``time_share`` in `Policy.charge`.
    """

    @property
    def is_blocked(self) -> bool:
        """Whether the work cannot run now, because no multiprocessor has space for it.

        It may change between two calls of a policy. ``blocked``, its former name, has the same value.
        """

    @property
    def time_share(self) -> TimeShare:
        """The share of the item's stream among the streams of its context: the time used in ns, times its weight.

        All work of a stream has the same object, which a policy may change: ``work.time_share.used += nanoseconds``.
        """

    @property
    def queue(self) -> ContextQueue:
        """The ready work of the item's context, with the context's level, its own share and its client's memory.

        All work of a context has the same object: ``work.queue.level == 0`` means normal priority.
        """


@define(eq=False)
class ContextQueue:
    """The ready work of one context.

    The device makes it; a policy keeps ``ready``, and may use the other fields for its accounts.
    """

    level: int = 0
    """The client's priority: 0 normal, anything else below normal."""
    time_share: TimeShare = field(factory=TimeShare)
    """The share of the context among the contexts of its level."""
    memory_used: Callable[[], int] = int
    """Returns the bytes that its client holds on the device."""
    ready: list[Runnable] = field(factory=list)
    """The work that could run now, blocked or not; the policy adds and removes it."""
    floor: int = 0
    """The time used by the stream that ran last, when it began."""

    def first(self) -> Runnable | None:
        """Return the work that runs next in this context.

        Of the work that is not blocked it is that of the stream with the lowest `TimeShare.rank`; None if all is
        blocked, or nothing is ready.
        """
        if len(self.ready) == 1:
            only = self.ready[0]
            return None if only.is_blocked else only
        able = [work for work in self.ready if not work.is_blocked]
        return min(able, key=lambda work: work.time_share.rank) if able else None


class Policy(Protocol):
    """The order of all work that could run now. Its owner calls it under a lock; times are in nanoseconds.

    It keeps ``ready`` of each context's queue: the work that was added and neither removed nor dropped.
    """

    def add(self, work: Runnable) -> None:
        """Add work that became ready.

        ``work.queue.ready`` does not contain it yet; the policy puts it there.
        """

    def remove(self, work: Runnable) -> None:
        """Remove work that has finished.

        The policy takes it out of ``work.queue.ready``.
        """

    def drop(self, queue: ContextQueue) -> None:
        """Remove all work of a context.

        The context has faulted or was destroyed: the policy empties ``queue.ready`` and never returns that work
        again.
        """

    def next(self) -> Runnable | None:
        """Return the work that runs now, for a slice of about 1 ms; None if none can. It stays ready until removed.

        Kernels may wait for each other: whatever is ready and not blocked has to run some time.
        """

    def charge(self, work: Runnable, nanoseconds: int) -> None:
        """Account for the time that the work last returned by ``next`` has used.

        ``nanoseconds`` is time of the compute thread. It is called once for each work that ``next`` has returned.
        """


def policy_of(environment: Mapping[str, str]) -> Policy | None:
    """Return a new policy of the kind that PYMPSD_SCHEDULING_POLICY names; None if it names none.

    Args:
        environment: The executor's environment variables.

    Raises:
        BadSetting: The entry point is missing or cannot be loaded, or it refuses its argument.
    """
    text = environment.get(SCHEDULING_POLICY, "")
    if not text:
        return None
    policy: Policy = load_policy(SCHEDULING_POLICIES, SCHEDULING_POLICY, text)
    return policy
