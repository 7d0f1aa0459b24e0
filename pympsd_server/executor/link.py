"""The link to the owner: frames in and out, and its end, which ends the executor."""

from __future__ import annotations

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


@frozen
class _Outgoing:
    data: bytes
    fds: tuple[int, ...]


class Link:
    """Sending never blocks the caller: a stopped owner must not hold up the compute thread."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._reader = FrameReader()
        self._received: deque[Any] = deque()
        self._outgoing: SimpleQueue[_Outgoing | None] = SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, name="link sender", daemon=True)
        self._sender.start()

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Send a message; the descriptors are closed here once they are sent."""
        self._outgoing.put(_Outgoing(messages.encode(message, len(fds)), fds))

    def drain(self) -> None:
        """Send what is waiting, and nothing more."""
        self._outgoing.put(None)
        self._sender.join()

    def _send_all(self) -> None:
        while (item := self._outgoing.get()) is not None:
            with suppress(OSError):  # the owner is gone: watch() sees it
                self._send(item)
            for fd in item.fds:
                os.close(fd)

    def _send(self, item: _Outgoing) -> None:
        # The descriptors travel with the first byte of their frame.
        sent = socket.send_fds(self._socket, [item.data], item.fds) if item.fds else 0
        self._socket.sendall(item.data[sent:])

    def first(self) -> Any:
        """Return the owner's first message, None at the end of the link; RemoteError for a malformed one."""
        while not self._received:
            if not self._receive():
                return None
        return self._received.popleft()

    def watch(self, handle: Callable[[Any], None]) -> None:
        """Hand messages to ``handle`` in a thread of its own, in order; return when the link ends.

        Only this thread reads the link, and all else it does is to answer a Ping: the end is seen at once.
        """
        requests: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_take_all, args=(requests, handle), name="owner", daemon=True).start()
        while True:
            while self._received:
                message = self._received.popleft()
                if isinstance(message, Ping):
                    self.send(ExecutorDone(message.request))
                else:
                    requests.put(message)
            if not self._receive():
                return

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError:
            return False
        self._received.extend(messages.decode(frame) for frame in self._reader.feed(data))
        return bool(data)


def _take_all(requests: SimpleQueue[Any], handle: Callable[[Any], None]) -> None:
    while True:
        handle(requests.get())
