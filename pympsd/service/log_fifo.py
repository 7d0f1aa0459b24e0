"""Read the log FIFO. Any user may write to it, so its lines are sanitised, rate-limited and marked Other.

If the daemon runs the driver's own servers, their records are logged as lines of these servers. The writer of a line
is unknown: as with the vendor's daemon, any user can write a record with a server's PID.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio
from attrs import define, field

from pympsd.journal.line_format import sanitise
from pympsd.journal.setup import Journal
from pympsd.service.rate_limit import RateLimit, cost_of
from pympsd.wire.driver.log_records import PIPE_BUF, DriverLogRecord, ForeignLines, LogReader

LINES_PER_SECOND: Final = 100
"""The number of lines per second that all writers together may log, without those that are servers."""
RECORDS_PER_SECOND: Final = 5000
"""The number of records per second that a server and its clients may log, the same as for pympsd's own servers
(sessions.server).
"""
UNKNOWN_PID: Final = 0
"""The PID for all writers that are not servers, because the writer of a FIFO is unknown."""
PAUSE: Final = 0.1
"""The number of seconds for which the FIFO is not read after too much was written.

Only the FIFO's writers wait; a server may be among them.
"""
READ_BYTES: Final = 4 * PIPE_BUF
"""The number of bytes to read at a time, small enough that even malformed input is parsed in milliseconds."""
RECENT_SERVERS: Final = 16
"""The maximum number of servers whose lines are recognised even after their end."""
CLOCK_TOLERANCE: Final = 60.0
"""The maximum difference in seconds between a record's time and now."""


@define
class _Writer:
    """The rate limit of one writer, and the number of its lines that were dropped."""

    limit: RateLimit
    dropped: int = 0


@define
class _FifoLog:
    """Logs the lines from the FIFO, within each writer's limit."""

    _journal: Journal
    _is_server: Callable[[int], bool]
    _note_line: Callable[[int, str], None]
    _writers: dict[int, _Writer] = field(factory=dict, init=False)
    """The writers of the last second: servers by PID, and all others together as UNKNOWN_PID."""
    _recent: deque[int] = field(factory=lambda: deque(maxlen=RECENT_SERVERS), init=False)
    """The PIDs of servers that wrote lately; a server's last lines may be read after its end."""

    def log(self, record: DriverLogRecord | ForeignLines) -> int:
        """Log a record or lines; return how many of them were over the limit."""
        if isinstance(record, ForeignLines):
            return self._log_foreign(record.lines)
        if not self._is_servers(record.pid):
            return self._log_foreign((record.text,))
        text = sanitise(record.text)
        self._note_line(record.pid, text)
        cost = cost_of([text])
        if self._take(record.pid, RECORDS_PER_SECOND, cost) < cost:
            return self._drop(record.pid, 1)
        self._journal.write_server_text(record.origin.name.capitalize(), record.pid, text, _time_of(record))
        return 0

    def _is_servers(self, pid: int) -> bool:
        if pid in self._recent:
            return True
        is_server = self._is_server(pid)
        if is_server:
            self._recent.append(pid)
        return is_server

    def _log_foreign(self, lines: Sequence[bytes]) -> int:
        allowed = self._take(UNKNOWN_PID, LINES_PER_SECOND, len(lines))
        for line in lines[:allowed]:
            self._journal.write_server("Other", UNKNOWN_PID, "fifo_line", {"text": sanitise(line)})
        return self._drop(UNKNOWN_PID, len(lines) - allowed)

    def _take(self, pid: int, per_second: int, cost: int) -> int:
        writer = self._writers.setdefault(pid, _Writer(RateLimit(per_second)))
        return writer.limit.take(cost, trio.current_time())

    def _drop(self, pid: int, count: int) -> int:
        self._writers[pid].dropped += count
        return count

    def report_time(self) -> float:
        """Return the time at which to report dropped lines; infinity if none were dropped."""
        return min(
            (writer.limit.resets_at() for writer in self._writers.values() if writer.dropped), default=math.inf
        )

    def report_dropped(self) -> None:
        """For each writer whose second is over, log how many of its lines were dropped."""
        now = trio.current_time()
        for pid, writer in list(self._writers.items()):
            if now >= writer.limit.resets_at():
                del self._writers[pid]
                if writer.dropped:
                    who = "Other" if pid == UNKNOWN_PID else "Server"
                    self._journal.write_server(who, pid, "records_dropped", {"count": writer.dropped})


def _time_of(record: DriverLogRecord) -> float:
    """Return a record's time, or the current time if the two are far apart.

    A record has local time, which is ambiguous in the hour that is repeated when summer time ends. A forged record
    may have any time.
    """
    now = time.time()
    stamp = record.moment.timestamp()
    return stamp if abs(stamp - now) <= CLOCK_TOLERANCE else now


async def read_fifo(
    journal: Journal,
    fd: int,
    is_server: Callable[[int], bool] = lambda _: False,
    note_line: Callable[[int, str], None] = lambda pid, text: None,
) -> None:
    """Log the lines that are written to the FIFO until cancelled.

    ``is_server``: returns whether a PID is a driver's server that this daemon runs; ``note_line``: called with the
    PID and the text of each line of such a server.
    """
    reader = LogReader()
    log = _FifoLog(journal, is_server, note_line)
    while True:
        with trio.move_on_at(log.report_time()):
            await trio.lowlevel.wait_readable(fd)
        log.report_dropped()
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            continue  # another process, which any user may run, has read the data
        records = list(reader.feed(data))
        dropped = sum(log.log(record) for record in records)
        # Only somebody who tries to keep the daemon busy writes this many bytes without a line or a record.
        if dropped or (not records and len(data) == READ_BYTES):
            await trio.sleep(PAUSE)
