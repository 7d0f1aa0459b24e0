"""A message channel over a trio socket: receiving awaits, sending never does.

A sender task empties a queue; a peer that does not read is cut off when the queue is over its limit, so that it
never blocks others.
"""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections import deque
from typing import Any, Final

import trio

from pympsd.channel.descriptors import FD_BYTES, close_all, received, whole
from pympsd.wire import messages
from pympsd.wire.errors import RemoteError
from pympsd.wire.framing import Frame, FrameReader

RECEIVE_BYTES: Final = 65536
FDS_AT_ONCE: Final = 16
QUEUE_BYTES: Final = 8 << 20
"""A peer with more than this unsent is cut off."""


class MessageChannel:
    """Receives and sends frames; owns the socket and every descriptor given to ``send`` or not yet claimed."""

    def __init__(self, sock: trio.socket.SocketType, fds_allowed: int = 0) -> None:
        self._socket = sock
        # The same descriptor, to send without waiting; it is detached, not closed.
        self._plain = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        self._reader = FrameReader(fds_allowed=fds_allowed)
        self._frames: deque[Frame] = deque()
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.queued_bytes = 0
        self.queued_descriptors = 0
        self._work = trio.Event()
        self._sent = trio.Event()
        self._finishing = False
        self.overflowed = False

    async def receive(self) -> Frame | None:
        """Return the next frame, or None at the end; raise RemoteError for a malformed one."""
        if self._frames:
            # One receive can bring thousands of frames: let other tasks run in between.
            await trio.lowlevel.checkpoint()
        while not self._frames:
            try:
                data, fds, lost = await self._receive_once()
            except OSError:
                return None
            if not data:
                if self._reader.mid_frame:
                    raise RemoteError("the connection ended in the middle of a frame")
                return None
            self._frames.extend(self._reader.feed(data, fds, lost))
        return self._frames.popleft()

    async def receive_message(self) -> tuple[Any, tuple[int, ...]] | None:
        """Return the next message with its descriptors, or None at the end."""
        frame = await self.receive()
        return None if frame is None else (messages.decode(frame), frame.fds)

    async def _receive_once(self) -> tuple[bytes, tuple[int, ...], bool]:
        """Return bytes, their descriptors, and whether descriptors were lost for lack of room."""
        if not self._reader.fds_allowed:
            # With no room for descriptors the kernel closes those that a peer sends.
            return await self._socket.recv(RECEIVE_BYTES), (), False
        room = socket.CMSG_SPACE(FDS_AT_ONCE * FD_BYTES)
        data, ancillary, flags, _ = await self._socket.recvmsg(RECEIVE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        return data, *whole(received(ancillary), flags)

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Queue a message; the channel closes ``fds`` when they are sent or the channel is closed."""
        self.send_raw(messages.encode(message, len(fds)), fds)

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Queue a whole frame."""
        if self.overflowed or self.queued_bytes > QUEUE_BYTES:
            self._cut_off()
            close_all(fds)
            self._work.set()
            return
        if not self._queue:
            # Usually the socket takes all of it, and waking the sender costs more than sending.
            data, fds = self._send_at_once(data, fds)
        if data or fds:
            self._queue.append((data, fds))
            self.queued_bytes += len(data)
            self.queued_descriptors += len(fds)
            self._work.set()

    def _send_at_once(self, data: bytes, fds: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]]:
        """Return what the socket did not take; descriptors are sent with the first byte."""
        try:
            sent = socket.send_fds(self._plain, [data], fds) if fds else os.write(self._plain.fileno(), data)
        except OSError:
            return data, fds  # no room, or the peer is gone: the sender handles it
        close_all(fds)
        return data[sent:], ()

    async def drain(self) -> None:
        """Wait until the queue is sent (the sender must be running)."""
        while self._queue and not self.overflowed:
            self._sent = trio.Event()
            await self._sent.wait()

    def _cut_off(self) -> None:
        self.overflowed = True
        # Wakes a send that waits for the peer, and ends the receiving task's wait.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Let the sender end when the queue is sent."""
        self._finishing = True
        self._work.set()

    async def run_sender(self) -> None:
        """Send the queue until ``finish``, an overflow, or the peer's end."""
        try:
            while not self.overflowed:
                if self._queue:
                    await self._send_one(*self._queue[0])
                    data, fds = self._queue.popleft()
                    self.queued_bytes -= len(data)
                    self.queued_descriptors -= len(fds)
                    close_all(fds)
                    self._sent.set()
                elif self._finishing:
                    return
                else:
                    self._work = trio.Event()
                    await self._work.wait()
        except OSError:
            self.overflowed = True

    async def _send_one(self, data: bytes, fds: tuple[int, ...]) -> None:
        rest = memoryview(data)
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
            rest = rest[await self._socket.sendmsg([rest], ancillary) :]
        while rest:
            rest = rest[await self._socket.send(rest) :]

    def close(self) -> None:
        """Close the socket and every descriptor that was not sent or not claimed."""
        self._plain.detach()
        self._socket.close()
        for _, fds in self._queue:
            close_all(fds)
        self._queue.clear()
        for frame in self._frames:
            close_all(frame.fds)
        self._frames.clear()
        close_all(self._reader.take_unclaimed_fds())
