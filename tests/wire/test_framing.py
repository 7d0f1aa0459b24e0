"""Frames and their descriptors survive any chunking; a violation is a RemoteError."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pympsd.errors import RemoteError
from pympsd.wire import frames
from pympsd.wire.framing import Frame, FrameReader

KINDS = st.integers(0, 0xFFFF)
CONTENTS = st.tuples(KINDS, st.binary(max_size=200), st.integers(0, 3))


def _cut(data: bytes, cuts: list[int]) -> Iterator[tuple[int, bytes]]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        if end > start:
            yield start, data[start:end]


@given(st.lists(CONTENTS, min_size=1, max_size=8), st.lists(st.integers(0, 4000), max_size=20))
def test_frames_in_any_chunks_are_read_whole_with_their_own_descriptors(
    contents: list[tuple[int, bytes, int]], cuts: list[int]
) -> None:
    stream, starts, expected, fd = b"", [], [], 100
    for kind, body, count in contents:
        fds = tuple(range(fd, fd + count))
        fd += count
        starts.append((len(stream), fds))
        stream += frames.encode(kind, body, count)
        expected.append(Frame(kind, body, fds))
    reader = FrameReader(fds_allowed=3)
    received: list[Frame] = []
    for start, data in _cut(stream, cuts):
        # The kernel delivers descriptors with the first byte they were sent with.
        fds_received = tuple(n for at, fds in starts if start <= at < start + len(data) for n in fds)
        received.extend(reader.feed(data, fds_received))
    assert received == expected
    assert not reader.mid_frame
    assert reader.take_unclaimed_fds() == ()


@given(st.binary(max_size=100), st.integers(1, 107))
def test_a_reader_is_mid_frame_until_the_last_byte(body: bytes, cut: int) -> None:
    data = frames.encode(20, body)
    cut = min(cut, len(data) - 1)
    reader = FrameReader()
    assert list(reader.feed(data[:cut])) == []
    assert reader.mid_frame
    assert list(reader.feed(data[cut:])) == [Frame(20, body)]
    assert not reader.mid_frame


def test_a_body_may_have_the_maximum_length_and_no_more() -> None:
    assert list(FrameReader(body_limit=10).feed(frames.encode(1, b"x" * 10))) == [Frame(1, b"x" * 10)]
    with pytest.raises(RemoteError, match="11 bytes is over the maximum of 10"):
        list(FrameReader(body_limit=10).feed(frames.encode(1, b"x" * 11)))


def test_an_announced_length_is_refused_before_its_body_comes() -> None:
    header = frames.encode(1, b"")
    huge = (0xFFFF_FFFF).to_bytes(4, "little") + header[4:]
    with pytest.raises(RemoteError, match="over the maximum"):
        list(FrameReader().feed(huge))


def test_descriptors_are_refused_where_none_are_allowed_and_can_be_closed() -> None:
    reader = FrameReader()
    with pytest.raises(RemoteError, match="not accepted here"):
        list(reader.feed(frames.encode(1), (7,)))
    assert reader.take_unclaimed_fds() == (7,)


def test_a_frame_may_not_state_more_descriptors_than_are_allowed() -> None:
    reader = FrameReader(fds_allowed=1)
    with pytest.raises(RemoteError, match="2 file descriptors, 1 are allowed"):
        list(reader.feed(frames.encode(1, b"", 2), (7, 8)))
    assert reader.take_unclaimed_fds() == (7, 8)


def test_a_frame_may_not_state_descriptors_that_did_not_come() -> None:
    with pytest.raises(RemoteError, match="states 2 file descriptors and brought 1"):
        list(FrameReader(fds_allowed=2).feed(frames.encode(1, b"", 2), (7,)))


def test_a_frame_reports_lost_descriptors_and_the_others_keep_theirs() -> None:
    reader = FrameReader(fds_allowed=2)
    first, second, third = (frames.encode(1, name, 2) for name in (b"a", b"b", b"c"))
    instructions = list(reader.feed(first, (7, 8)))
    instructions += reader.feed(second[:5], lost=True)
    instructions += reader.feed(second[5:] + frames.encode(2, b"none"))
    instructions += reader.feed(third, (9, 10))
    assert instructions == [
        Frame(1, b"a", (7, 8)),
        Frame(1, b"b", fds_lost=True),
        Frame(2, b"none"),
        Frame(1, b"c", (9, 10)),
    ]
    assert reader.take_unclaimed_fds() == ()


def test_lost_descriptors_do_not_excuse_missing_ones() -> None:
    reader = FrameReader(fds_allowed=2)
    list(reader.feed(b"", (7,)))
    with pytest.raises(RemoteError, match="states 2 file descriptors and brought 1"):
        list(reader.feed(frames.encode(1, b"", 2), lost=True))
    assert reader.take_unclaimed_fds() == (7,)


def test_unclaimed_descriptors_are_returned_once() -> None:
    reader = FrameReader(fds_allowed=2)
    assert [frame.fds for frame in reader.feed(frames.encode(1, b"", 1), (7, 8))] == [(7,)]
    assert reader.take_unclaimed_fds() == (8,)
    assert reader.take_unclaimed_fds() == ()


def test_frames_before_a_malformed_one_are_still_read() -> None:
    actual = []
    with pytest.raises(RemoteError):
        actual.extend(FrameReader(body_limit=4).feed(frames.encode(1, b"ok") + frames.encode(2, b"too long")))
    # list.extend keeps what a generator yielded before it raised.
    assert actual == [Frame(1, b"ok")]


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_garbage_raises_nothing_but_remote_error(chunks: list[bytes]) -> None:
    reader = FrameReader(body_limit=1000, fds_allowed=0)
    try:
        for chunk in chunks:
            for frame in reader.feed(chunk):
                assert len(frame.body) <= 1000
    except RemoteError as error:
        assert str(error)  # noqa: PT017 - raising and not raising are both right here


@given(KINDS, st.binary(max_size=50), st.integers(0, 255))
def test_a_header_reads_back(kind: int, body: bytes, fds: int) -> None:
    data = frames.encode(kind, body, fds)
    assert frames.decode_header(data[: frames.HEADER_BYTES]) == (len(body), kind, fds)
    assert data[frames.HEADER_BYTES :] == body


def test_a_megabyte_in_small_chunks_is_read_quickly() -> None:
    data = frames.encode(1, os.urandom(frames.MAX_BODY))
    reader = FrameReader()
    actual = [frame for start in range(0, len(data), 997) for frame in reader.feed(data[start : start + 997])]
    assert [len(frame.body) for frame in actual] == [frames.MAX_BODY]
