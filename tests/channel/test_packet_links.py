"""The message channel over packets: a link that outlives a process at one of its ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import trio
from time_limit import with_limit

from pympsd.channel.message_channel import CONTINUED, PACKET_BYTES, MessageChannel
from pympsd.wire import messages
from pympsd.wire.link_messages import AdmitClient, ShutDown

LONG = AdmitClient(1, 2, 3, "c", 0, 4, 0, {"A": "x" * (3 * PACKET_BYTES)})


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a link, as a keeper holds them."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


def channel(end: socket.socket) -> MessageChannel:
    """Return a process's channel over an end that others hold too."""
    return MessageChannel(trio.socket.from_stdlib_socket(end.dup()), fds_allowed=2)


def pieces(message: object, fds: int = 0) -> list[bytes]:
    """Return the packets of a message."""
    frame = messages.encode(message, fds)
    rest = [frame[start : start + PACKET_BYTES] for start in range(PACKET_BYTES, len(frame), PACKET_BYTES)]
    return [frame[:PACKET_BYTES], *(CONTINUED + piece for piece in rest)]


@with_limit
async def test_a_long_message_comes_in_pieces(link: tuple[socket.socket, socket.socket]) -> None:
    first, second = map(channel, link)
    reader, writer = os.pipe()
    first.send(LONG, (writer,))
    first.send(ShutDown(True))
    actual = await second.receive_message()
    assert actual is not None
    assert actual[0] == LONG
    os.close(actual[1][0])
    assert os.read(reader, 1) == b"", "the descriptor came once"
    os.close(reader)
    assert await second.receive_message() == (ShutDown(True), ())
    first.close()
    second.close()


@with_limit
async def test_a_message_that_was_not_sent_to_its_end_is_dropped(link: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = os.pipe()
    with open(writer, "wb") as descriptor:
        socket.send_fds(link[0], pieces(LONG, 1)[:1], [descriptor.fileno()])
    link[0].send(pieces(LONG, 1)[1])
    link[0].send(messages.encode(ShutDown(True)))
    message_channel = channel(link[1])
    assert await message_channel.receive_message() == (ShutDown(True), ())
    assert os.read(reader, 1) == b"", "its descriptor is closed"
    os.close(reader)
    message_channel.close()


@with_limit
async def test_the_rest_of_what_another_process_began_to_read_is_passed_over(
    link: tuple[socket.socket, socket.socket],
) -> None:
    for piece in pieces(LONG):
        link[0].send(piece)
    link[0].send(messages.encode(ShutDown(True)))
    link[1].recv(1 << 16)
    message_channel = channel(link[1])
    assert await message_channel.receive_message() == (ShutDown(True), ())
    message_channel.close()


@with_limit
async def test_the_last_packets_of_a_peer_are_read_although_the_peer_left_data_unread(
    link: tuple[socket.socket, socket.socket],
) -> None:
    link[1].send(b"unread")
    link[0].send(messages.encode(ShutDown(True)))
    link[0].close()
    message_channel = channel(link[1])
    assert await message_channel.receive_message() == (ShutDown(True), ())
    assert await message_channel.receive_message() is None
    message_channel.close()
