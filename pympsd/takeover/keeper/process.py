"""Start or find the keeper's process (``program.py``), exchange packets with it, and kill it: the daemon's side."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from array import array
from typing import Final

import trio
from attrs import define, frozen

import pympsd
from pympsd.channel.descriptors import FD_BYTES, descriptors_in, whole
from pympsd.process.spawn import open_process
from pympsd.service.files.pipe_directory import PipeDirectory
from pympsd.service.processes.peers import KnownPeer, credentials, open_pidfd
from pympsd.takeover.keeper import packets as packets
from pympsd.vocabulary import files

SEND_BYTES: Final = 4 << 20
"""The size of the link's send buffer in bytes: room for some thousand packets for root, and for others as much as
net.core.wmem_max allows, some hundred packets."""
_SO_SNDBUFFORCE: Final = 32
ENVIRONMENT: Final = ("LD_LIBRARY_PATH",)
"""The part of the daemon's environment that the keeper gets: some interpreters do not start without it."""


@frozen
class Entry:
    """An entry: a descriptor, which the daemon owns, and a few bytes that the next daemon needs.

    fd -1: it could not be received for lack of descriptors.
    """

    note: bytes
    fd: int


@define(eq=False)
class KeeperProcess:
    """The link to a keeper, which never blocks, and the means to kill it: as a child, or as the previous daemon's."""

    link: socket.socket
    child: trio.Process | None = None
    peer: KnownPeer | None = None

    @classmethod
    async def start(cls, directory: PipeDirectory, waiting_seconds: float) -> KeeperProcess:
        """Start a keeper in a session of its own; raise OSError or Unusable."""
        own_end, keeper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with keeper_end, directory.listen(files.KEEPER, socket.SOCK_SEQPACKET) as listener:
                child = await open_process(
                    _arguments(listener.fileno(), keeper_end.fileno(), waiting_seconds),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(), keeper_end.fileno()),
                    env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            keeper_end.close()
            own_end.close()
            raise
        return cls(_link(own_end), child)

    @classmethod
    def find(cls, directory: PipeDirectory) -> KeeperProcess | None:
        """Return the keeper of the previous daemon of this process's user, connected; None if there is none."""
        link = _link(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            link.connect(directory.name(files.KEEPER))
            peer = credentials(link)
            if peer.uid == os.geteuid() and not peer.foreign:
                return cls(link, peer=open_pidfd(link, peer))
        except OSError:  # no such file, or no process listens
            pass
        link.close()
        return None

    def send(self, packet: bytes, fd: int | None = None) -> None:
        """Send a packet, with a descriptor if one is given; raise OSError if the link does not take it now."""
        right = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
        self.link.sendmsg([packet], right, socket.MSG_NOSIGNAL)

    async def receive(self) -> tuple[int, str, Entry] | None:
        """Return the next packet's kind and name, and its contents; None at the end of the link; raise Malformed."""
        while True:
            await trio.lowlevel.wait_readable(self.link)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                # Room for one descriptor: the kernel closes others.
                data, controls, flags, _ = self.link.recvmsg(
                    packets.PACKET_BYTES, socket.CMSG_LEN(FD_BYTES), socket.MSG_CMSG_CLOEXEC
                )
                break
        fds, _ = whole(descriptors_in(controls), flags)
        fd = fds[0] if fds else -1
        try:
            if not data:
                return None
            kind, name, note = packets.decode(data)
        except packets.Malformed:
            if fd >= 0:
                os.close(fd)
            raise
        return kind, name, Entry(note, fd)

    def signal_kill(self) -> None:
        """Kill the process, if it is there."""
        if self.child is not None:
            self.child.kill()
        elif self.peer is not None and self.peer.pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.peer.pidfd, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the process, reap it if it is a child, and close the link."""
        self.signal_kill()
        self.close()
        if self.child is not None:
            await self.child.wait()

    def close(self) -> None:
        """Close the link; the process keeps running."""
        self.link.close()
        if self.peer is not None:
            self.peer.close()


def _link(sock: socket.socket) -> socket.socket:
    """Return a socket that never blocks, with as large a send buffer as this user may have."""
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return sock


def _arguments(listener: int, link: int, waiting_seconds: float) -> list[str]:
    main = os.path.join(os.path.dirname(pympsd.__file__), "takeover", "keeper", "program.py")
    return [sys.executable, "-I", "-S", main, str(listener), str(link), str(waiting_seconds)]
