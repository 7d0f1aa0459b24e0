"""Answers to one client: written immediately if its socket accepts them, otherwise kept until it does."""

from __future__ import annotations

import os
import select
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field

from pympsd.channel.descriptors import close_all

if TYPE_CHECKING:
    from pympsd_server.native.worker import NativeWorker

MAX_KEPT_BYTES: Final = 4 << 20
"""The maximum number of bytes of unread answers; above it, the client is disconnected."""


@define(eq=False)
class _Kept:
    """Bytes that the socket does not accept yet; ``fds`` are duplicates, which are sent with the first byte."""

    data: bytearray
    fds: tuple[int, ...] = field(default=())


class AnswerWriter:
    """Sends from any thread without blocking, because the compute thread completes the calls of all clients."""

    def __init__(self, stream: socket.socket, native: NativeWorker | None = None) -> None:
        """``native``: a worker that sends answers as well. If there is one, it sends all bytes."""
        self._socket = stream
        self._native = native
        self._lock = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._allowed_bytes = MAX_KEPT_BYTES
        self._broken = False
        self._flusher: threading.Thread | None = None

    def send(self, answer: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send an answer after earlier ones. Do nothing after the client was disconnected.

        Descriptors are sent with the answer's first byte; the caller closes them.
        """
        with self._lock:
            if self._broken:
                return
            sent_bytes = 0 if self._kept else self._write(answer, fds)
            if sent_bytes == len(answer):
                return
            self._keep(answer[sent_bytes:], () if sent_bytes else fds)
            if self._kept_bytes > self._allowed_bytes:
                self._cut_off()
            elif self._flusher is None:
                # A thread is needed only for a client that reads slowly.
                flusher = threading.Thread(target=self._flush, name="answers", daemon=True)
                try:
                    flusher.start()
                except RuntimeError:  # no more threads
                    self._cut_off()
                else:
                    self._flusher = flusher

    def send_text(self, take: Callable[[], list[bytes]]) -> None:
        """If the client has read everything so far, send the answers that ``take`` returns, whatever their length.

        Otherwise do not call ``take``.
        """
        with self._lock:
            if self._kept:
                return
            answers = take()
            self._allowed_bytes = MAX_KEPT_BYTES + sum(map(len, answers))
        for answer in answers:
            self.send(answer)

    def _keep(self, data: bytes, fds: tuple[int, ...]) -> None:
        if fds or not self._kept:
            try:
                copies = tuple(map(os.dup, fds))
            except OSError:  # the answer is useless without its descriptor
                self._cut_off()
                return
            self._kept.append(_Kept(bytearray(data), copies))
        else:
            self._kept[-1].data.extend(data)
        self._kept_bytes += len(data)

    def _write(self, data: bytes | bytearray, fds: tuple[int, ...] = ()) -> int:
        """Write as much as the socket accepts; return the number of bytes, or all of them if the client has gone."""
        native = self._native
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
                write = partial(self._socket.sendmsg, (data,), rights, socket.MSG_DONTWAIT)
                return write() if native is None else native.send_by(write, len(data))
            if native is None:
                return self._socket.send(data, socket.MSG_DONTWAIT)
            sent_bytes = native.send(bytes(data))
            if sent_bytes < 0:
                raise OSError(-sent_bytes, os.strerror(-sent_bytes))
            return sent_bytes
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
                    self._write_first_kept()
                if self._broken or not self._kept:
                    self._flusher = None
                    return

    def _write_first_kept(self) -> None:
        first = self._kept[0]
        sent_bytes = self._write(first.data, first.fds)
        if self._broken or not sent_bytes:
            return
        close_all(first.fds)
        first.fds = ()
        del first.data[:sent_bytes]
        self._kept_bytes -= sent_bytes
        if not first.data:
            self._kept.popleft()
        if not self._kept:
            self._allowed_bytes = MAX_KEPT_BYTES

    def _cut_off(self) -> None:
        self._broken = True
        while self._kept:
            close_all(self._kept.popleft().fds)
        with suppress(OSError):  # the client has closed its end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop sending, and wake all threads that wait on the socket, which its owner may then close."""
        with self._lock:
            self._cut_off()
            flusher = self._flusher
        if flusher is not None:
            flusher.join()
