"""Packets over a SOCK_SEQPACKET socket of trio: receiving awaits, sending never does (send_queue)."""

from __future__ import annotations

import socket
import struct
from typing import Final

from pympsd.channel.send_queue import SendQueue

_SCM_CREDENTIALS: Final = 2
CREDENTIALS: Final = struct.Struct("=iII")
"""struct ucred: PID, uid and gid."""


class PacketChannel(SendQueue):
    """Receives and sends whole packets; descriptors that a peer sends are refused by the kernel."""

    async def receive(self, limit: int) -> bytes:
        """Return the next packet, cut to ``limit`` bytes; empty at the end."""
        while True:
            try:
                return await self._socket.recv(limit)
            except ConnectionResetError:
                # The peer left something unread; its last packets come after this error.
                continue
            except OSError:
                return b""

    async def receive_with_credentials(self, limit: int) -> tuple[bytes, tuple[int, int, int] | None]:
        """Return the next packet and its sender's PID, uid and gid; None if the socket does not pass credentials."""
        try:
            # With no room for descriptors the kernel closes those that a peer sends.
            data, controls, _, _ = await self._socket.recvmsg(limit, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            return b"", None
        for level, kind, payload in controls:
            if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS and len(payload) == CREDENTIALS.size:
                return data, CREDENTIALS.unpack(payload)
        return data, None

    def shut_down(self) -> None:
        """End the connection both ways; the descriptor stays open until ``close``."""
        self._cut_off()
