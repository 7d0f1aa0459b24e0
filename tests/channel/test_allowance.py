"""What connections may cost: a budget of bytes for each user and for all, and deadlines, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
import trio.testing
from attrs import define, field
from time_limit import with_limit

from pympsd.channel.allowance import FRAME_SECONDS, UNREAD_SECONDS, BufferBudget
from pympsd.channel.message_channel import RECEIVE_BYTES, MessageChannel
from pympsd.channel.packet_channel import PacketChannel
from pympsd.errors import LimitExceeded
from pympsd.wire import frames

USER, OTHER = 10001, 10002
FULL = "the user has all"
MIB = 1 << 20
HALF_FRAME = frames.encode(20, bytes(frames.MAX_BODY))[:-1]


def budget() -> BufferBudget:
    """Return a budget of which each user may have 4 MiB."""
    buffer_budget = BufferBudget(lambda uid, count: FULL if buffer_budget.held[uid] + count > 4 * MIB else "")
    return buffer_budget


@define
class Peers:
    """Connections of users to a process with one budget."""

    budget: BufferBudget
    opened: list[tuple[socket.socket, MessageChannel]] = field(factory=list)

    def connect(self, uid: int) -> tuple[socket.socket, MessageChannel]:
        """Return a peer's socket, and this process's channel."""
        raw, peer_end = socket.socketpair()
        raw.setblocking(False)
        channel = MessageChannel(trio.socket.from_stdlib_socket(peer_end), allowance=self.budget.allowance(uid))
        self.opened.append((raw, channel))
        return self.opened[-1]

    async def send(self, raw: socket.socket, data: bytes) -> None:
        """Send as a peer; the channel must be receiving."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[raw.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(raw)

    def close(self) -> None:
        """Close everything."""
        for raw, channel in self.opened:
            raw.close()
            channel.close()


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """No connections yet, and 4 MiB for each user."""
    peers = Peers(budget())
    yield peers
    peers.close()


@with_limit
async def test_the_connection_that_takes_too_much_fails_and_no_other(peers: Peers) -> None:
    _, honest = first = peers.connect(USER)
    async with trio.open_nursery() as nursery:
        failed: list[str] = []

        async def receive(channel: MessageChannel) -> None:
            try:
                await channel.receive()
            except LimitExceeded as error:
                failed.append(str(error))
                channel.close()

        for raw, channel in (first, *(peers.connect(USER) for _ in range(2)), peers.connect(OTHER)):
            nursery.start_soon(receive, channel)
            await peers.send(raw, HALF_FRAME)
            await trio.testing.wait_all_tasks_blocked()
        assert failed == []
        raw, channel = peers.connect(USER)
        nursery.start_soon(receive, channel)
        with suppress(OSError):  # it is closed
            await peers.send(raw, HALF_FRAME)
        await trio.testing.wait_all_tasks_blocked()
        (reason,) = failed
        assert reason == FULL
        assert peers.budget.held[USER] == 3 * len(HALF_FRAME)
        await peers.send(first[0], b"\0")
        await trio.testing.wait_all_tasks_blocked()
        assert honest.failure is None
        nursery.cancel_scope.cancel()
    peers.close()
    assert (peers.budget.held[USER], peers.budget.held[OTHER]) == (0, 0)


@with_limit
async def test_a_frame_counts_until_the_next_receive(peers: Peers) -> None:
    raw, channel = peers.connect(USER)
    await peers.send(raw, frames.encode(20, b"x" * 1000) + frames.encode(20, b"y" * 100))
    await channel.receive()
    assert peers.budget.held[USER] == 1116
    await channel.receive()
    assert peers.budget.held[USER] == 108
    raw.close()
    assert await channel.receive() is None
    assert peers.budget.held[USER] == 0


@with_limit
async def test_a_frame_that_drips_is_ended_at_its_deadline(peers: Peers, autojump_clock: object) -> None:
    raw, channel = peers.connect(USER)
    # No time passes for a peer that has begun nothing.
    with trio.move_on_after(2 * FRAME_SECONDS):
        await channel.receive()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in HALF_FRAME:
                raw.send(bytes((byte,)))
                await trio.sleep(0.1)

        nursery.start_soon(drip)
        with pytest.raises(LimitExceeded, match="the rest of a message did not arrive within 10 s"):
            await channel.receive()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(FRAME_SECONDS)


