"""A client that writes arbitrary data to the ring ends its own stream and has no other effect."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pympsd.wire import records
from pympsd.wire.ring_layout import ANSWERS, ASLEEP, DATA, HEAD, IN_USE, RECORD_BYTES, RING_BYTES, SPIN_COUNT, TAIL
from pympsd_server.executor.record_source import SHARED_BYTES
from pympsd_server.native.worker import DeclinedRecord
from tests.native.rig import SECONDS, Rig

FOR_PYTHON = records.BY_NAME["IMAGE_PART"].opcode
HEADER_BYTES = records.HEADER_BYTES
FUZZ_SESSIONS = 200


def _header(length: int, sequence: int = 7) -> bytes:
    return records.HEADER.pack(FOR_PYTHON, 0, length, 1, sequence)


def _expect_end(rig: Rig) -> None:
    assert rig.worker.take() is None
    assert rig.worker.take() is None, "the end is permanent"


@pytest.mark.parametrize("tail", [RING_BYTES + 8, 2 * RING_BYTES, 1 << 63, (1 << 64) - 8, 1, 8, 16, 23])
def test_an_invalid_tail_ends_the_stream(rig: Rig, tail: int) -> None:
    rig.words[IN_USE // 8] = 1
    rig.data[:HEADER_BYTES] = _header(HEADER_BYTES)
    rig.words[TAIL // 8] = tail
    _expect_end(rig)


def test_a_tail_that_moves_back_ends_the_stream(rig: Rig) -> None:
    fake_work = rig.take(_header(HEADER_BYTES), _header(HEADER_BYTES))
    assert fake_work is not None
    rig.words[TAIL // 8] = 0
    _expect_end(rig)


@pytest.mark.parametrize("tail", [25, 31, 47])
def test_a_tail_between_two_records_ends_the_stream_after_the_first(rig: Rig, tail: int) -> None:
    rig.words[IN_USE // 8] = 1
    rig.data[:HEADER_BYTES] = _header(HEADER_BYTES)
    rig.words[TAIL // 8] = tail
    fake_work = rig.worker.take()
    assert fake_work is not None
    assert fake_work.record == _header(HEADER_BYTES)
    _expect_end(rig)


@pytest.mark.parametrize("length", [0, 8, 23, 25, 28, 36, 56, RECORD_BYTES + 8, RING_BYTES, (1 << 32) - 8])
def test_an_invalid_length_ends_the_stream(rig: Rig, length: int) -> None:
    # 56 would be valid, but there are only 48 bytes.
    rig.words[IN_USE // 8] = 1
    rig.data[:HEADER_BYTES] = _header(length)
    rig.words[TAIL // 8] = 48 if length < RING_BYTES else RING_BYTES
    _expect_end(rig)


@pytest.mark.parametrize("length", [0, 23, records.MAX_RECORD + 1, (1 << 32) - 1])
def test_an_invalid_length_on_the_socket_ends_the_stream(rig: Rig, length: int) -> None:
    rig.client_end.sendall(_header(HEADER_BYTES) + _header(length))
    assert rig.worker.take() == DeclinedRecord(_header(HEADER_BYTES), 0)
    _expect_end(rig)


def test_records_arrive_on_the_socket_in_any_pieces(rig: Rig) -> None:
    source = random.Random(9)
    sent = [_header(HEADER_BYTES + size) + source.randbytes(size) for size in (0, 1, 8, 5000, 1 << 19, 3)]
    rig.start()
    data = b"".join(sent)
    while data:
        count = source.choice((1, 5, 23, 4096, 1 << 17))
        rig.client_end.sendall(data[:count])
        data = data[count:]
    for record in sent:
        assert rig.next() == DeclinedRecord(record, 0)


def test_the_longest_record_of_the_socket_is_taken_whole(rig: Rig) -> None:
    record = _header(records.MAX_RECORD).ljust(records.MAX_RECORD, b"x")
    rig.start()
    rig.client_end.sendall(record + record)
    assert [rig.next(), rig.next()] == [DeclinedRecord(record, 0)] * 2


def test_the_header_that_was_checked_is_the_one_that_is_used(make_rig: Callable[..., Rig]) -> None:
    """Lengths change between two valid ones while the worker reads; it uses the one that it checked."""
    lengths: Counter[int] = Counter()
    for _ in range(10):
        rig = make_rig()
        lengths.update(_take_while_flipped(rig))
    assert lengths[24] > 1000
    assert lengths[48] > 1000


def _take_while_flipped(rig: Rig) -> Iterator[int]:
    # As many records of 48 bytes as fit; the second half of each is a record of 24 bytes.
    pairs = RING_BYTES // 48
    end, start = 48 * pairs, rig.client_memory.address + SHARED_BYTES
    rig.words[IN_USE // 8] = 1
    rig.data[:end] = (_header(48) + _header(24)) * pairs
    rig.words[TAIL // 8] = end
    flipper = threading.Thread(
        target=rig.driver.flip, args=(start + DATA + 4, 48, pairs, (48, 24), start + HEAD, end)
    )
    flipper.start()
    position = 0
    while position < end:
        fake_work = rig.worker.take()
        assert fake_work is not None
        _, _, length, _, sequence = records.HEADER.unpack_from(fake_work.record)
        assert (length, sequence) == (len(fake_work.record), 7)
        position += length
        yield length
    flipper.join(SECONDS)
    assert not flipper.is_alive()


def test_a_client_may_switch_between_ring_and_socket(rig: Rig) -> None:
    by_ring, by_socket = _header(HEADER_BYTES, 1), _header(HEADER_BYTES, 2)
    assert rig.take(by_ring) == DeclinedRecord(by_ring, 0)
    rig.words[IN_USE // 8] = 0
    rig.client_end.sendall(by_socket)
    assert rig.worker.take() == DeclinedRecord(by_socket, 0)
    rig.words[IN_USE // 8] = 1
    assert rig.take(by_ring) == DeclinedRecord(by_ring, 0)


def test_arbitrary_words_and_data(make_rig: Callable[..., Rig]) -> None:
    """The process must survive, and a sanitizer must find no invalid access."""
    good = make_rig()
    whole: Counter[bool] = Counter()
    for seed in range(FUZZ_SESSIONS):
        bad = Rig(good.driver)
        bad.start()
        _spoil(bad, random.Random(f"ring/{seed}"))
        assert good.run() == []
        bad.client_end.close()  # this ends the stream at the latest
        while (taken := bad.next()) is not None:
            whole[len(taken.record) == records.HEADER.unpack_from(taken.record)[2]] += 1
        bad.close()
    assert whole[True] > 2 * FUZZ_SESSIONS, "some records must have been valid"
    assert whole[False] == 0


def _spoil(bad: Rig, source: random.Random) -> None:
    words, data, evil = bad.words, bad.data, source.choice((0.05, 0.2, 0.9))
    words[IN_USE // 8] = 1
    for _ in range(30):
        at = words[TAIL // 8] % RING_BYTES // 8 * 8
        length = source.choice((24, 24, 48, 1024))
        header = _header(length)[: RING_BYTES - at]
        data[at : at + len(header)] = header
        words[TAIL // 8] = (words[TAIL // 8] + length) % 2**64
        match source.randrange(6) if source.random() < evil else 9:
            case 0:
                words[source.choice((TAIL, HEAD, IN_USE, ASLEEP, SPIN_COUNT, ANSWERS)) // 8] = source.getrandbits(64)
            case 1:
                words[IN_USE // 8] = source.choice((0, 1, 2))
            case 2:
                at = source.randrange(RING_BYTES - 4096)
                data[at : at + 4096] = source.randbytes(4096)
            case 3:
                words[TAIL // 8] = (words[HEAD // 8] + source.choice((0, 24, RING_BYTES, RING_BYTES + 8))) % 2**64
            case 4:
                words[source.choice((TAIL, HEAD)) // 8] ^= 1 << source.randrange(64)
        with contextlib.suppress(OSError):  # the worker may have ended
            bad.client_end.send(source.randbytes(source.choice((1, 1, 24, 300))), socket.MSG_DONTWAIT)
