"""The records of the driver's own server in the log FIFO, recorded ones and any among garbage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.wire.driver.log_records import MAGIC, PIPE_BUF, DriverLogRecord, ForeignLines, LogReader, RecordWriter

RECORDED = Path(__file__).parents[1] / "data" / "driver-logs" / "log-fifo.hex"
"""Each line was read from the FIFO immediately, in hexadecimal digits."""
NOON = datetime(2026, 11, 22, 12, 0, 0, 376000)
RECORD = DriverLogRecord(RecordWriter.SERVER, 430, NOON, b"Server has started")
HEADER = 48

moments = st.datetimes(datetime(1971, 1, 1), datetime(9998, 12, 31)).map(
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)
texts = st.binary(max_size=PIPE_BUF - HEADER).map(lambda text: text.translate(None, b"\1\2\3"))
records = st.builds(DriverLogRecord, st.sampled_from(RecordWriter), st.integers(1, 2**31 - 1), moments, texts)
lines = st.binary(max_size=300).map(lambda line: line.translate(None, b"\n\1\2\3"))
signs = st.sampled_from(RecordWriter).map(lambda origin: (MAGIC + origin).to_bytes(4, "little"))


def _read(chunks: Iterable[bytes]) -> list[DriverLogRecord | bytes]:
    """Return the records, and the lines one by one."""
    reader = LogReader()
    items: list[DriverLogRecord | bytes] = []
    for chunk in chunks:
        for instruction in reader.feed(chunk):
            items += instruction.lines if isinstance(instruction, ForeignLines) else [instruction]
    return items


def _cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(at)]


def test_recorded_reads_are_split_into_records() -> None:
    reads = [bytes.fromhex(line) for line in RECORDED.read_text().splitlines()]
    items = _read(reads)
    assert all(isinstance(output, DriverLogRecord) and output.pid == 430 for output in items)
    records = [output for output in items if isinstance(output, DriverLogRecord)]
    assert [record.origin for record in records] == [RecordWriter.OTHER] * 3 + [RecordWriter.SERVER] * (
        len(records) - 3
    )
    assert records[0] == DriverLogRecord(
        RecordWriter.OTHER, 430, datetime(2026, 11, 22, 14, 24, 55, 376000), b"Startup"
    )
    assert records[-1].text == b"Destroy server context on device 0 (NVIDIA H200)"
    assert b"".join(record.encode() for record in records) == b"".join(reads)


@given(st.lists(records | lines, max_size=8), st.lists(st.integers(0), max_size=12))
def test_records_and_lines_in_any_order_and_chunks(said: list[DriverLogRecord | bytes], places: list[int]) -> None:
    stream = b"".join(
        driver_log_record.encode() if isinstance(driver_log_record, DriverLogRecord) else driver_log_record + b"\n"
        for driver_log_record in said
    )
    assert _read(_cut(stream, places)) == said


@given(
    st.lists(st.binary(max_size=200) | signs | records.map(DriverLogRecord.encode), max_size=10).map(b"".join),
    st.lists(st.integers(0), max_size=12),
)
def test_garbage_is_the_same_in_any_chunks(data: bytes, places: list[int]) -> None:
    assert _read(_cut(data, places)) == _read([data])


@given(st.binary(max_size=60), records, st.integers(0))
def test_a_record_after_garbage_and_a_record_cut_short_is_found(
    data: bytes, other: DriverLogRecord, length: int
) -> None:
    cut = other.encode()
    cut = cut[: length % (len(cut) + 1)]
    assert _read([data.translate(None, b"\1\2\3"), cut, RECORD.encode()])[-1] == RECORD


def test_a_line_continues_after_a_record() -> None:
    assert _read([b"first ", RECORD.encode(), b"half\n"]) == [RECORD, b"first half"]


def test_a_long_line_is_cut() -> None:
    line = b"".join(b"%d " % number for number in range(PIPE_BUF))
    assert _read([line[:PIPE_BUF], line[PIPE_BUF:], b"\nx\n"]) == _read([line + b"\nx\n"]) == [line[:PIPE_BUF], b"x"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, MAGIC), (0, MAGIC + 4), (4, 0), (8, 1970), (8, 9999), (12, 0), (12, 13), (16, 0), (16, 31), (20, 1),
        (24, 24), (28, 60), (32, 60), (36, 1000), (36, 2**31 - 1), (40, PIPE_BUF), (44, 1), (44, 2**32 - 1),
    ],
)  # fmt: skip
def test_a_wrong_header_is_text(place: int, value: int) -> None:
    data = RECORD.encode()
    data = data[:place] + value.to_bytes(4, "little") + data[place + 4 :]
    assert _read([data, b"\n"]) == data.split(b"\n")
    assert _read([data, b"\n", RECORD.encode()])[-1] == RECORD


def test_little_is_held() -> None:
    reader = LogReader()
    promised = DriverLogRecord(RecordWriter.SERVER, 1, NOON, b"x" * (PIPE_BUF - HEADER)).encode()[:-1]
    list(reader.feed(b"y" * 3 * PIPE_BUF + promised))
    assert list(reader.feed(b"\1\n")) == [ForeignLines((b"y" * PIPE_BUF,))]  # \1 is in no text: that was not a record
