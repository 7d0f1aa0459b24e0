"""The trace that the daemon requests: all executors write to it, including those that start later."""

from contextlib import suppress
from typing import Any

import trio
from attrs import define, field

from pympsd.channel.trace_file import TraceFile
from pympsd.wire.executor_messages import StartTimeline, StopTimeline
from pympsd_server.service.executor import Executor, ExecutorError
from pympsd_server.service.executors import Executors


@define
class Tracing:
    """Whether executors write to a trace, and to which."""

    executors: Executors
    log: Any
    nursery: trio.Nursery
    _trace: TraceFile | None = field(default=None, init=False)

    def start(self, fd: int) -> None:
        """Start writing the executors' work to a trace, whose descriptor becomes this object's."""
        self._forget()
        self._trace = TraceFile(fd)
        self.executors.on_start = lambda executor: self.nursery.start_soon(self._begin, executor)
        for executor in self.executors.all_running:
            self.nursery.start_soon(self._begin, executor)

    async def _begin(self, executor: Executor) -> None:
        if self._trace is None:
            return
        request = self.executors.next_request()
        try:
            await executor.ask(request, StartTimeline(request), (self._trace.duplicate(),))
        except (ExecutorError, OSError) as error:
            self.log.warning("trace_without_device", device=executor.device, reason=str(error))

    async def stop(self) -> None:
        """Return when all executors have written what they had."""
        self._forget()
        async with trio.open_nursery() as nursery:
            for executor in self.executors.all_running:
                nursery.start_soon(self._end, executor)

    async def _end(self, executor: Executor) -> None:
        request = self.executors.next_request()
        with suppress(ExecutorError):  # one that has ended writes no more either
            await executor.ask(request, StopTimeline(request))

    def _forget(self) -> None:
        self.executors.on_start = lambda executor: None
        if self._trace is not None:
            self._trace.close()
            self._trace = None
