"""Records of the driver's own programs in the named pipe ``log``: records, among lines of text by any process.

A record: int32 0xabcde000 + origin, int32 PID, int32 year, month, day, weekday, hour, minute, second, millisecond
(local time), int64 length of the text, the text without a newline; recorded with driver 580.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum
from struct import Struct
from typing import Final

from attrs import define, field, frozen

PIPE_BUF: Final = 4096
"""pipe(7): a write of up to this many bytes is not mixed with others, so that no record is longer."""
MAGIC: Final = 0xABCDE000
_HEADER: Final = Struct("<I9iq")
_SIGN: Final = re.compile(rb"[\x01-\x03]\xe0\xcd\xab")
_BEGIN_OF_SIGN: Final = re.compile(rb"[\x01-\x03](\xe0\xcd?)?\Z")
_NO_TEXT: Final = re.compile(rb"[\x01-\x03]")
"""Bytes in no text of the vendor's: they begin the next record, so this one was cut short."""
_FIRST_YEAR, _LAST_YEAR = 1971, 9998
"""Local times of these years are times since the epoch in every zone."""


class RecordWriter(IntEnum):
    """The program that a record names as its writer."""

    SERVER = 1
    CLIENT = 2
    """Inferred from server.log; 1 and 3 were recorded."""
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
    """Lines that are not records, without their newlines; at most the first PIPE_BUF bytes of each."""

    lines: tuple[bytes, ...]


@define
class LogReader:
    """Takes the bytes of the pipe, in any chunks, apart; holds at most PIPE_BUF of a line and one record."""

    _data: bytes = field(default=b"", init=False)
    """The buffer, which begins with a possible record."""
    _line: bytes = field(default=b"", init=False)
    """The beginning of a line of text; it may continue after a record."""

    def feed(self, data: bytes) -> Iterator[DriverLogRecord | ForeignLines]:
        """Add the bytes that were read; yield the records and lines that it completes. Take all of them before the
        next call.
        """
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
            else:  # a sign by chance, or to deceive: its first byte is text
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
    """Return the record at a sign; None if it is not complete, False if it is none."""
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
