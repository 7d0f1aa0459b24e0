"""Answers to one client: written at once when its socket takes them, kept for a while when it does not."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Final

KEPT_BYTES: Final = 4 << 20
"""A client that leaves more than 4 MiB of answers unread is cut off."""


class AnswerWriter:
    """Sends from any thread and never waits: the compute thread completes the calls of all clients."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._broken = False
        self._flusher: threading.Thread | None = None

    def send(self, answer: bytes) -> None:
        """Send an answer after those before it; after the client was cut off nothing happens."""
        with self._lock:
            if self._broken:
                return
            sent = 0 if self._kept else self._write(answer)
            if sent == len(answer):
                return
            self._kept += answer[sent:]
            if len(self._kept) > KEPT_BYTES:
                self._cut_off()
            elif self._flusher is None:
                # Only a client that reads slowly needs a thread of ours.
                flusher = threading.Thread(target=self._flush, name="answers", daemon=True)
                try:
                    flusher.start()
                except RuntimeError:  # the system has no thread for it
                    self._cut_off()
                else:
                    self._flusher = flusher

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self._cut_off()
            return len(data)

    def _flush(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while True:
            poll.poll()
            with self._lock:
                if not self._broken:
                    del self._kept[: self._write(self._kept)]
                if self._broken or not self._kept:
                    self._flusher = None
                    return

    def _cut_off(self) -> None:
        self._broken = True
        self._kept.clear()
        with suppress(OSError):  # it has closed its end already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Send no more and wake whoever waits on the socket, which its owner may close when this returns."""
        with self._lock:
            self._cut_off()
            flusher = self._flusher
        if flusher is not None:
            flusher.join()
