"""Answers that a slow client has not read yet are kept, and descriptors go along with the answer they belong to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from pympsd.wire.records import HEADER_BYTES
from pympsd_server.executor.requests.answers import MAX_KEPT_BYTES, AnswerWriter

SECONDS = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The executor's end, and the client's."""
    own_end, peer_end = socket.socketpair()
    peer_end.settimeout(SECONDS)
    yield own_end, peer_end
    own_end.close()
    peer_end.close()


def number_all(number: int) -> bytes:
    """Return bytes of an answer's length that identify it."""
    return number.to_bytes(HEADER_BYTES, "little")


def read_all(client: socket.socket, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers of ``count`` answers, and for each file how many answers were whole before, and its size."""
    data, files = b"", []
    while len(data) < count * HEADER_BYTES:
        part, fds, flags, _ = socket.recv_fds(client, 65536, 4)
        assert part, "cut off"
        assert not flags & socket.MSG_CTRUNC
        assert len(fds) <= 1
        for fd in fds:
            files.append((len(data) // HEADER_BYTES, os.fstat(fd).st_size))
            os.close(fd)
        data += part
    return [int.from_bytes(data[at : at + HEADER_BYTES], "little") for at in range(0, len(data), HEADER_BYTES)], files


def make(size: int) -> int:
    """Return a descriptor that is identified by its size."""
    fd = os.memfd_create("answer", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def test_descriptors_wait_with_their_answers(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, client = ends
    writer = AnswerWriter(ours)
    laden = {0: 100, 5000: 200, 5001: 300, 9999: 400}
    for number in range(10_000):
        fds: tuple[int, ...] = (make(laden[number]),) if number in laden else ()
        writer.send(number_all(number), fds)
        for fd in fds:
            os.close(fd)  # it stays the caller's
    numbers, files = read_all(client, 10_000)
    assert numbers == list(range(10_000))
    assert [size for _, size in files] == list(laden.values())
    assert all(whole <= number for (whole, _), number in zip(files, laden, strict=True)), "none after its answer"
    writer.close()


def test_what_is_kept_is_closed_when_the_client_is_cut_off(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, client = ends
    writer = AnswerWriter(ours)
    before = len(os.listdir("/proc/self/fd"))
    large = bytes(MAX_KEPT_BYTES // 16)
    for _ in range(12):
        fd = make(1)
        writer.send(large, (fd,))
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) > before
    for _ in range(8):
        writer.send(large)
    deadline = time.monotonic() + SECONDS
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline
    writer.close()
    with pytest.raises(AssertionError, match="cut off"):
        read_all(client, 1 << 30)


def test_text_may_be_longer_than_what_is_kept_of_answers(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, client = ends
    writer = AnswerWriter(ours)
    text = [number_all(number) * 1000 for number in range(2 * MAX_KEPT_BYTES // (1000 * HEADER_BYTES))]
    writer.send_text(lambda: text)
    writer.send(number_all(7))
    # The client has not read all of it: further text is not even asked for.
    writer.send_text(lambda: pytest.fail("asked for text"))
    numbers, _ = read_all(client, 1000 * len(text) + 1)
    assert numbers == [number for number in range(len(text)) for _ in range(1000)] + [7]
    writer.close()


def test_after_text_answers_are_kept_as_before(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, client = ends
    writer = AnswerWriter(ours)
    writer.send_text(lambda: [number_all(1)] * 1000)
    read_all(client, 1000)
    for _ in range(2 * MAX_KEPT_BYTES // (1000 * HEADER_BYTES)):
        writer.send(number_all(2) * 1000)
    writer.close()
    with pytest.raises(AssertionError, match="cut off"):
        read_all(client, 1 << 30)
