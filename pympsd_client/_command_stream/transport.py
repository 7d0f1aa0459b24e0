"""The command stream of one executor over its socket: records out, answers in, for all threads, with no thread.

A thread that waits for an answer takes the lead: it reads, and hands the others theirs. When it has its own it
wakes another waiter, which takes the lead in turn. Sending never waits without reading, so that two full buffers
cannot hold each other up.

Ctrl-C may come between any two steps of Python. Where a byte could be lost then, received or sent, the steps are
one chain of C calls (``any(map(...))``), between which no signal handler runs; and what handles an answer may run
twice for it.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final

from pympsd.wire.records import ANSWER, FLAG_POISONED, HEADER, HEADER_BYTES, RECORD_LIMIT
from pympsd_client._arguments.errors import CudaError, lost
from pympsd_client._command_stream.launch_cache import forget
from pympsd_client._command_stream.received_fds import BRINGS, Brought
from pympsd_client._command_stream.ring import Ring
from pympsd_client._command_stream.staging_memory import SharedMemory

if TYPE_CHECKING:
    from pympsd_client._command_stream.host_callbacks import HostCalls
    from pympsd_client.native._launches import Writer

Answer = tuple[int, int, bytes]
"""Flags, result (a CUresult number), operands and tail."""

_NOW: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_CHUNK: Final = (65536,)
_RECHECK_S: Final = 1.0
"""Waits are bounded: should a wake-up ever be missed (a second Ctrl-C inside the first one's clean-up)."""
_SEND_BUFFER_BYTES: Final = 4 << 20
"""Asked for, so that a burst of launches does not wait for the executor; the kernel gives what it allows."""
_BELL: Final = b"\0"
_ROOM_RECHECK_MS: Final = 1
"""The executor does not say when it has taken records out of a full ring: it takes many in that time."""
_FULL_RECHECK_MS: Final = 50
"""While the peer takes no records another thread may stop reading answers; then this one reads them."""


class Transport:
    """One executor's command stream and shared memory. Safe for threads.

    ``on_end`` is called when the other side has gone; it returns the error of every later call.
    """

    def __init__(
        self,
        connection: socket.socket,
        shared: SharedMemory,
        on_end: Callable[[str], CudaError] = lost,
        ring: Ring | None = None,
    ) -> None:
        """``ring``: where records go; without one they go by the socket."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.sequence: Final = count(1).__next__
        self.shared: Final = shared
        self.closed = False
        """Whether this side has ended it, or has no part in it (a forked child)."""
        self.host_calls: HostCalls | None = None
        """The program's host functions, once there was one."""
        self.pace: Callable[[bytes], None] | None = None
        """While host functions are pending: called before each record is posted."""
        self.brought: Brought | None = None
        """Descriptors that come with answers, once any may come (receiving them costs every answer a microsecond)."""
        self._socket: Final = connection
        self._ring: Final = ring
        self._transmit: Final = connection.send
        self._on_end = on_end
        self._sending: Final = Lock()
        self._leading: Final = Lock()
        self._received: Final = bytearray()
        self._unsent: Final = bytearray()
        self._answers: Final[dict[int, Answer]] = {}
        self._gates: Final[dict[int, Lock]] = {}
        """A closed lock for each answer that is wanted: opened when it has come."""
        self._followers: Final[dict[int, Lock]] = {}
        """The gates of the threads that are waiting just now: any of them can take the lead."""
        self._trouble: CudaError | None = None

    # --- sending

    def post(self, record: bytes, urgent: bool = False) -> None:
        """Send a record and return; wait only while the executor takes nothing. Raise CudaError when it is gone.

        ``urgent``: other work waits for this record, so it keeps to no pace.
        """
        pace = self.pace
        if pace is not None and not urgent:
            pace(record)
        ring = self._ring
        if ring is not None:
            with self._sending:  # its release is the fence between the record and the look whether anybody sleeps
                if self._trouble is not None:
                    raise self._trouble.again()
                while not ring.put(record):
                    self._await_room(ring)
            if ring.asleep:
                self.ring_bell()
            return
        with self._sending:
            if self._trouble is not None:
                raise self._trouble.again()
            if not self._unsent:
                try:
                    # A record is far below the size that the kernel would take a part of.
                    if self._transmit(record, _NOW) == len(record):
                        return
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise self._end(f"the executor is gone ({error.strerror})").again() from None
            self._unsent.extend(record)
            self._send_rest()

    def _send_rest(self) -> None:
        while self._unsent:
            if self._trouble is not None:
                raise self._trouble.again()
            try:
                sent = map(self._transmit, (bytes(self._unsent),), (_NOW,))
                any(map(self._unsent.__delitem__, map(slice, sent)))
            except BlockingIOError:
                self._read_until_writable()
            except OSError as error:
                raise self._end(f"the executor is gone ({error.strerror})").again() from None

    @property
    def writer(self) -> Writer | None:
        """What puts records into the ring without Python, if anything does."""
        return None if self._ring is None else self._ring.writer

    def ring_bell(self) -> None:
        """Wake an executor that slept when a record had been put into the ring; raise CudaError when it is gone."""
        try:
            self._transmit(_BELL, _NOW)
        except BlockingIOError:  # it has bells enough to hear
            pass
        except OSError as error:
            raise self._end(f"the executor is gone ({error.strerror})").again() from None

    def _await_room(self, ring: Ring) -> None:
        if ring.asleep:  # a bell that was not rung: Ctrl-C came between
            self.ring_bell()
        self._read_until(0, _ROOM_RECHECK_MS)
        if self._trouble is not None:
            raise self._trouble.again()

    def _read_until_writable(self) -> None:
        self._read_until(select.POLLOUT, _FULL_RECHECK_MS)

    def _read_until(self, wanted: int, limit_ms: int) -> None:
        leads = self._leading.acquire(blocking=False)
        try:
            poll = select.poll()
            poll.register(self._socket, wanted | (select.POLLIN if leads else 0))
            for _, events in poll.poll(limit_ms):
                if leads and events & select.POLLIN:
                    self._receive(socket.MSG_DONTWAIT)
        finally:
            if leads:
                self._leading.release()
                self._wake_one()

    # --- answers

    def call(self, sequence: int, record: bytes) -> Answer:
        """Send a record and return its answer; other threads' calls go on meanwhile."""
        self.expect(sequence)
        try:
            self.post(record)
            return self.answer(sequence)
        finally:
            self.forget(sequence)

    def expect(self, sequence: int, gate: Lock | None = None) -> None:
        """The answer of this sequence number is wanted: to be called before its record is sent.

        ``gate``: a closed lock of the caller's, which opens when the answer has come.
        """
        if gate is None:
            gate = Lock()
            gate.acquire()
        self._gates[sequence] = gate

    def answer(self, sequence: int) -> Answer:
        """Wait for an expected answer and return it."""
        self.wait(self._gates[sequence], lambda: sequence in self._answers)
        return self._answers[sequence]

    def arrived(self) -> tuple[int, ...]:
        """Return the sequence numbers of the expected answers that have come and are not forgotten."""
        return tuple(self._answers)

    def forget(self, sequence: int) -> None:
        """The answer of this sequence number is wanted no more, whether it came or not."""
        self._gates.pop(sequence, None)
        self._answers.pop(sequence, None)

    def give_part_back(self, sequence: int) -> None:
        """A record's part of the shared memory is free; those who wait for room are told."""
        if self.shared.give_back(sequence) is not None:
            for waiting, gate in tuple(self._gates.items()):
                if waiting < 0:
                    _open(gate)

    def wait(self, gate: Lock, ready: Callable[[], bool], recheck_ms: int | None = None) -> None:
        """Return when ``ready()``: lead, or let another thread lead and be woken through ``gate``.

        ``recheck_ms``: how long to read before looking again, for what another thread may do and no answer tells.
        """
        if ready():
            return
        self._followers[id(gate)] = gate
        try:
            while not ready():
                if self._trouble is not None:
                    raise self._trouble.again()
                if self._leading.acquire(blocking=False):
                    try:
                        self._lead(ready, recheck_ms)
                    finally:
                        self._leading.release()
                else:
                    gate.acquire(timeout=_RECHECK_S)
        finally:
            self._followers.pop(id(gate), None)
            self._wake_one()

    def _lead(self, ready: Callable[[], bool], recheck_ms: int | None) -> None:
        while not ready() and self._trouble is None:
            if not self._settle_received():
                if recheck_ms is not None and not self._readable(recheck_ms):
                    continue
                if self._ring is not None:
                    self._ring.await_answer()
                self._receive(0)

    def _readable(self, limit_ms: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(limit_ms))

    def _receive(self, flags: int) -> None:
        before = len(self._received)
        try:
            if self.brought is None:
                any(map(self._received.extend, map(self._socket.recv, _CHUNK, (flags,))))
            else:
                self.brought.receive(self._socket, self._received, flags)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"the executor is gone ({error.strerror})")
            return
        if len(self._received) == before:
            self._end("the executor has ended")
        self._settle_received()

    def _settle_received(self) -> bool:
        """Handle whole answers; return whether there was one."""
        received = self._received
        some = False
        while len(received) >= HEADER_BYTES:
            opcode, flags, length, result, sequence = HEADER.unpack_from(received)
            if not (opcode & ANSWER and HEADER_BYTES <= length <= RECORD_LIMIT):
                self._end("the executor sent what is no answer")
                return some
            if len(received) < length:
                break
            body = bytes(received[HEADER_BYTES:length])
            if self.brought is not None and opcode == ANSWER | BRINGS and not result:
                self.brought.claim(sequence, body)
            self._settle(sequence, (flags, result, body))
            del received[:length]
            some = True
        return some

    def _settle(self, sequence: int, answer: Answer) -> None:
        gate = self._gates.get(sequence)
        if gate is not None:
            self._answers[sequence] = answer
            _open(gate)
        part = self.shared.used_by(sequence)
        if part is not None:
            if answer[0] & FLAG_POISONED:
                part.context.ruin(part.serial, answer[1], answer[2].decode("utf-8", "replace"))
            if not part.kept:
                self.give_part_back(sequence)

    def _wake_one(self) -> None:
        """Wake a waiter to take the lead, when nobody has it (a woken one that leaves does the same)."""
        if self._followers and not self._leading.locked():
            for gate in tuple(self._followers.values())[:1]:
                _open(gate)

    # --- the end

    @property
    def trouble(self) -> CudaError | None:
        """Why nothing can be sent any more, or None."""
        return self._trouble

    def _end(self, reason: str) -> CudaError:
        if self._trouble is None:
            self._trouble = self._on_end(f"{reason}; its contexts are lost, end this process")
        forget()  # now that no launch can be remembered any more
        for gate in tuple(self._followers.values()):
            _open(gate)
        return self._trouble

    def lose(self, error: CudaError) -> None:
        """Whatever the executor does, this is the error of every later call, and of those that wait now."""
        self._trouble = self._trouble or error
        self._end("")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that still waits on it is woken

    def close(self) -> None:
        """End the stream in order: nobody waits on it any more."""
        self.closed = True
        self.lose(lost("the command stream is closed"))
        self._socket.close()

    def abandon(self) -> None:
        """In a forked child: let go of the copy of the socket; the parent goes on with its own."""
        self.closed = True
        self._trouble = lost("the command stream is the parent's")
        self._socket.close()


def _open(gate: Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # somebody else has just opened it
        return
