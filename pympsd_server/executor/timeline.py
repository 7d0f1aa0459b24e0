"""The trace that an executor writes: when its device worked, and when the work in each stream began and ended."""

import os
from collections.abc import Mapping
from typing import Final

from pympsd.channel.trace_file import TraceFile

COMPUTE: Final = 0
"""The device's own track, in the process of its executor."""
STREAMS: Final = 1 << 16
"""A context's tracks are numbered from its id times this on, one for each stream."""


class ExecutorTimeline:
    """A device's work in a trace. ``pids``: those of the contexts' clients."""

    def __init__(self, trace: TraceFile, ordinal: int, name: str, pids: Mapping[int, int]) -> None:
        self._trace, self._ordinal, self._pids = trace, ordinal, pids
        self._process = os.getpid()
        trace.name(self._process, f"device {ordinal}: {name}")
        trace.name(self._process, "work", COMPUTE)

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """Write a slice of the device's time."""
        client = self._pids.get(context, 0)
        self._trace.slice(self._process, COMPUTE, name, began, ended, client=client, context=context)

    def finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Write work in a stream, on a track of its client."""
        client, track = self._pids.get(context, 0), context * STREAMS + stream
        self._trace.name(client, f"device {self._ordinal}, context {context}, stream {stream}", track)
        self._trace.slice(client, track, name, began, ended, waited_us=(began - submitted) / 1000)

    def faulted(self, context: int, reason: str, at: int) -> None:
        """Write that a context was faulted by its own work."""
        self._trace.instant(self._pids.get(context, 0), context * STREAMS, "fault", at, reason=reason)

    def close(self) -> None:
        """Write no more."""
        self._trace.close()
