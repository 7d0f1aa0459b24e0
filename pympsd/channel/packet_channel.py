"""Packets over a SOCK_SEQPACKET socket of trio: receiving awaits, sending never does (send_queue)."""

from __future__ import annotations

import socket

import trio

from pympsd.channel.descriptors import UCRED
from pympsd.channel.send_queue import SendQueue


class PacketChannel(SendQueue):
    """Receives and sends whole packets; descriptors that a peer sends are refused by the kernel."""

    async def receive(self, limit: int) -> bytes:
        """Return the next packet, cut to ``limit`` bytes; empty at the end."""
        return (await self._next(limit, 0))[0]

    async def receive_with_credentials(self, limit: int) -> tuple[bytes, tuple[int, int, int] | None]:
        """Return the next packet and its sender's PID, uid and gid; None if the socket does not pass credentials."""
        # With no room for descriptors the kernel closes those that a peer sends.
        data, controls = await self._next(limit, socket.CMSG_SPACE(UCRED.size))
        for level, kind, payload in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(payload) == UCRED.size:
                return data, UCRED.unpack(payload)
        return data, None

    async def _next(self, limit: int, room: int) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Return the next packet and its control messages.

        Without a turn for other tasks between taking a packet and returning it: whoever notes it at the keeper must
        not be killed in between.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                data, controls, _, _ = self._plain.recvmsg(limit, room, socket.MSG_DONTWAIT)
                return data, controls
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except ConnectionResetError:
                # The peer left something unread; its last packets come after this error.
                continue
            except OSError:
                return b"", []

    def shut_down(self) -> None:
        """End the connection both ways; the descriptor stays open until ``close``."""
        self._cut_off()
