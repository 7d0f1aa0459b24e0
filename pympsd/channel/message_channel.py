"""A message channel over a trio socket: receiving awaits, sending never does (send_queue)."""

from __future__ import annotations

import errno
import socket
from collections import deque
from typing import Any, Final

import trio

from pympsd.channel.descriptors import FD_BYTES, close_all, received, whole
from pympsd.channel.send_queue import SendQueue
from pympsd.wire import messages
from pympsd.wire.errors import RemoteError
from pympsd.wire.framing import Frame, FrameReader

RECEIVE_BYTES: Final = 65536
FDS_AT_ONCE: Final = 16
PACKET_BYTES: Final = 1 << 15
"""Over a packet socket longer frames are sent in pieces: the kernel takes no packet longer than its buffer."""
CONTINUED: Final = b"\xff" * 8
"""Begins every piece but the first; no frame begins so, for none is as long as that says."""


class MessageChannel(SendQueue):
    """Receives and sends frames; owns the socket and every descriptor given to ``send`` or not yet claimed."""

    def __init__(self, sock: trio.socket.SocketType, fds_allowed: int = 0) -> None:
        super().__init__(sock)
        self._is_packets = self._plain.type is socket.SOCK_SEQPACKET
        self._reader = FrameReader(fds_allowed=fds_allowed)
        self._frames: deque[Frame] = deque()

    async def receive(self) -> Frame | None:
        """Return the next frame, or None at the end; raise RemoteError for a malformed one."""
        if self._frames:
            # One receive can bring thousands of frames: let other tasks run in between.
            await trio.lowlevel.checkpoint()
        while not self._frames:
            try:
                data, fds, lost = await self._receive_once()
            except OSError as error:
                if self._is_packets and error.errno == errno.ECONNRESET:
                    continue  # said once, before what the peer sent last
                return None
            if self._is_packets and not self._is_whole(data):
                close_all(fds)
                continue
            if not data:
                if self._reader.mid_frame:
                    raise RemoteError("the connection ended in the middle of a frame")
                return None
            part = data.removeprefix(CONTINUED) if self._is_packets else data
            self._frames.extend(self._reader.feed(part, fds, lost))
        return self._frames.popleft()

    async def receive_message(self) -> tuple[Any, tuple[int, ...]] | None:
        """Return the next message with its descriptors, or None at the end."""
        frame = await self.receive()
        return None if frame is None else (messages.decode(frame), frame.fds)

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Queue a whole frame; the channel closes ``fds`` when they are sent or it is closed."""
        if not self._is_packets:
            super().send_raw(data, fds)
            return
        super().send_raw(data[:PACKET_BYTES], fds)
        for start in range(PACKET_BYTES, len(data), PACKET_BYTES):
            super().send_raw(CONTINUED + data[start : start + PACKET_BYTES])

    async def _receive_once(self) -> tuple[bytes, tuple[int, ...], bool]:
        """Return bytes, their descriptors, and whether descriptors were lost for lack of room."""
        if not self._reader.fds_allowed:
            # With no room for descriptors the kernel closes those that a peer sends.
            return await self._socket.recv(RECEIVE_BYTES), (), False
        room = socket.CMSG_SPACE(FDS_AT_ONCE * FD_BYTES)
        data, ancillary, flags, _ = await self._socket.recvmsg(RECEIVE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        return data, *whole(received(ancillary), flags)

    def _is_whole(self, packet: bytes) -> bool:
        """Return False for a packet that continues a frame whose beginning went to a process that was killed.

        Drop a frame that such a process did not send to its end.
        """
        if packet.startswith(CONTINUED):
            return self._reader.mid_frame
        if packet and self._reader.mid_frame:
            close_all(self._reader.take_unclaimed_fds())
            self._reader = FrameReader(fds_allowed=self._reader.fds_allowed)
        return True

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Queue a message; the channel closes ``fds`` when they are sent or the channel is closed."""
        self.send_raw(messages.encode(message, len(fds)), fds)

    def close(self) -> None:
        """Close the socket and every descriptor that was not sent or not claimed."""
        super().close()
        for frame in self._frames:
            close_all(frame.fds)
        self._frames.clear()
        close_all(self._reader.take_unclaimed_fds())
