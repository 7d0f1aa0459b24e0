"""Messages from an executor: answers, faults of contexts, the output of kernels, file descriptors.

An answer is (flags, result, body). Three things may come with it:

- FLAG_STICKY means that a fault has ended the context, to which `report_fault` passes the fault.
- OUTPUT records carry the text that kernels printed before the answer. `DeviceOutput` keeps the text for the thread
  that waits for the answer.
- Some operations' answers bring a descriptor and are received with recvmsg. `ReceivedFds` keeps the descriptor until
  the caller takes it.

As in `transport`, Ctrl-C may come between any two steps. Steps between which something could be lost are one chain of
C calls; the other steps may be repeated.
"""

import ctypes
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final, Protocol

from pympsd.channel.descriptors import FD_BYTES, descriptors_in, whole
from pympsd.wire.records import ANSWER, FLAG_STICKY, OPERATIONS

Answer = tuple[int, int, bytes]
"""Flags, result (a CUresult number), operands and tail."""


class Faultable(Protocol):
    """The part of a context that the command stream uses."""

    id: int

    def fault(self, context_id: int, code: int, reason: str) -> None:
        """Fail every later call with this error, unless the context was closed or reopened since it had this id."""


def report_fault(context: Faultable, context_id: int, answer: Answer) -> None:
    """Report a fault to a context if an answer of its executor carries one."""
    flags, result, body = answer
    if flags & FLAG_STICKY:
        context.fault(context_id, result, body.decode("utf-8", "replace"))


class DeviceOutput:
    """The text that kernels printed before the answers of waiting calls, by sequence number.

    The thread that made the call writes the text, even if another thread has read it, so that a full pipe blocks only
    that thread.
    """

    def __init__(self) -> None:
        self._kept: Final[dict[int, list[tuple[int, bytes]]]] = {}

    def keep(self, sequence: int, descriptor: int, text: bytes, is_expected: bool) -> None:
        """Keep a text for the caller that waits for this answer; drop it if that caller was interrupted."""
        if is_expected:
            self._kept.setdefault(sequence, []).append((descriptor, text))

    def write(self, sequence: int) -> None:
        """Write the text that came before this answer."""
        for descriptor, text in self._kept.pop(sequence, ()):
            write_output(descriptor, text)


def write_output(descriptor: int, text: bytes) -> None:
    """Write kernels' text to file descriptor 1 or 2, as CUDA does; drop it if the descriptor is closed or broken.

    The text follows the program's earlier output by C's printf, because CUDA prints through the same buffer.
    """
    if descriptor == 1:
        process = ctypes.CDLL(None)
        process.fflush(ctypes.c_void_p.in_dll(process, "stdout"))
    remaining = memoryview(text)
    try:
        while remaining:
            try:
                remaining = remaining[os.write(descriptor, remaining) :]
            except BlockingIOError:
                select.select((), (descriptor,), ())
    except (OSError, ValueError):
        return


BRINGS_FD: Final = frozenset(ANSWER | operation.opcode for operation in OPERATIONS if operation.brings_fd)
"""The opcodes of answers that bring a descriptor if they are successful."""
NO_ROOM: Final = -1
"""The value in place of a descriptor that was lost because this process may not open more."""

_CHUNK: Final = (65536,)
_ROOM: Final = (socket.CMSG_SPACE(FD_BYTES),)
_DATA: Final = itemgetter(0)
Message = tuple[bytes, list[tuple[int, int, bytes]], int, Any]


class ReceivedFds:
    """The descriptors received on one command stream: added by the thread that reads it, taken by the callers."""

    def __init__(self) -> None:
        self.ready = False
        """Whether every thread that reads the stream receives descriptors from now on."""
        self._unread: Final[list[Message]] = []
        self._with_fd: Final[list[Message]] = []
        """The received messages that brought a descriptor, in order.

        Each belongs to one answer, because recvmsg returns no bytes after those with which a descriptor was sent
        (unix(7)).
        """
        self._claimed: Final[dict[int, Message]] = {}
        """The messages whose answer has come, by the answer's sequence number."""
        self._bodies: Final[dict[int, bytes]] = {}
        """The bodies of the answers to which the claimed messages belong."""
        self._protected: Final[set[int]] = set()

    def receive(self, connection: socket.socket, into: bytearray, flags: int) -> None:
        """Receive bytes, and a descriptor if one comes; raise recvmsg's OSError."""
        flags |= socket.MSG_CMSG_CLOEXEC
        any(map(self._unread.append, map(connection.recvmsg, _CHUNK, _ROOM, (flags,))))
        while self._unread:
            message = self._unread[0]
            if (message[1] or message[2] & socket.MSG_CTRUNC) and not any(
                latest is message for latest in self._with_fd[-1:]
            ):
                self._with_fd.append(message)
            any(map(into.extend, map(_DATA, map(self._unread.pop, (0,)))))

    def claim(self, sequence: int, body: bytes) -> None:
        """Assign the next descriptor to the answer with this sequence number, which has just come."""
        if sequence not in self._claimed and self._with_fd:
            self._bodies[sequence] = body
            any(map(self._claimed.__setitem__, (sequence,), map(self._with_fd.pop, (0,))))

    @contextmanager
    def protect(self, sequence: int) -> Iterator[None]:
        """Protect the answer's descriptor from `decline` while the caller waits for it."""
        self._protected.add(sequence)
        try:
            yield
        finally:
            self._protected.discard(sequence)

    def take(self, sequence: int) -> int | None:
        """Return the answer's descriptor, which the caller owns: NO_ROOM if it was lost, None if none came."""
        self._bodies.pop(sequence, None)
        message = self._claimed.pop(sequence, None)
        if message is None:
            return None
        fds, lost = whole(descriptors_in(message[1]), message[2])
        return NO_ROOM if lost or not fds else fds[0]

    def decline(self) -> list[bytes]:
        """Close the descriptors whose callers Ctrl-C has interrupted; return the bodies of the answers."""
        unwanted = [sequence for sequence in tuple(self._claimed) if sequence not in self._protected]
        bodies = [self._bodies[sequence] for sequence in unwanted]
        for sequence in unwanted:
            fd = self.take(sequence)
            if fd is not None and fd != NO_ROOM:
                os.close(fd)
        return bodies
