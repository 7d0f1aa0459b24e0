"""Send and receive packets over a trio socket of type SOCK_SEQPACKET: receiving waits, sending never waits
(send_queue).
"""

import fcntl
import math
import select
import socket
import termios

import trio

from pympsd.channel.descriptors import UCRED
from pympsd.channel.send_queue import SendQueue
from pympsd.errors import LimitExceeded


class PacketChannel(SendQueue):
    """Receives and sends whole packets over a SOCK_SEQPACKET socket.

    It owns the socket. Descriptors that a peer sends are not received: the kernel closes them.
    """

    async def receive(self, limit: int, continues: bool = False) -> bytes:
        """Return the next packet, cut to ``limit`` bytes; empty at the end.

        A packet counts in the allowance until the next call. ``continues``: this packet belongs to the last one. The
        peer has the time of one frame to send this packet. Raise LimitExceeded if the packet exceeds the allowance in
        bytes or time.
        """
        if self.failure is not None:
            return b""  # data that the kernel still has is not handled
        self.allowance.count_received(0)
        seconds = self.allowance.frame_seconds if continues else math.inf
        try:
            with trio.fail_after(seconds):
                packet = (await self._next(limit, 0))[0]
            self.allowance.count_received(len(packet))
        except trio.TooSlowError:
            self.failure = LimitExceeded(f"the rest of a message did not arrive within {seconds:g} s")
            raise self.failure from None
        except LimitExceeded as error:
            self.failure = error
            raise
        return packet

    async def peek(self, limit: int) -> bytes:
        """Return the next packet, cut to ``limit`` bytes, and leave it in the socket; empty at the end of the
        connection.
        """
        return (await self._next(limit, 0, socket.MSG_PEEK))[0]

    async def receive_with_credentials(self, limit: int) -> tuple[bytes, tuple[int, int, int] | None]:
        """Return the next packet, cut to ``limit`` bytes, and the PID, uid and gid of its sender.

        The sender is None unless the socket has SO_PASSCRED.
        """
        # Without a buffer for descriptors the kernel closes those that a peer sends.
        data, controls = await self._next(limit, socket.CMSG_SPACE(UCRED.size))
        for level, kind, payload in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(payload) == UCRED.size:
                return data, UCRED.unpack(payload)
        return data, None

    async def _next(self, limit: int, space: int, flags: int = 0) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Return the next packet and its control messages.

        A packet is returned without a trio checkpoint after it is received, so that the caller can note it at the
        keeper immediately.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                data, controls, _, _ = self._plain.recvmsg(limit, space, flags | socket.MSG_DONTWAIT)
                return data, controls
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except ConnectionResetError:
                # The peer has not read everything; its last packets come after this error.
                continue
            except OSError:
                return b"", []

    async def wait_until_taken(self) -> None:
        """Wait until the peer has received every packet that was sent to it.

        Raises:
            OSError: The socket's state cannot be read.
        """
        with select.epoll() as watched:
            # Unless a socket is full, the kernel reports only to edge-triggered waits that a packet was received.
            watched.register(self._plain, select.EPOLLOUT | select.EPOLLET)
            watched.poll(0)
            while self.has_unaccepted():
                await trio.lowlevel.wait_readable(watched.fileno())
                watched.poll(0)

    def has_unaccepted(self) -> bool:
        """Return whether the peer's socket still has a packet that was sent to it.

        Raises:
            OSError: The socket's state cannot be read.
        """
        return any(fcntl.ioctl(self._plain, termios.TIOCOUTQ, bytes(4)))

    def shut_down(self) -> None:
        """End the connection in both directions. The descriptor stays open until ``close``."""
        self._cut_off()
