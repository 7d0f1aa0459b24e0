"""Scheduling policies of the emulated device: the work that they see, and the methods that they have.

A policy decides whose work the compute thread runs next. ``PYMPSD_SCHEDULING_POLICY=NAME[:ARGUMENT]`` selects an
entry point of the group ``pympsd.scheduling_policies``. This is a callable that takes the argument ("" if there is
none), raises ValueError if the argument is wrong, and returns a new `Policy` for a device. docs/research.md has an
example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from pympsd.vocabulary.settings import SCHEDULING_POLICIES, SCHEDULING_POLICY, load_policy

GREATEST_PRIORITY: Final = -5
LEAST_PRIORITY: Final = 0


def weight_of_priority(priority: int) -> int:
    """Return the weight of a stream's time, 1 to 32; the greater it is, the less time the stream gets.

    Each step to a higher priority halves it. Priorities out of range are clamped.

    >>> weight_of_priority(0), weight_of_priority(-5), weight_of_priority(-9)
    (32, 1, 1)
    """
    clamped = max(GREATEST_PRIORITY, min(LEAST_PRIORITY, priority))
    return 1 << (clamped - GREATEST_PRIORITY)


@define(eq=False)
class TimeShare:
    """How much time of the compute thread a context or stream has used.

    >>> TimeShare(weight=2, used=500).rank < TimeShare(weight=1, used=600).rank
    True
    """

    weight: int = 1
    """The weight of a nanosecond. The greater it is, the less time the context or stream gets."""
    used: int = 0
    """The used time, in nanoseconds times weight."""

    @property
    def rank(self) -> tuple[int, int]:
        """The order in which streams run: the lowest first.

        Time used comes first, in nanoseconds times weight, then the weight, so that a higher priority wins a tie.
        """
        return self.used, self.weight


class Runnable(Protocol):
    """Work that waits for the compute thread: a kernel, a copy, an event.

    A policy reads these properties, and may add to ``time_share`` in `Policy.charge`.
    """

    @property
    def is_blocked(self) -> bool:
        """Whether the work cannot run now, because no multiprocessor has space for it.

        It may change between two calls of a policy. ``blocked``, its former name, has the same value.
        """

    @property
    def time_share(self) -> TimeShare:
        """The time that the item's stream has used, compared with the other streams of its context.

        All work of a stream has the same object, which a policy may change: ``work.time_share.used += nanoseconds``.
        """

    @property
    def queue(self) -> ContextQueue:
        """The ready work of the item's context, with the context's level, used time and memory.

        All work of a context has the same object: ``work.queue.level == 0`` means normal priority.
        """


def _rank(work: Runnable) -> tuple[int, int]:
    return work.time_share.rank


@define(eq=False)
class ContextQueue:
    """The ready work of one context.

    The device makes it. A policy maintains ``ready``, and may use the other fields for its accounts.
    """

    level: int = 0
    """The client's priority: 0 is normal, any other value below normal."""
    time_share: TimeShare = field(factory=TimeShare)
    """The time that the context has used, compared with other contexts of its level."""
    memory_used: Callable[[], int] = int
    """A function that returns the number of bytes that the context's client holds on the device."""
    ready: list[Runnable] = field(factory=list)
    """The work that could run now, blocked or not; the policy adds and removes it."""
    floor: int = 0
    """The used time, in nanoseconds times weight, of the stream whose work was chosen last, when it was chosen.

    A stream that gets work while the context has none begins with at least this used time.
    """

    def first(self) -> Runnable | None:
        """Return the work that runs next in this context.

        This is the work that is not blocked and whose stream has the lowest `TimeShare.rank`. Return None if all work
        is blocked, or if none is ready.
        """
        first = min(self.ready, key=_rank, default=None)
        if first is None or not first.is_blocked:
            return first
        # The others are asked only now: a program may have thousands of streams, and each answer takes microseconds.
        able = (work for work in self.ready if work is not first and not work.is_blocked)
        return min(able, key=_rank, default=None)


class Policy(Protocol):
    """The order of all work that could run now. Its owner calls it under a lock; times are in nanoseconds.

    It maintains ``ready`` of each context's queue: the work that was added and has not been removed or dropped.
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

        The context has faulted or was destroyed. The policy empties ``queue.ready`` and never returns its work again.
        """

    def next(self) -> Runnable | None:
        """Return the work that runs now, for a slice of about 1 ms; None if none can. It stays ready until removed.

        Kernels may wait for each other, so all work that is ready and not blocked has to run at some time.
        """

    def charge(self, work: Runnable, nanoseconds: int) -> None:
        """Account for the time that the work last returned by ``next`` has used.

        ``nanoseconds`` is time of the compute thread. It is called once after each ``next`` that returns work.
        """


def policy_of(environment: Mapping[str, str]) -> Policy | None:
    """Return a new policy of the kind that PYMPSD_SCHEDULING_POLICY names; None if it is not set.

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
