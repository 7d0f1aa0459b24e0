"""A policy: contexts of one priority level get time in proportion to the memory that their clients hold.

It is an example of how little a policy can be: the fair share, with other weights. A client that holds 3 GiB runs
three times as long as one that holds 1 GiB, as long as both want to.
"""

from __future__ import annotations

from typing import Final

from pympsd_server.backends.emulated.scheduling.fair_share import FairQueue
from pympsd_server.backends.emulated.scheduling.policy import Runnable

_SCALE: Final = 1 << 50
"""Weights are this, divided by bytes: precise enough for whatever memory a device has."""
_LEAST_BYTES: Final = 1 << 20


class MemoryShare(FairQueue):
    """Fair shares by memory."""

    def charge(self, work: Runnable, nanoseconds: int) -> None:
        """Account for time: the more memory, the less a nanosecond weighs."""
        work.queue.time_share.weight = _SCALE // max(work.queue.memory_used(), _LEAST_BYTES)
        super().charge(work, nanoseconds)
