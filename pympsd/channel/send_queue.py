"""Queue data to send over a trio socket, without ever waiting.

A sender task empties the queue. A peer that does not read is cut off when the queue exceeds its limit, or is not
empty within the allowance's time. So a peer never blocks others.
"""

import contextlib
import os
import socket
from array import array
from collections import deque
from typing import Final

import trio

from pympsd.channel.allowance import Allowance
from pympsd.channel.descriptors import close_all
from pympsd.errors import LimitExceeded

QUEUE_BYTES: Final = 8 << 20
"""The maximum number of queued bytes; above it, the peer is cut off."""


class SendQueue:
    """Sends data with descriptors. It owns the socket, and each descriptor given to ``send_raw`` until it is sent.

    ``allowance``: the limits on the peer's cost for this process; None if the peer is trusted.
    """

    def __init__(self, sock: trio.socket.SocketType, allowance: Allowance | None = None) -> None:
        self._socket = sock
        self.allowance = allowance or Allowance()
        # A second object for the same descriptor, which sends without waiting; it is detached, not closed.
        self._plain = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.queued_bytes = 0
        self.queued_descriptors = 0
        self._work = trio.Event()
        self._sent = trio.Event()
        self._finishing = False
        self.overflowed = False
        self.failure: LimitExceeded | None = None
        """The limit that the peer has exceeded, after which nothing is received from it; None if it has not exceeded
        any.
        """

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Queue a complete frame, or a packet. This never waits, and has no effect after the peer has been cut off.

        Args:
            data: The bytes.
            fds: Descriptors to send with them; the queue closes them when they are sent or it is closed.
        """
        if self.overflowed:
            close_all(fds)
            return
        if not self._queue:
            # Usually the socket takes all of the data, and waking the sender task would cost more than sending.
            data, fds = self._send_directly(data, fds)
        if not data and not fds:
            return
        try:
            if self.queued_bytes > QUEUE_BYTES:
                raise LimitExceeded(
                    f"{self.queued_bytes} bytes of this connection are unread; {QUEUE_BYTES} are allowed"
                )
            self.allowance.count_queued(self.queued_bytes + len(data))
        except LimitExceeded as error:
            close_all(fds)
            self._fail(error)
            return
        self._queue.append((data, fds))
        self.queued_bytes += len(data)
        self.queued_descriptors += len(fds)
        self._work.set()

    def _send_directly(self, data: bytes, fds: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]]:
        """Send without waiting; return the data that the socket did not take.

        Descriptors are sent with the first byte.
        """
        try:
            sent_bytes = socket.send_fds(self._plain, [data], fds) if fds else os.write(self._plain.fileno(), data)
        except OSError:
            return data, fds  # the socket is full, or the peer has gone: the sender task handles both
        close_all(fds)
        return data[sent_bytes:], ()

    async def drain(self) -> None:
        """Wait until the queue is sent, or the peer is cut off, which does not raise an error.

        The sender task must be running.
        """
        while self._queue and not self.overflowed:
            if self._sent.is_set():
                self._sent = trio.Event()
            await self._sent.wait()

    def _fail(self, error: LimitExceeded) -> None:
        """Cut the peer off for a limit that it has exceeded."""
        self.failure = self.failure or error
        self._cut_off()

    def _cut_off(self) -> None:
        self.overflowed = True
        self._work.set()
        self._sent.set()
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection now: the peer reads the data that the socket has taken, and then the end.

        A send that waits for the peer fails, and a task that waits to receive continues.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Let `run_sender` return when the queue has been sent."""
        self._finishing = True
        self._work.set()

    async def run_sender(self) -> None:
        """Send the queue until ``finish`` is called, a limit is exceeded or the peer has gone.

        Run this once for each queue, as a task, as `pympsd.service.sessions.waiting.run_with_sender` does.
        """
        try:
            while not self.overflowed:
                if self._queue:
                    await self._send_queue()
                elif self._finishing:
                    return
                else:
                    self._work = trio.Event()
                    await self._work.wait()
        except OSError:
            self.overflowed = True
            self._sent.set()

    async def _send_queue(self) -> None:
        """Send until the queue is empty; cut off a peer that does not take all of it in the allowance's time."""
        seconds = self.allowance.unread_seconds
        with trio.move_on_after(seconds) as scope:
            while self._queue and not self.overflowed:
                await self._send_one(*self._queue[0])
                data, fds = self._queue.popleft()
                self.queued_bytes -= len(data)
                self.queued_descriptors -= len(fds)
                self.allowance.count_queued(self.queued_bytes)
                close_all(fds)
                self._sent.set()
        if scope.cancelled_caught:
            self._fail(LimitExceeded(f"the data sent to this connection was not read within {seconds:g} s"))

    async def _send_one(self, data: bytes, fds: tuple[int, ...]) -> None:
        unsent = memoryview(data)
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
            unsent = unsent[await self._socket.sendmsg([unsent], ancillary) :]
        while unsent:
            unsent = unsent[await self._socket.send(unsent) :]

    def close(self) -> None:
        """Close the socket, drop the queued data, and close the descriptors that were not sent."""
        self._plain.detach()
        self._socket.close()
        for _, fds in self._queue:
            close_all(fds)
        self._queue.clear()
        self.allowance.close()
        # The failure's traceback refers to this object: without this, only the garbage collector would free both, and
        # the buffers, much later.
        self.failure = None