@with_limit
async def test_the_rest_of_a_request_has_a_deadline_too(peers: Peers, autojump_clock: object) -> None:
    raw, channel = peers.connect(USER)
    raw.send(frames.encode(20, b"first of two"))
    await channel.receive()
    with pytest.raises(LimitExceeded, match="the rest of a message did not arrive within 10 s"):
        await channel.receive(continues=True)


@with_limit
async def test_the_second_packet_of_a_request_has_a_deadline(autojump_clock: object) -> None:
    raw, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    checked = budget()
    channel = PacketChannel(trio.socket.from_stdlib_socket(peer_end), checked.allowance(USER))
    raw.send(b"length")
    assert await channel.receive(100) == b"length"
    assert checked.held[USER] == 6
    with pytest.raises(LimitExceeded, match="the rest of a message did not arrive within 10 s"):
        await channel.receive(100, continues=True)
    channel.close()
    raw.close()
    assert checked.held[USER] == 0


@with_limit
async def test_answers_that_are_not_read_come_out_of_the_same_budget(peers: Peers) -> None:
    answer = bytes(MIB)
    channels = [peers.connect(USER)[1] for _ in range(8)]
    for channel in channels:
        channel.send_raw(answer)
    # The kernel takes the beginning of each.
    assert not any(channel.overflowed for channel in channels[:4])
    assert channels[-1].overflowed
    assert 3 * MIB < peers.budget.held[USER] <= 4 * MIB
    assert channels[-1].failure is not None
    other = peers.connect(OTHER)[1]
    other.send_raw(answer)
    assert not other.overflowed


@with_limit
async def test_an_answer_that_is_read_too_slowly_ends_the_connection(peers: Peers, autojump_clock: object) -> None:
    raw, channel = peers.connect(USER)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        channel.send_raw(bytes(MIB))
        channel.send_raw(bytes(MIB))
        for _ in range(20):
            await trio.sleep(1)
            raw.recv(4096)
        assert not channel.overflowed
        with trio.fail_after(1.2 * UNREAD_SECONDS):
            await channel.drain()
        assert channel.overflowed
    assert str(channel.failure) == "the data sent to this connection was not read within 30 s"
    assert trio.current_time() - began == pytest.approx(UNREAD_SECONDS)


@with_limit
async def test_a_link_to_a_server_is_counted_but_not_limited(peers: Peers, autojump_clock: object) -> None:
    raw, peer_end = socket.socketpair()
    link = MessageChannel(trio.socket.from_stdlib_socket(peer_end), allowance=peers.budget.link(USER))
    peers.opened.append((raw, link))
    for _ in range(6):
        link.send_raw(bytes(MIB))
    assert peers.budget.held[USER] > 5 * MIB
    assert not link.allowance.has_room(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run_sender)
        raw.send(b"\0" * (frames.HEADER_BYTES - 1))
        with trio.move_on_after(1.5 * UNREAD_SECONDS):
            await link.receive()
        nursery.cancel_scope.cancel()
    assert not link.overflowed


@with_limit
async def test_a_closed_allowance_counts_nothing(peers: Peers) -> None:
    raw, channel = peers.connect(USER)
    with channel.allowance.keep(5 * RECEIVE_BYTES):
        assert peers.budget.held[USER] == 5 * RECEIVE_BYTES
        with pytest.raises(LimitExceeded), channel.allowance.keep(4 * MIB):
            pass
        channel.close()
        assert peers.budget.held[USER] == 0
    assert peers.budget.held[USER] == 0
    raw.close()


@with_limit
async def test_what_is_sent_after_too_much_was_received_is_not_refused(peers: Peers) -> None:
    raw, channel = peers.connect(USER)
    while not channel.queued_bytes:
        channel.send_raw(bytes(MIB))
    with pytest.raises(LimitExceeded):
        channel.allowance.count_received(5 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        with suppress(BlockingIOError):
            while True:
                if not raw.recv(MIB):
                    break
                await trio.testing.wait_all_tasks_blocked()
        await channel.drain()
        nursery.cancel_scope.cancel()
    channel.close()
    assert not peers.budget.held
