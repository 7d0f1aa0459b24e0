"""After the daemon's death the server keeps serving, and connects to the same socket until a new daemon adopts it.

A server that is not needed ends: at once without clients, else after its last client if there is no new daemon.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

import trio
from attrs import define

from pympsd.channel.message_channel import MessageChannel
from pympsd.wire import link_messages as link
from pympsd.wire.errors import RemoteError
from pympsd_server.service.server import Server

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
ANSWER_SECONDS: Final = 10.0
"""The limit for a daemon's answer after it has accepted the connection."""
GRACE_SECONDS: Final = 5.0
"""The time without clients after which the server stops waiting for a daemon."""
_CREDENTIALS: Final = struct.Struct("=iII")


@define
class DaemonAddress:
    """The socket of the daemon, or of the next one, and the user that it must run as."""

    daemon_uid: int
    path: str = ""
    """Empty: no daemon can be reached."""

    @classmethod
    def of(cls, sock: trio.socket.SocketType) -> DaemonAddress:
        """Return the address of the daemon at the other end of a socket; ``path`` is to be set."""
        return cls(_peer_uid(sock))

    async def connect(self) -> MessageChannel | None:
        """Return a channel to the daemon that listens now, None if there is none of the same user.

        Also None without a free descriptor; the one that the lost link has given back suffices.
        """
        try:
            sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return None
        try:
            if await self._reach_daemon(sock):
                return MessageChannel(sock, fds_allowed=2)
        except BaseException:
            sock.close()
            raise
        sock.close()
        return None

    async def _reach_daemon(self, sock: trio.socket.SocketType) -> bool:
        try:
            await sock.connect(self.path)
            return _peer_uid(sock) == self.daemon_uid
        except OSError:
            return False


def _peer_uid(sock: trio.socket.SocketType) -> int:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


async def reconnect(server: Server, address: DaemonAddress, senders: trio.Nursery) -> bool:
    """Serve without a daemon until a new one adopts this server (True), or the server is to end (False)."""
    server.link.disconnect()
    if not address.path or not server.roster.clients:
        server.leave_without_daemon()
        return False
    server.log.info("server_orphaned", count=len(server.roster.clients))
    _redirect_stderr()
    pause, last_used = FIRST_PAUSE, trio.current_time()
    while not server.ending:
        channel = await address.connect()
        if channel is not None:
            dismissed = await _handshake(server, channel, senders)
            if dismissed is None:
                server.log.info("server_taken_in")
                return True
            if dismissed:
                server.log.info("server_dismissed", reason=dismissed)
                server.leave_without_daemon()
                return False
        await trio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        now = trio.current_time()
        last_used = now if server.roster.clients else last_used
        if now - last_used >= GRACE_SECONDS:
            server.log.info("server_forsaken", seconds=GRACE_SECONDS)
            server.leave_without_daemon()
    return False


async def _handshake(server: Server, channel: MessageChannel, senders: trio.Nursery) -> str | None:
    """Return None if the daemon adopts the server, else its reason not to, empty without an answer."""
    daemon = server.link
    daemon.reconnect(channel, server.leaving)
    senders.start_soon(daemon.run_sender, channel, daemon.sender)
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            received = await channel.receive_message()
        except RemoteError:
            received = None
        match received:
            case (link.ServerAdopted(), _):
                daemon.adopted()
                return None
            case (link.ServerDismissed(reason), _):
                daemon.disconnect()
                return reason or "it gave no reason"
    daemon.disconnect()
    return ""


def _redirect_stderr() -> None:
    """Discard standard error: the reader of the pipe was the daemon."""
    # Standard output is /dev/null from the start; opening that again takes a descriptor, which may be lacking.
    os.dup2(1, 2)
