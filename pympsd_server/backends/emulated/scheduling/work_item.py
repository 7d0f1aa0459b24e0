"""One piece of work on the emulated device: what it waits for, who waits for it, who is told when it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event as Flag
from typing import TYPE_CHECKING

from pympsd_server.backends.emulated.ptx.faults import Cancelled
from pympsd_server.backends.interface import Completion

if TYPE_CHECKING:
    from pympsd_server.backends.emulated.device.context import EmulatedContext
    from pympsd_server.backends.emulated.device.stream import EmulatedStream
    from pympsd_server.backends.emulated.scheduling.fair_share import Group, Share


class Operation:
    """Work that runs in slices once its predecessors are finished. Its fields are guarded by the scheduler's lock."""

    instant = False
    """Whether it is finished the moment its predecessors are."""
    held = False
    """Whether somebody else finishes it, told by its callbacks when its predecessors are finished."""

    def __init__(self, context: EmulatedContext, stream: EmulatedStream | None, share: Share) -> None:
        self.context = context
        self.stream = stream
        self.share = share
        self.waiting = 0
        self.successors: list[Operation] = []
        self.callbacks: list[Completion] = []
        self.running = False
        self.finished = False
        self.finished_at = 0
        """time.perf_counter_ns() when it finished."""

    @property
    def group(self) -> Group:
        """The context's turns."""
        return self.context.group

    @property
    def begun(self) -> bool:
        """Whether it is a kernel with blocks that have begun: a device that cannot stop kernels lets it end."""
        return False

    @property
    def blocked(self) -> bool:
        """Whether it has to wait for room on the multiprocessors."""
        return False

    def step(self, seconds: float) -> bool:
        """Run for about so long; return whether it is finished. Raise DeviceFault or Cancelled."""
        return True

    def mark_finished(self) -> None:
        """Note the time and let go of what it held."""
        self.running = False
        self.finished = True
        self.finished_at = time.perf_counter_ns()


class Marker(Operation):
    """A point in a stream: an event, a wait, or somebody to tell."""

    instant = True
    also_after: Operation | None = None
    """A point of another stream that it waits for too."""


class HostCall(Operation):
    """Holds its stream from the moment it is reached, when its callbacks are told, until it is finished."""

    held = True

    def finish(self) -> None:
        """The stream goes on, unless its context has ended meanwhile."""
        self.context.scheduler.finish_held(self)


class Transfer(Operation):
    """A copy or a fill, made in pieces so that the compute thread is never away for long.

    ``pieces`` does the work, one piece for each step of the iterator.
    """

    def __init__(
        self,
        context: EmulatedContext,
        stream: EmulatedStream,
        pieces: Iterator[None],
        cancel: Flag,
    ) -> None:
        super().__init__(context, stream, stream.share)
        self._pieces = pieces
        self._cancel = cancel

    def step(self, seconds: float) -> bool:
        """Make pieces until the time is up."""
        deadline = time.perf_counter() + seconds
        for _ in self._pieces:
            if self._cancel.is_set():
                raise Cancelled
            if time.perf_counter() >= deadline:
                return False
        return True

    def mark_finished(self) -> None:
        """Let go of the host's bytes too: who gave them may be waiting for that."""
        super().mark_finished()
        self._pieces = iter(())
