"""Read the records that the driver's own programs write to the named pipe ``log``, and lines that any process may
write there.

A record consists of int32 0xabcde000 + origin, int32 PID, int32 year, month, day, weekday, hour, minute, second,
millisecond (local time), int64 length of the text, and the text without a newline (recorded with driver 580).
"""

import re
from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from struct import Struct
from typing import Final

from attrs import define, field, frozen

PIPE_BUF: Final = 4096
"""The maximum size of a record: writes of up to this many bytes are not mixed with others (pipe(7))."""
MAGIC: Final = 0xABCDE000
_HEADER: Final = Struct("<I9iq")
_SIGN: Final = re.compile(rb"[\x01-\x03]\xe0\xcd\xab")
_BEGIN_OF_SIGN: Final = re.compile(rb"[\x01-\x03](\xe0\xcd?)?\Z")
_NO_TEXT: Final = re.compile(rb"[\x01-\x03]")
"""The bytes that the vendor's texts do not contain.

In a record's text they belong to the next record, so the record is incomplete.
"""
_FIRST_YEAR, _LAST_YEAR = 1971, 9998
"""The first and the last year whose local times can be converted to seconds since the epoch in every time zone."""


class RecordWriter(IntEnum):
    """The program that a record names as its writer."""

    SERVER = 1
    CLIENT = 2
    """The origin of a client's record: its number is inferred from server.log, whereas 1 and 3 were recorded."""
    OTHER = 3


@frozen
class DriverLogRecord:
    """A record; any process may have written it. ``moment`` is local time."""

    origin: RecordWriter
    pid: int
    moment: datetime
    text: bytes

    def encode(self) -> bytes:
        """Return the record as it is written to the pipe."""
        at = self.moment
        date = (at.year, at.month, at.day, at.isoweekday() % 7)
        time = (at.hour, at.minute, at.second, at.microsecond // 1000)
        return _HEADER.pack(MAGIC + self.origin, self.pid, *date, *time, len(self.text)) + self.text


@frozen
class ForeignLines:
    """The lines that are not records, without newlines, each cut to PIPE_BUF bytes."""

    lines: tuple[bytes, ...]


@define
class LogReader:
    """Splits the bytes of the pipe, received in any chunks, into records and lines.

    Keeps at most one record and PIPE_BUF bytes of a line.
    """

    _data: bytes = field(default=b"", init=False)
    """The bytes that were not split yet; they begin with a possible record."""
    _line: bytes = field(default=b"", init=False)
    """The beginning of a line of text; it may continue after a record."""

    def feed(self, data: bytes) -> Iterator[DriverLogRecord | ForeignLines]:
        """Add bytes; yield the records and lines that they complete. Consume all of these before the next call."""
        data = self._data + data
        done = at = 0
        while (sign := _SIGN.search(data, at)) is not None:
            at = sign.start()
            record = _record(data, at)
            if record is None:
                break
            if isinstance(record, DriverLogRecord):
                yield from self._foreign(data[done:at])
                yield record
                done = at = at + _HEADER.size + len(record.text)
            else:  # the sign is a coincidence or a forgery, so its first byte is text
                at += 1
        else:
            begin = _BEGIN_OF_SIGN.search(data, at)
            at = len(data) if begin is None else begin.start()
        yield from self._foreign(data[done:at])
        self._data = data[at:]

    def _foreign(self, data: bytes) -> Iterator[ForeignLines]:
        *lines, partial_line = (self._line + data).split(b"\n")
        self._line = partial_line[:PIPE_BUF]
        if lines:
            yield ForeignLines(tuple(line[:PIPE_BUF] for line in lines))


def _record(data: bytes, start: int) -> DriverLogRecord | bool | None:
    """Return the record at a sign; None if it is incomplete, False if it is not a record."""
    if len(data) - start < _HEADER.size:
        return None
    sign, pid, year, month, day, weekday, hour, minute, second, millisecond, length = _HEADER.unpack_from(data, start)
    if pid <= 0 or not 0 <= length <= PIPE_BUF - _HEADER.size or not _FIRST_YEAR <= year <= _LAST_YEAR:
        return False
    try:
        moment = datetime(year, month, day, hour, minute, second, millisecond * 1000)
    except (ValueError, OverflowError):
        return False
    text = data[start + _HEADER.size : start + _HEADER.size + length]
    if moment.isoweekday() % 7 != weekday or _NO_TEXT.search(text):
        return False
    return DriverLogRecord(RecordWriter(sign - MAGIC), pid, moment, text) if len(text) == length else None
