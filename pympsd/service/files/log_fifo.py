"""The log FIFO: any user may write to it, so its lines are sanitised, rate-limited and marked Other."""

from __future__ import annotations

import os
from typing import Final

import trio

from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Dispatcher
from pympsd.service.rate_limit import RateLimit

LINES_PER_SECOND: Final = 100
UNKNOWN_PID: Final = 0
"""A FIFO does not say which process wrote."""


async def read_fifo(dispatcher: Dispatcher, fd: int) -> None:
    """Log what is written to the FIFO, for ever."""
    rest = b""
    limit = RateLimit(LINES_PER_SECOND)
    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            continue  # another process read it: any user may open the FIFO
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-4096:]
        allowed = limit.take(len(lines), trio.current_time())
        for line in lines[:allowed]:
            dispatcher.journal.write_server("Other", UNKNOWN_PID, "fifo_line", {"text": sanitised(line)})
        if len(lines) > allowed:
            dropped = {"count": len(lines) - allowed}
            dispatcher.journal.write_server("Other", UNKNOWN_PID, "records_dropped", dropped)
            # Meanwhile only writers to the FIFO wait.
            await trio.sleep_until(limit.resets_at())
