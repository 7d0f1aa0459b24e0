"""The ring: records arrive whole and in order, whatever their sizes; a full ring blocks only the client."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pympsd.wire import records
from pympsd.wire.ring_layout import ANSWERS, HEAD, RECORD_BYTES, RING_BYTES, TAIL
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream.transport import Transport
from tests.native.rig import SECONDS, Rig

FOR_PYTHON = records.BY_NAME["IMAGE_PART"].opcode
RECORDS = 100_000
MAX_BODY = RECORD_BYTES - records.HEADER_BYTES
SIZES: tuple[Callable[[random.Random], int], ...] = (
    lambda source: 0,
    lambda source: 88,
    lambda source: 8 * source.randrange(64),
    lambda source: 8 * source.randrange(1024),
)


def _record(source: random.Random, body: int) -> bytes:
    length = records.HEADER_BYTES + body
    return records.HEADER.pack(FOR_PYTHON, 0, length, 1, source.getrandbits(64)) + source.randbytes(body)


def test_a_record_arrives_byte_for_byte(rig: Rig) -> None:
    record = _record(random.Random(1), 4096)
    fake_work = rig.take(record)
    assert fake_work is not None
    assert (fake_work.record, fake_work.code) == (record, 0)


def test_records_of_all_sizes_arrive_in_order_around_the_ring(rig: Rig) -> None:
    source, expected = random.Random(20130805), random.Random(20130805)
    sent = (_record(source, source.choice(SIZES)(source)) for _ in range(RECORDS))
    record = next(sent, None)
    for number in range(RECORDS):
        while record is not None and rig.ring.put(record):
            record = next(sent, None)
        fake_work = rig.worker.take()
        assert fake_work is not None
        assert fake_work.record == _record(expected, expected.choice(SIZES)(expected)), f"record {number}"
    assert rig.words[HEAD // 8] == rig.words[TAIL // 8] > 100 * RING_BYTES


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.one_of(st.integers(0, 64), st.integers(0, MAX_BODY // 8)), st.integers(0, 4))))
def test_any_sequence_of_sizes_and_takes(rig: Rig, puts: list[tuple[int, int]]) -> None:
    # The ring is kept from one example to the next, so that records meet its end at any position.
    waiting: list[bytes] = []
    for number, (words, takes) in enumerate(puts):
        record = _record(random.Random(number), 8 * words)
        while not rig.ring.put(record):
            _expect(rig, waiting.pop(0))
        waiting.append(record)
        for _ in range(min(takes, len(waiting))):
            _expect(rig, waiting.pop(0))
    for record in waiting:
        _expect(rig, record)


def _expect(rig: Rig, record: bytes) -> None:
    fake_work = rig.worker.take()
    assert fake_work is not None
    assert fake_work.record == record


@pytest.mark.parametrize("left", [8, 16, 24, 32, 1000])
def test_a_record_across_the_rings_end_arrives_whole(rig: Rig, left: int) -> None:
    source = random.Random(left)
    while distance := RING_BYTES - left - rig.words[TAIL // 8]:
        filler = distance if distance <= RECORD_BYTES else min(RECORD_BYTES, distance - records.HEADER_BYTES)
        _expect_taken(rig, _record(source, filler - records.HEADER_BYTES))
    assert rig.words[TAIL // 8] == RING_BYTES - left
    _expect_taken(rig, _record(source, 1000))
    _expect_taken(rig, _record(source, 0))


def _expect_taken(rig: Rig, record: bytes) -> None:
    fake_work = rig.take(record)
    assert fake_work is not None
    assert fake_work.record == record


def test_a_full_ring_takes_no_more_until_a_record_is_taken(rig: Rig) -> None:
    record = _record(random.Random(3), 1000)
    count = 0
    while rig.ring.put(record):
        count += 1
    assert count == RING_BYTES // len(record)
    assert rig.words[HEAD // 8] == 0
    assert rig.worker.take() is not None
    assert rig.words[HEAD // 8] == len(record)
    assert rig.ring.put(record)
    assert not rig.ring.put(record)


def test_a_ring_can_be_filled_to_the_last_byte(rig: Rig) -> None:
    record = _record(random.Random(4), RECORD_BYTES - records.HEADER_BYTES)
    for _ in range(2):
        assert [rig.ring.put(record) for _ in range(5)] == [True] * 4 + [False]
        for _ in range(4):
            _expect(rig, record)


def test_a_record_that_can_never_fit_is_refused(rig: Rig) -> None:
    for _ in range(4):
        assert rig.ring.put(_record(random.Random(5), MAX_BODY))
    with pytest.raises(CudaError, match="are allowed"):
        rig.ring.put(_record(random.Random(5), RING_BYTES))


def test_a_full_ring_blocks_only_the_client(rig: Rig) -> None:
    transport = Transport(rig.client_end, rig.client_memory, ring=rig.ring)
    record = _record(random.Random(6), 8168)
    room = RING_BYTES // len(record)
    posted: list[int] = []
    blocked = threading.Event()

    def post() -> None:
        for number in range(room + 10):
            if number == room:
                blocked.set()
            transport.post(record)
            posted.append(number)

    client = threading.Thread(target=post)
    client.start()
    assert blocked.wait(SECONDS)
    client.join(0.05)
    assert len(posted) == room
    rig.start()
    client.join(SECONDS)
    assert len(posted) == room + 10
    for _ in posted:
        taken = rig.next()
        assert taken is not None
        assert taken.record == record


def test_answers_are_announced_before_they_can_be_read(rig: Rig) -> None:
    before = rig.words[ANSWERS // 8]
    assert rig.worker.send(b"x" * 24) == 24
    assert rig.words[ANSWERS // 8] == before + 1
    assert select.select([rig.client_end], [], [], 0)[0]
