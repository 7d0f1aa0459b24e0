"""Send and receive messages over a trio socket: receiving waits, sending never waits (send_queue)."""

import errno
import socket
from typing import Any, Final

import trio

from pympsd.channel.allowance import Allowance
from pympsd.channel.descriptors import FD_BYTES, close_all, descriptors_in, whole
from pympsd.channel.send_queue import SendQueue
from pympsd.errors import LimitExceeded, RemoteError
from pympsd.wire import frames, messages
from pympsd.wire.framing import Frame, FrameReader

RECEIVE_BYTES: Final = 65536
MAX_FDS: Final = 16
PACKET_BYTES: Final = 1 << 15
"""The size of the pieces in which a long frame is sent over a packet socket: the kernel refuses packets above its
buffer.
"""
CONTINUED: Final = b"\xff" * 8
"""The beginning of every piece except the first; a frame cannot begin so, because no frame has that length."""


class MessageChannel(SendQueue):
    """Receives and sends frames and messages over a stream or packet socket.

    It owns the socket, the descriptors given to ``send``, and received descriptors that were not claimed yet.

    Args:
        sock: The connected socket.
        fds_allowed: How many descriptors a frame may bring; with 0 the kernel closes those that a peer sends.
        allowance: The limits on the peer's cost for this process; None if the peer is trusted.
    """

    def __init__(
        self, sock: trio.socket.SocketType, fds_allowed: int = 0, allowance: Allowance | None = None
    ) -> None:
        super().__init__(sock, allowance)
        self._is_packets = self._plain.type is socket.SOCK_SEQPACKET
        self._reader = FrameReader(fds_allowed=fds_allowed)
        self._handled_bytes = 0
        """The number of bytes of the frames that the caller has received and is still handling."""

    async def receive(self, continues: bool = False) -> Frame | None:
        """Return the next frame, or None at the end.

        A frame counts in the allowance until the next call. ``continues``: this frame belongs to the last one, which
        the caller is still handling. The peer has the time of one frame to send this one.

        Raise RemoteError for a malformed frame, and LimitExceeded if the frame exceeds the allowance in bytes or
        time.
        """
        if self.failure is not None:
            return None  # data that the kernel still has is not handled
        if not continues:
            self._handled_bytes = 0
            self._count_received()
        if self._reader.buffered_bytes:
            # One receive can return thousands of frames, so let other tasks run in between.
            await trio.lowlevel.checkpoint()
        frame = self._reader.take()
        if frame is None and not continues and not self._reader.mid_frame and await self._receive_more():
            frame = self._reader.take()
        if frame is None and (continues or self._reader.mid_frame):
            frame = await self._receive_rest()
        if frame is not None:
            self._handled_bytes += frames.HEADER_BYTES + len(frame.body)
        return frame

    async def _receive_rest(self) -> Frame | None:
        """Return the frame that has begun; None at the end. Raise LimitExceeded if it is not complete in time."""
        seconds = self.allowance.frame_seconds
        try:
            with trio.fail_after(seconds):
                while (frame := self._reader.take()) is None and await self._receive_more():
                    pass
                return frame
        except trio.TooSlowError:
            self.failure = LimitExceeded(f"the rest of a message did not arrive within {seconds:g} s")
            raise self.failure from None

    async def _receive_more(self) -> bool:
        """Receive once; return False at the end."""
        while True:
            try:
                data, fds, lost = await self._receive_once()
            except OSError as error:
                if self._is_packets and error.errno == errno.ECONNRESET:
                    continue  # reported once, before the peer's last packets
                return False
            if self._is_packets and not self._is_whole(data):
                close_all(fds)
                continue
            if not data:
                if self._reader.mid_frame:
                    raise RemoteError("the connection ended in the middle of a frame")
                return False
            self._reader.add(data.removeprefix(CONTINUED) if self._is_packets else data, fds, lost)
            self._count_received()
            return True

    def _count_received(self) -> None:
        try:
            self.allowance.count_received(self._reader.buffered_bytes + self._handled_bytes)
        except LimitExceeded as error:
            self.failure = error
            raise

    async def receive_message(self) -> tuple[Any, tuple[int, ...]] | None:
        """Return the next message with its descriptors, or None at the end of the connection.

        Raises:
            RemoteError: The message is malformed.
            LimitExceeded: The peer has used up its allowance.
        """
        frame = await self.receive()
        return None if frame is None else (messages.decode(frame), frame.fds)

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Queue a complete frame. This never waits, and does not raise an error if the peer has gone.

        Args:
            data: The frame.
            fds: Descriptors to send with it; the channel closes them when they are sent or it is closed.
        """
        if not self._is_packets:
            super().send_raw(data, fds)
            return
        super().send_raw(data[:PACKET_BYTES], fds)
        for start in range(PACKET_BYTES, len(data), PACKET_BYTES):
            super().send_raw(CONTINUED + data[start : start + PACKET_BYTES])

    async def _receive_once(self) -> tuple[bytes, tuple[int, ...], bool]:
        """Receive bytes; return them, their descriptors, and whether descriptors were lost because the buffer was
        full.
        """
        if not self._reader.fds_allowed:
            # Without a buffer for descriptors the kernel closes those that a peer sends.
            return await self._socket.recv(RECEIVE_BYTES), (), False
        ancillary_bytes = socket.CMSG_SPACE(MAX_FDS * FD_BYTES)
        data, ancillary, flags, _ = await self._socket.recvmsg(
            RECEIVE_BYTES, ancillary_bytes, socket.MSG_CMSG_CLOEXEC
        )
        return data, *whole(descriptors_in(ancillary), flags)

    def _is_whole(self, packet: bytes) -> bool:
        """Return False for a packet that continues a frame whose beginning a killed process had received.

        Drop an incomplete frame of a peer that was killed.
        """
        if packet.startswith(CONTINUED):
            return self._reader.mid_frame
        if packet and self._reader.mid_frame:
            close_all(self._reader.take_unclaimed_fds())
            self._reader = FrameReader(fds_allowed=self._reader.fds_allowed)
        return True

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Queue a message. This never waits, and does not raise an error if the peer has gone.

        Args:
            message: One of `pympsd.wire`'s messages.
            fds: Descriptors to send with it; the channel closes them when they are sent or it is closed.
        """
        self.send_raw(messages.encode(message, len(fds)), fds)

    def close(self) -> None:
        """Close the socket and all descriptors that were not sent or not claimed."""
        super().close()
        close_all(self._reader.take_unclaimed_fds())
        self._reader = FrameReader()
