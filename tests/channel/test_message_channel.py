"""The message channel over real sockets: whole messages, their descriptors, and misbehaving peers."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from time_limit import with_limit

from pympsd.channel.message_channel import MessageChannel
from pympsd.channel.send_queue import QUEUE_BYTES
from pympsd.errors import RemoteError
from pympsd.wire import frames, messages
from pympsd.wire.link_messages import AdmitClient, ShutDown

ADMIT = AdmitClient(1, 2, 3, "c", 0, 4, 0, {"A": "b"})


@pytest.fixture
async def pair() -> AsyncIterator[tuple[MessageChannel, MessageChannel]]:
    """Two ends that accept two descriptors per message."""
    own_end, peer_end = trio.socket.socketpair()
    channels = MessageChannel(own_end, fds_allowed=2), MessageChannel(peer_end, fds_allowed=2)
    yield channels
    for channel in channels:
        channel.close()


@pytest.fixture
async def untrusted() -> AsyncIterator[tuple[socket.socket, MessageChannel]]:
    """A raw peer, and a channel that accepts no descriptors."""
    raw, peer_end = socket.socketpair()
    channel = MessageChannel(trio.socket.from_stdlib_socket(peer_end))
    yield raw, channel
    channel.close()
    raw.close()


def _file(text: bytes) -> int:
    fd = os.memfd_create("sent")
    os.write(fd, text)
    return fd


@with_limit
async def test_messages_arrive_in_order_with_their_descriptors(pair: tuple[MessageChannel, MessageChannel]) -> None:
    first, second = pair
    first.send(ADMIT, (_file(b"first"), _file(b"second")))
    first.send(ShutDown(False))
    first.send(ADMIT, (_file(b"third"),))
    first.finish()
    await first.run_sender()
    actual = [await second.receive_message() for _ in range(3)]
    assert [received[0] for received in actual if received] == [ADMIT, ShutDown(False), ADMIT]
    fds = [fd for received in actual if received for fd in received[1]]
    assert [os.pread(fd, 10, 0) for fd in fds] == [b"first", b"second", b"third"]
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


@with_limit
async def test_sent_descriptors_are_closed_by_the_sender(pair: tuple[MessageChannel, MessageChannel]) -> None:
    first, second = pair
    reader, writer = os.pipe()
    first.send(ADMIT, (writer,))
    first.finish()
    await first.run_sender()
    received = await second.receive_message()
    assert received is not None
    (theirs,) = received[1]
    os.close(theirs)
    assert os.read(reader, 1) == b""  # the end of file: the writing end is closed
    os.close(reader)


@with_limit
async def test_large_messages_pass_while_both_ends_run(pair: tuple[MessageChannel, MessageChannel]) -> None:
    first, second = pair
    refused = messages.Refused(1, "x" * 1_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run_sender)
        for _ in range(5):
            first.send(refused)
        for _ in range(5):
            assert await second.receive_message() == (refused, ())
        first.finish()
    assert first.queued_bytes == 0


@with_limit
async def test_an_end_of_file_ends_the_channel(pair: tuple[MessageChannel, MessageChannel]) -> None:
    first, second = pair
    first.send(ShutDown(True))
    first.finish()
    await first.run_sender()
    first.close()
    assert await second.receive_message() == (ShutDown(True), ())
    assert await second.receive() is None
    assert await second.receive() is None


@with_limit
async def test_an_end_of_file_within_a_frame_is_a_remote_error(
    untrusted: tuple[socket.socket, MessageChannel],
) -> None:
    raw, channel = untrusted
    raw.send(frames.encode(20, b"whole") + frames.encode(20, b"half")[:-1])
    raw.shutdown(socket.SHUT_WR)
    first = await channel.receive()
    assert first is not None
    assert first.body == b"whole"
    with pytest.raises(RemoteError, match="middle of a frame"):
        await channel.receive()


@with_limit
async def test_a_frame_over_the_maximum_is_a_remote_error(
    untrusted: tuple[socket.socket, MessageChannel],
) -> None:
    raw, channel = untrusted
    raw.send(b"\xff" * 8)
    with pytest.raises(RemoteError, match="over the maximum"):
        await channel.receive()


@with_limit
async def test_descriptors_from_an_untrusted_peer_are_closed(untrusted: tuple[socket.socket, MessageChannel]) -> None:
    raw, channel = untrusted
    reader, writer = os.pipe()
    socket.send_fds(raw, [frames.encode(20, b"with a gift")], [writer])
    os.close(writer)
    frame = await channel.receive()
    assert frame is not None
    assert (frame.body, frame.fds) == (b"with a gift", ())
    assert os.read(reader, 1) == b""  # the writing end is closed
    os.close(reader)


@pytest.mark.parametrize("stated", [0, 1, 3])
@with_limit
async def test_unclaimed_descriptors_are_closed(stated: int) -> None:
    raw, peer_end = socket.socketpair()
    channel = MessageChannel(trio.socket.from_stdlib_socket(peer_end), fds_allowed=2)
    reader, writer = os.pipe()
    socket.send_fds(raw, [frames.encode(20, b"", stated)], [writer, writer])
    os.close(writer)
    try:
        frame = await channel.receive()
    except RemoteError:
        assert stated == 3
    else:
        assert frame is not None
        assert len(frame.fds) == stated
        for fd in frame.fds:
            os.close(fd)
    channel.close()
    raw.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


@with_limit
async def test_the_descriptors_of_an_unread_frame_are_closed_with_the_channel() -> None:
    raw, peer_end = socket.socketpair()
    channel = MessageChannel(trio.socket.from_stdlib_socket(peer_end), fds_allowed=2)
    reader, writer = os.pipe()
    raw.sendmsg(
        [frames.encode(20, b"first") + frames.encode(20, b"second", 1)],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [writer]))],
    )
    os.close(writer)
    first = await channel.receive()
    assert first is not None
    assert first.fds == ()
    channel.close()
    raw.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


@with_limit
async def test_unsent_descriptors_are_closed_with_the_channel() -> None:
    own_end, peer_end = trio.socket.socketpair()
    channel = MessageChannel(own_end, fds_allowed=2)
    reader, writer = os.pipe()
    channel.send(ADMIT, (writer,))
    channel.close()
    peer_end.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


@with_limit
async def test_a_peer_that_does_not_read_is_cut_off_without_blocking(
    untrusted: tuple[socket.socket, MessageChannel],
) -> None:
    raw, channel = untrusted
    reader, writer = os.pipe()
    body = frames.encode(20, bytes(frames.MAX_BODY))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(QUEUE_BYTES // len(body) + 3):
            channel.send_raw(body)
        await trio.testing.wait_all_tasks_blocked()
        channel.send_raw(body, (writer,))
        assert channel.overflowed
        # Cut off: the sender ends, and a task that receives from this peer sees the end.
        assert await channel.receive() is None
    assert channel.queued_bytes <= QUEUE_BYTES + len(body)
    assert os.read(reader, 1) == b""
    os.close(reader)
    raw.setblocking(False)
    while data := raw.recv(1 << 20):
        assert data.strip(b"\0\x14\x10") == b""


@with_limit
async def test_queued_descriptors_are_counted(pair: tuple[MessageChannel, MessageChannel]) -> None:
    first, second = pair
    first.send(ADMIT, (_file(b"at once"),))
    assert first.queued_descriptors == 0
    full = messages.Refused(1, "x" * 1_000_000)
    first.send(full)
    first.send(ADMIT, (_file(b"first"), _file(b"second")))
    first.send(ADMIT, (_file(b"third"),))
    assert first.queued_descriptors == 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run_sender)
        for _ in range(4):
            received = await second.receive_message()
            assert received is not None
            for fd in received[1]:
                os.close(fd)
        first.finish()
    assert first.queued_descriptors == 0


@with_limit
async def test_a_peer_that_is_gone_ends_the_sender(untrusted: tuple[socket.socket, MessageChannel]) -> None:
    raw, channel = untrusted
    raw.close()
    channel.send_raw(frames.encode(20, b"x"))
    await channel.run_sender()
    assert channel.overflowed
    assert await channel.receive() is None
