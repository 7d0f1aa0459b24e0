"""The link to the owner, which carries frames in both directions. When it ends, the executor ends."""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from attrs import frozen

from pympsd.wire import messages
from pympsd.wire.executor_messages import ExecutorDone, Ping
from pympsd.wire.framing import FrameReader

_RECEIVE_BYTES: Final = 1 << 16
Handle = Callable[[Any, tuple[int, ...]], None]


@frozen
class _Outgoing:
    data: bytes
    fds: tuple[int, ...]


class OwnerLink:
    """Sends without blocking the caller, because a stopped owner must not delay the compute thread."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._reader = FrameReader(fds_allowed=1)
        self._received: deque[Any] = deque()
        self._outgoing: SimpleQueue[_Outgoing | None] = SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="link sender", daemon=True)
        self._sender.start()

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Send a message, and close the descriptors once they are sent."""
        self._outgoing.put(_Outgoing(messages.encode(message, len(fds)), fds))

    def drain(self) -> None:
        """Send the queued messages, and accept no further ones."""
        self._outgoing.put(None)
        self._sender.join()

    def _send_all(self) -> None:
        while (item := self._outgoing.get()) is not None:
            with suppress(OSError):  # the owner has gone: watch() detects it
                # The descriptors are sent with the first byte of their frame.
                sent_bytes = socket.send_fds(self._socket, [item.data], item.fds) if item.fds else 0
                self._socket.sendall(item.data[sent_bytes:])
            for fd in item.fds:
                os.close(fd)

    def first(self) -> Any:
        """Return the owner's first message; None if the link ends. Raise RemoteError for a malformed message."""
        while not self._received:
            if not self._receive():
                return None
        return self._received.popleft()[0]

    def watch(self, handle: Handle) -> None:
        """Pass messages with their descriptors to ``handle``, in order, in another thread; return when the link ends.

        The calling thread only reads the link and answers Pings, so it detects immediately that the link has ended.
        """
        requests: SimpleQueue[tuple[Any, tuple[int, ...]]] = SimpleQueue()
        threading.Thread(target=_take_all, args=(requests, handle), name="owner", daemon=True).start()
        while True:
            while self._received:
                message, fds = self._received.popleft()
                if isinstance(message, Ping):
                    self.send(ExecutorDone(message.request))
                else:
                    requests.put((message, fds))
            if not self._receive():
                return

    def _receive(self) -> bool:
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        lost = bool(flags & socket.MSG_CTRUNC)
        frames = self._reader.feed(data, tuple(fds), lost)
        self._received.extend((messages.decode(frame), frame.fds) for frame in frames)
        return bool(data)


def _take_all(requests: SimpleQueue[tuple[Any, tuple[int, ...]]], handle: Handle) -> None:
    while True:
        handle(*requests.get())
