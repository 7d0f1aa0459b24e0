"""A conversation of messages over one socket: send one, receive the next with its file descriptors."""

import errno
import os
import select
import socket
from collections import deque
from typing import Any, Final

from pympsd.channel.descriptors import FD_BYTES, close_all, descriptors_in, whole
from pympsd.errors import DaemonError, RemoteError
from pympsd.wire import messages
from pympsd.wire.framing import Frame, FrameReader

MAX_FDS: Final = 2
"""ContextOpened and Attached carry two: the command stream and the staging memory."""
_CHUNK: Final = 65536


class Ended(DaemonError):
    """The other side closed the conversation, or violated the protocol."""


class Conversation:
    """Messages both ways over a connected stream socket, which it owns. For one thread at a time.

    Ctrl-C during a wait loses no byte and no descriptor.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket: Final = connection
        self._reader = FrameReader(fds_allowed=MAX_FDS)
        self._frames: deque[Frame] = deque()

    def send(self, message: object) -> None:
        """Send a message; raise Ended if the other side has gone."""
        try:
            # Without the signal: a native program has not disabled SIGPIPE, which ends it.
            self.socket.sendall(messages.encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise Ended(f"it does not take a message: {error.strerror}") from None

    def receive(self, timeout: float | None = None) -> tuple[Any, tuple[int, ...]]:
        """Return the next message and its descriptors (the caller owns them); wait ``timeout`` seconds at most.

        Raise Ended, TimeoutError, and OSError if this process may not open the descriptors.
        """
        while not self._frames:
            self.wait(timeout)
            self._read()
        frame = self._frames.popleft()
        if frame.fds_lost:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            return messages.decode(frame), frame.fds
        except RemoteError as error:
            close_all(frame.fds)
            raise Ended(f"it sent {error}") from None

    def wait(self, timeout: float | None) -> None:
        """Wait until there is something to read; raise TimeoutError after ``timeout`` seconds."""
        # Wait separately from reading, so that Ctrl-C ends the wait and loses no byte or descriptor.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError("no message came")

    def _read(self) -> None:
        try:
            data, fds, lost = _receive(self.socket)
        except OSError as error:
            raise Ended(f"it is gone: {error.strerror}") from None
        if not data:
            raise Ended("it closed the conversation")
        try:
            self._frames.extend(self._reader.feed(data, fds, lost))
        except RemoteError as error:
            raise Ended(f"it sent {error}") from None

    @property
    def over(self) -> bool:
        """Whether the other side has closed; neither waits nor reads."""
        return self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Return whether the other side has closed, or does so within ``seconds``."""
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLRDHUP)
        except (OSError, ValueError):
            return True
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken."""
        self.socket.close()
        close_all(self._reader.take_unclaimed_fds())
        while self._frames:
            close_all(self._frames.popleft().fds)


def _receive(connection: socket.socket) -> tuple[bytes, tuple[int, ...], bool]:
    """Receive bytes and descriptors, close-on-exec because another thread may start an executor."""
    space = socket.CMSG_SPACE(MAX_FDS * FD_BYTES)
    data, controls, flags, _ = connection.recvmsg(_CHUNK, space, socket.MSG_CMSG_CLOEXEC)
    return data, *whole(descriptors_in(controls), flags)
