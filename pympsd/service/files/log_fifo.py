"""The log fifo: anybody may write to it, so its lines are cleaned, rate-limited and marked Other."""

from __future__ import annotations

import os
from typing import Final

import trio

from pympsd.journal.line_format import sanitised
from pympsd.service.dispatcher import Hub
from pympsd.service.rate_limit import Allowance

LINES_PER_SECOND: Final = 100
UNKNOWN_PID: Final = 0
"""A fifo does not say who wrote."""


async def read_fifo(hub: Hub, fd: int) -> None:
    """Log what is written to the fifo, for ever."""
    rest = b""
    allowance = Allowance(LINES_PER_SECOND)
    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            continue  # somebody else read it: the fifo is anybody's
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-4096:]
        allowed = allowance.take(len(lines), trio.current_time())
        for line in lines[:allowed]:
            hub.journal.write_server("Other", UNKNOWN_PID, "fifo_line", {"text": sanitised(line)})
        if len(lines) > allowed:
            hub.journal.write_server("Other", UNKNOWN_PID, "records_dropped", {"count": len(lines) - allowed})
            # Writers wait in the fifo meanwhile; nobody else does.
            await trio.sleep_until(allowance.renewed_at())
