"""A process that another one has started: watched and killed by its pidfd."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import trio
from attrs import define, field

from pympsd.service.processes.status import has_ended, process_end


@define
class KnownProcess:
    """A process that is not a child of this one; owns its pidfd."""

    pidfd: int
    gone: trio.Event = field(factory=trio.Event, init=False)

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.gone.is_set() or has_ended(self.pidfd)

    async def watch(self) -> None:
        """Wait for the end of the process, set ``gone``, and close the pidfd."""
        try:
            await process_end(self.pidfd)
        finally:
            self.gone.set()
            os.close(self.pidfd)
