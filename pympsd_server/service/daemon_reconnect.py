"""A server whose daemon has died: it serves on, and knocks at the same door until another daemon takes it in.

One that nobody needs goes with its daemon: at once without clients, else when the last has gone and no daemon came.
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
"""A daemon that accepts has so long to take a server in."""
GRACE: Final = 5.0
"""Seconds without clients after which nobody is waited for any more."""
_CREDENTIALS: Final = struct.Struct("=iII")


@define
class Door:
    """Where the daemon is, or the next one: its socket, and the user it has to be."""

    daemon_uid: int
    path: str = ""
    """Empty: there is none."""

    @classmethod
    def of(cls, sock: trio.socket.SocketType) -> Door:
        """Return the door of the daemon at the other end of this server's link."""
        return cls(_peer_uid(sock))

    async def open(self) -> MessageChannel | None:
        """Return a channel to the daemon that is there now, None where there is none of the same user.

        It takes one descriptor, the one that the lost link has given back; None too while there is none.
        """
        try:
            sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return None
        try:
            if await self._leads_to_the_daemon(sock):
                return MessageChannel(sock, fds_allowed=2)
        except BaseException:
            sock.close()
            raise
        sock.close()
        return None

    async def _leads_to_the_daemon(self, sock: trio.socket.SocketType) -> bool:
        try:
            await sock.connect(self.path)
            return _peer_uid(sock) == self.daemon_uid
        except OSError:
            return False


def _peer_uid(sock: trio.socket.SocketType) -> int:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


async def serve_on(server: Server, door: Door, senders: trio.Nursery) -> bool:
    """Serve on without a daemon; return whether another one has taken this server in (else it leaves)."""
    server.link.lose()
    if not door.path or not server.roster.clients:
        server.orphaned()
        return False
    server.log.info("server_orphaned", count=len(server.roster.clients))
    _let_go_of_stderr()
    pause, needed = FIRST_PAUSE, trio.current_time()
    while not server.ending:
        channel = await door.open()
        if channel is not None:
            dismissed = await _knock(server, channel, senders)
            if dismissed is None:
                server.log.info("server_taken_in")
                return True
            if dismissed:
                server.log.info("server_dismissed", reason=dismissed)
                server.orphaned()
                return False
        await trio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        now = trio.current_time()
        needed = now if server.roster.clients else needed
        if now - needed >= GRACE:
            server.log.info("server_forsaken", seconds=GRACE)
            server.orphaned()
    return False


async def _knock(server: Server, channel: MessageChannel, senders: trio.Nursery) -> str | None:
    """Return None when the daemon takes the server in, why it does not, or nothing where it did not say."""
    link_to = server.link
    link_to.knock(channel, server.leaving)
    senders.start_soon(link_to.run_sender, channel, link_to.sender)
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            received = await channel.receive_message()
        except RemoteError:
            received = None
        match received:
            case (link.ServerAdopted(), _):
                link_to.taken_in()
                return None
            case (link.ServerDismissed(reason), _):
                link_to.lose()
                return reason or "it gave no reason"
    link_to.lose()
    return ""


def _let_go_of_stderr() -> None:
    """Its other end was the daemon's: what is written there now has no reader."""
    # Standard output is /dev/null from the start: to open it once more takes a descriptor, which may not be there.
    os.dup2(1, 2)
