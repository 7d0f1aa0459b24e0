"""Answers of the worker and of Python on one socket: each in one piece, none lost, even without a reader."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from attrs import define, field

from pympsd.wire import records
from pympsd_server.executor.requests.answers import AnswerWriter
from pympsd_server.native.worker import DeclinedRecord
from tests.native.rig import SECONDS, Rig

SYNCHRONIZE = records.BY_NAME["SYNCHRONIZE_STREAM"].opcode
LARGE = records.BY_NAME["LOAD_MODULE"].opcode
BRINGS = records.BY_NAME["ALLOCATE_PINNED"].opcode
BY_PYTHON = 1 << 40
"""The first sequence number of answers that Python gives by itself."""


@define
class Reader:
    """A client that reads on request and parses answers; EOFError at the stream's end."""

    stream: socket.socket
    answers: list[records.Record] = field(factory=list)
    fds: int = 0
    _data: bytes = b""

    def read(self, count: int) -> None:
        """Read ``count`` bytes at most."""
        data, fds, _, _ = socket.recv_fds(self.stream, count, 8)
        for fd in fds:
            os.close(fd)
        self.fds += len(fds)
        if not data:
            raise EOFError
        self._data += data
        while len(self._data) >= records.HEADER_BYTES:
            opcode, flags, length, result, sequence = records.HEADER.unpack_from(self._data)
            assert opcode & records.ANSWER, "one answer lies inside another"
            assert opcode & ~records.ANSWER in (SYNCHRONIZE, LARGE, BRINGS)
            if len(self._data) < length:
                return
            body = self._data[records.HEADER_BYTES : length]
            assert body == bytes([sequence % 256]) * len(body)
            self.answers.append(records.Record(opcode, flags, result, sequence, body))
            self._data = self._data[length:]


def _large(sequence: int, count: int) -> bytes:
    return records.pack_answer(LARGE, sequence, 0, b"", bytes([sequence % 256]) * count)


def _answer(writer: AnswerWriter) -> Callable[[DeclinedRecord], None]:
    """Return a callback that answers waits that are left to Python."""

    def on_taken(declined_record: DeclinedRecord) -> None:
        opcode, _, _, _, sequence = records.HEADER.unpack_from(declined_record.record)
        if opcode == SYNCHRONIZE:
            writer.send(records.pack_answer(opcode, sequence, 0))

    return on_taken


def _narrow(rig: Rig) -> AnswerWriter:
    rig.server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    writer = AnswerWriter(rig.server_end, rig.worker)
    rig.on_taken = _answer(writer)
    return writer


def test_the_worker_writes_nothing_while_python_has_a_partial_answer(rig: Rig) -> None:
    rig.server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    large = _large(BY_PYTHON, 1 << 20)
    sent = rig.worker.send(large)
    assert 0 < sent < len(large)
    rig.client_end.recv(sent)  # to make room
    record = rig.pack("SYNCHRONIZE_STREAM", 0)
    assert rig.run(record) == [DeclinedRecord(record, 0)]
    rest = memoryview(large)[sent:]
    while rest:
        count = rig.worker.send(bytes(rest))
        rest = rest[max(count, 0) :]
        while select.select([rig.client_end], [], [], 0)[0]:
            rig.client_end.recv(1 << 16)
    assert rig.run(rig.pack("SYNCHRONIZE_STREAM", 0)) == [], "now it answers again"


def test_answers_to_a_client_that_does_not_read_go_to_python(rig: Rig) -> None:
    rig.server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    some = [rig.pack("SYNCHRONIZE_STREAM", 0) for _ in range(100)]
    declined = [taken.record for taken in rig.run(*some)]
    assert 0 < len(declined) < 100
    answered = rig.answers(100 - len(declined))
    assert sorted(answered + [records.HEADER.unpack_from(record)[4] for record in declined]) == list(range(1, 101))


def test_a_client_that_has_gone_gets_no_answer(rig: Rig) -> None:
    record = rig.pack("SYNCHRONIZE_STREAM", 0)
    rig.put(record)
    rig.client_end.close()
    assert rig.worker.take() is None
    assert rig.worker.send(b"x") < 0


@pytest.mark.parametrize("seed", range(4))
def test_answers_of_both_arrive_whole_whatever_the_client_reads(rig: Rig, seed: int) -> None:
    writer, source = _narrow(rig), random.Random(seed)
    rig.start()
    reader = Reader(rig.client_end)
    waits, larges, with_fds = 600, 60, 20

    def python() -> None:
        numbers = random.Random(f"{seed}/python")
        for number in range(larges):
            writer.send(_large(BY_PYTHON + number, numbers.choice((0, 100, 5000, 40_000))))
        for number in range(with_fds):
            body = bytes([(BY_PYTHON + larges + number) % 256]) * 8
            with open(os.devnull) as file:
                answer = records.pack_answer(BRINGS, BY_PYTHON + larges + number, 0, body)
                writer.send(answer, (file.fileno(),))
            writer.send(_large(BY_PYTHON + larges + with_fds + number, 30_000))

    thread = threading.Thread(target=python)
    thread.start()
    sent = 0
    while len(reader.answers) < waits + larges + 2 * with_fds:
        if sent < waits and source.random() < 0.7:
            for _ in range(min(waits - sent, source.choice((1, 5, 100)))):
                rig.put(rig.pack("SYNCHRONIZE_STREAM", 0))
                sent += 1
        elif select.select([rig.client_end], [], [], 0 if sent < waits else SECONDS)[0]:
            reader.read(source.choice((24, 1000, 1 << 16)))
    thread.join(SECONDS)
    assert not thread.is_alive()
    expected = Counter([*range(1, waits + 1), *range(BY_PYTHON, BY_PYTHON + larges + 2 * with_fds)])
    assert Counter(answer.sequence for answer in reader.answers) == expected
    assert reader.fds == with_fds
    writer.close()


def test_an_answer_with_a_descriptor_that_is_written_in_parts_stays_whole(rig: Rig) -> None:
    """The answers queued after it are written with it, more than the socket takes at the same time."""
    rig.start()
    for _ in range(20):
        _bring_with_much_behind(rig)


def _bring_with_much_behind(rig: Rig) -> None:
    writer = _narrow(rig)
    numbers = iter(range(BY_PYTHON, BY_PYTHON + 1000))
    reader = Reader(rig.client_end)
    with open(os.devnull) as file:
        while writer._flusher is None:
            writer.send(_large(next(numbers), 400))
        writer.send(records.pack_answer(BRINGS, next(numbers), 0), (file.fileno(),))
    writer.send(_large(last := next(numbers), 200_000))
    sent = 0
    while not any(answer.sequence == last for answer in reader.answers):
        rig.put(*(rig.pack("SYNCHRONIZE_STREAM", 0) for _ in range(4)))
        sent += 4
        reader.read(2048)
    while len([answer for answer in reader.answers if answer.sequence < BY_PYTHON]) < sent:
        reader.read(1 << 16)
    assert reader.fds == 1
    assert len(reader.answers) == sent + last - BY_PYTHON + 1
