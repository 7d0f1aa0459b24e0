"""The command stream of one executor: records out, answers in, for all threads, without a thread of its own.

**The problem.** Every thread of the program sends records to the same executor, and any of them may wait for an
answer. A reader thread would cost each call two switches between threads, and the interpreter's lock each time.

**The idea: leader and followers.** Each expected answer has a *gate*, a closed lock. A thread that waits tries to
become the leader. The leader reads the socket and opens the gates of the answers that it receives, those of other
threads included. When the leader has its own answer it opens the gate of one follower, which becomes the leader in
turn. Only the leader reads, so answers stay in order; followers sleep on their own gates.

    thread 1    expect(7)  post(7)  lead: recv ......... 9, 7 -> opens gate 9; done, wakes a follower
    thread 2    expect(8)  post(8)  sleeps on gate 8 .................. woken, leads: recv ... 8
    thread 3    expect(9)  post(9)  sleeps on gate 9 ..... open, returns

**Records** go into the ring (`ring`) if the executor has one, otherwise through the socket. After a record is put
into the ring, the sender reads whether the executor sleeps and if so sends one byte, the bell. The release of
``_sending`` is the fence between the two steps. The executor announces that it sleeps before it looks at the ring a
last time, so either it sees the record, or the sender sees that it sleeps.

**Invariants**

- `expect` is called before `post`, so that no answer is lost; `discard` follows in every case.
- A sender never waits without reading: while the ring or the socket is full it reads answers, unless another thread
  is the leader. Otherwise two full buffers would block each other.
- Once ``_error`` is set it never changes, and every later call raises it. `_end` wakes all followers.
- ``sequence`` numbers are used once. Negative numbers stand for waits that no answer ends (`take_slot`).

**What must never happen:** a Ctrl-C that loses a byte. It may come between any two steps of Python, so if a received
or sent byte could be lost, the steps are one chain of C calls (``any(map(...))``), between which no signal handler
runs. A wake-up that is missed nevertheless (a second Ctrl-C during the clean-up after the first) costs at most
_RECHECK_SECONDS, because waits are bounded. Handling an answer twice is harmless.

An `Interceptor` sees records before they are sent. Stream capture is one: it takes the records of capturing streams.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final, Protocol

from pympsd.wire.records import ANSWER, HEADER, HEADER_BYTES, MAX_RECORD, OUTPUT
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._command_stream.answers import (
    BRINGS_FD,
    Answer,
    DeviceOutput,
    Faultable,
    ReceivedFds,
    report_fault,
)
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._command_stream.ring import Ring
from pympsd_client._command_stream.staging import StagingMemory

if TYPE_CHECKING:
    from pympsd_client.native._launches import Writer


HostFunction = tuple[int, int, Callable[[int], None]]
"""The address of a C function (0 for another callable), the address of its data, and a Python function to call it."""


class Interceptor(Protocol):
    """Takes work in place of the command stream, for example to capture it in a graph.

    Each method that takes work returns whether it has done so; if not, the caller continues as without an
    interceptor. A method raises a CudaError to refuse work.
    """

    def take_record(self, record: bytes) -> bool:
        """Take a packed record of the command stream."""

    def take_copy(self, context: Any, stream: int, make: Callable[[], Any]) -> bool:
        """Take a copy with pageable host memory, whose bytes are not in a record.

        ``make`` returns the copy's description.
        """

    def take_allocation(self, context: Any, stream: int, size: int, kind: Any) -> int:
        """Take an allocation from a pool of this kind. Return its address, or 0 if it was not taken."""

    def take_free(self, context: Any, stream: int, address: int) -> bool:
        """Take a call that frees the memory at an address in stream order."""

    def make_programmatic(self, context: Any, stream: int) -> None:
        """Note that the kernel just taken may begin before the previous kernel has ended."""

    def take_external_event(self, context: Any, stream: int, event: int, is_wait: bool) -> bool:
        """Take the recording of an event, or the wait for one."""

    def take_wait(self, context: Any, stream: int, event: int) -> bool:
        """Take the wait of a stream for an event of another context."""

    def take_host_function(self, context: Any, stream: int, work: HostFunction) -> bool:
        """Take a host function."""

    def refuse(self, context: Any, stream: int, call: str) -> None:
        """Raise CudaError if the stream is one whose work is taken, because the call cannot be taken."""

    def is_capturing(self, context: Any, stream: int) -> bool:
        """Return whether the work of the stream is taken."""

    def lift(self) -> AbstractContextManager[None]:
        """Allow this thread all calls in other streams during the block, because they are not the program's."""


class _Intercepted:
    """Holds the interceptor, or None. Any thread may set ``by``, so a caller reads it once and uses that value."""

    def __init__(self) -> None:
        self.by: Interceptor | None = None


intercepted = _Intercepted()


_NOW: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_CHUNK: Final = (65536,)
_RECHECK_SECONDS: Final = 1.0
"""The longest wait in seconds, in case a wake-up is missed (a second Ctrl-C during the first one's clean-up)."""
_SEND_BUFFER_BYTES: Final = 4 << 20
"""The requested size, so that a burst of launches does not wait for the executor; the kernel may allow less."""
_BELL: Final = b"\0"
_ROOM_RECHECK_MS: Final = 1
"""The time after which a thread looks again for room that no answer announces.

That is room in a full ring, from which the executor takes many records in this time, or a slot that another thread
has copied out while this thread reads answers.
"""
_FULL_RECHECK_MS: Final = 50
"""The time after which a thread that cannot send tries again to become the leader, and then reads answers."""


class Transport:
    """One executor's command stream and staging memory. Thread-safe.

    ``on_end`` is called with the reason when the executor has gone; it returns the error that all later calls raise.
    """

    def __init__(
        self,
        connection: socket.socket,
        staging: StagingMemory,
        on_end: Callable[[str], CudaError] = connection_lost,
        ring: Ring | None = None,
    ) -> None:
        """``ring``: the ring for records; without one they go through the socket."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self.sequence: Final = count(1).__next__
        self.staging: Final = staging
        self.closed = False
        """Whether this side has ended the stream, or has abandoned it in a forked child."""
        self.host_callbacks: object = None
        """The stream's `HostCallbacks`, once the program has used a host function."""
        self.backpressure: Callable[[bytes], None] | None = None
        """A function that is called before each record, and waits until the executor takes more; else None.

        It is set while host functions are unfinished.
        """
        self.received_fds: ReceivedFds | None = None
        """Descriptors that come with answers; None until one is expected, which makes each answer 1 µs slower."""
        self._socket: Final = connection
        self._ring: Final = ring
        self._transmit: Final = connection.send
        self._on_end = on_end
        # Reentrant, because finalizers of objects collected while a record is sent may send records too.
        self._sending: Final = RLock()
        self._leading: Final = Lock()
        self._received: Final = bytearray()
        self._unsent: Final = bytearray()
        self._answers: Final[dict[int, Answer]] = {}
        self._output: Final = DeviceOutput()
        self._gates: Final[dict[int, Lock]] = {}
        """A closed lock for each expected answer, which is opened when the answer has come."""
        self._followers: Final[dict[int, Lock]] = {}
        """The gates of the waiting threads, any of which can become the leader."""
        self._error: CudaError | None = None

    # --- sending

    def post(self, record: bytes, urgent: bool = False) -> None:
        """Send a record and return; wait only while the executor takes no records.

        An answer comes later (see `expect`). A record of a stream that is being captured is not sent (`Interceptor`).
        ``urgent``: other work waits for this record, so it is exempt from backpressure and from capture.

        Raise CudaError if the executor has gone, or a capture refuses the record.
        """
        if (by := intercepted.by) is not None and not urgent and by.take_record(record):
            return
        backpressure = self.backpressure
        if backpressure is not None and not urgent:
            backpressure(record)
        ring = self._ring
        if ring is not None:
            with self._sending:  # its release is the fence before ``asleep`` is read
                if self._error is not None:
                    raise self._error.copy()
                while not ring.put(record):
                    self._await_room(ring)
            if ring.asleep:
                self.ring_bell()
            return
        with self._sending:
            if self._error is not None:
                raise self._error.copy()
            if not self._unsent:
                try:
                    # A record is sent whole or not at all: the kernel splits only far larger ones.
                    if self._transmit(record, _NOW) == len(record):
                        return
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise self._end(f"the executor is gone ({error.strerror})").copy() from None
            self._unsent.extend(record)
            self._send_rest()

    def _send_rest(self) -> None:
        while self._unsent:
            if self._error is not None:
                raise self._error.copy()
            try:
                sent_counts = map(self._transmit, (bytes(self._unsent),), (_NOW,))
                any(map(self._unsent.__delitem__, map(slice, sent_counts)))
            except BlockingIOError:
                self._read_until(select.POLLOUT, _FULL_RECHECK_MS)
            except OSError as error:
                raise self._end(f"the executor is gone ({error.strerror})").copy() from None

    @property
    def writer(self) -> Writer | None:
        """The extension's writer to the ring; None if there is no ring or no extension."""
        return None if self._ring is None else self._ring.writer

    def ring_bell(self) -> None:
        """Wake an executor that slept when a record was put into the ring; raise CudaError if it has gone."""
        try:
            self._transmit(_BELL, _NOW)
        except BlockingIOError:  # the socket is full of unread bells, which will wake the executor
            pass
        except OSError as error:
            raise self._end(f"the executor is gone ({error.strerror})").copy() from None

    def _await_room(self, ring: Ring) -> None:
        if ring.asleep:  # a Ctrl-C came between a record and its bell
            self.ring_bell()
        self._read_until(0, _ROOM_RECHECK_MS)
        if self._error is not None:
            raise self._error.copy()

    def _read_until(self, events_mask: int, limit_ms: int) -> None:
        leads = self._leading.acquire(blocking=False)
        try:
            poll = select.poll()
            poll.register(self._socket, events_mask | (select.POLLIN if leads else 0))
            for _, events in poll.poll(limit_ms):
                if leads and events & select.POLLIN:
                    self._receive(socket.MSG_DONTWAIT)
        finally:
            if leads:
                self._leading.release()
                self._wake_one()

    # --- answers

    def call(self, sequence: int, record: bytes) -> Answer:
        """Send a record and return its answer, without holding up other threads' calls.

        ``sequence`` is the number in the record. Raise CudaError if the executor has gone; the caller has to raise an
        error *in* the answer.
        """
        self.expect(sequence)
        try:
            self.post(record)
            return self.answer(sequence)
        finally:
            self.discard(sequence)

    def expect(self, sequence: int, gate: Lock | None = None) -> None:
        """Keep the answer with this sequence number when it comes; call this before its record is sent.

        ``gate``: the caller's closed lock, which opens when the answer has come; without it the transport makes one.
        Every call must be followed by `discard`, or the answer is kept forever.
        """
        if gate is None:
            gate = Lock()
            gate.acquire()
        self._gates[sequence] = gate

    def answer(self, sequence: int) -> Answer:
        """Wait for an expected answer and return it; it stays available until `discard`.

        Raise CudaError if the stream ends first.
        """
        self.wait(self._gates[sequence], lambda: sequence in self._answers)
        return self._answers[sequence]

    def list_answered(self) -> tuple[int, ...]:
        """Return the sequence numbers of the expected answers that have come and have not been discarded."""
        return tuple(self._answers)

    def poll(self, sequence: int) -> Answer | None:
        """Read the bytes that have arrived, without waiting; return the expected answer if it has come, else None."""
        self._read_until(0, 0)
        return self._answers.get(sequence)

    def discard(self, sequence: int) -> None:
        """Stop expecting an answer, whether or not it has come, and write the kernels' output that came before it.

        Without effect if the answer is not expected. If it comes later it is dropped.
        """
        self._gates.pop(sequence, None)
        self._answers.pop(sequence, None)
        self._output.write(sequence)

    def free_slot(self, sequence: int) -> None:
        """Free a record's slot of the staging memory and wake the threads that wait for one."""
        if self.staging.free(sequence) is not None:
            for waiting, gate in tuple(self._gates.items()):
                if waiting < 0:
                    _open(gate)

    def take_slot(self, sequence: int, count: int, context: Faultable, is_kept: bool = False) -> int:
        """Return the offset of a slot of ``count`` bytes of the staging memory for a record; wait until one is free.

        A thread that has kept slots must not wait, and calls ``staging.take`` instead.
        """
        offsets: list[int] = []

        def has_room() -> bool:
            if not offsets:  # called several times during a wait, but only one slot is taken
                offset = self.staging.take(sequence, count, context, is_kept)
                offsets.extend(() if offset is None else (offset,))
            return bool(offsets)

        if not has_room():
            waiting = -sequence  # negative numbers, which no record has, are woken whenever a slot is freed
            gate = Lock()
            gate.acquire()
            self.expect(waiting, gate)
            try:
                self.wait(gate, has_room, _ROOM_RECHECK_MS)
            finally:
                self.discard(waiting)
        return offsets[0]

    def release_slot(self, sequence: int) -> None:
        """Free a kept slot as soon as its answer has come, immediately if it has."""
        self.staging.release_on_answer(sequence)
        if sequence in self._answers:
            self.free_slot(sequence)

    def wait(self, gate: Lock, ready: Callable[[], bool], recheck_ms: int | None = None) -> None:
        """Wait until ``ready()`` returns True, as the leader, or woken through ``gate`` by the leader.

        ``recheck_ms``: the time after which a leader checks again, for changes that no answer announces.
        """
        if ready():
            return
        self._followers[id(gate)] = gate
        try:
            while not ready():
                if self._error is not None:
                    raise self._error.copy()
                if self._leading.acquire(blocking=False):
                    try:
                        self._lead(ready, recheck_ms)
                    finally:
                        self._leading.release()
                else:
                    gate.acquire(timeout=_RECHECK_SECONDS)
        finally:
            self._followers.pop(id(gate), None)
            self._wake_one()

    def _lead(self, ready: Callable[[], bool], recheck_ms: int | None) -> None:
        while not ready() and self._error is None:
            if not self._handle_received():
                if recheck_ms is not None and not self._is_readable(recheck_ms):
                    continue
                if self._ring is not None:
                    self._ring.await_answer()
                self._receive(0)

    def _is_readable(self, limit_ms: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(limit_ms))

    def _receive(self, flags: int) -> None:
        """Receive bytes and handle complete answers; end the stream if the executor has gone. ``flags``: MSG_*."""
        before = len(self._received)
        try:
            if self.received_fds is None:
                any(map(self._received.extend, map(self._socket.recv, _CHUNK, (flags,))))
            else:
                self.received_fds.receive(self._socket, self._received, flags)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"the executor is gone ({error.strerror})")
            return
        if len(self._received) == before:
            self._end("the executor has ended; the reason may be in server.log")
        self._handle_received()

    def _handle_received(self) -> bool:
        """Handle the complete answers that have been received; return whether there were any."""
        received = self._received
        handled = False
        while len(received) >= HEADER_BYTES:
            opcode, flags, length, result, sequence = HEADER.unpack_from(received)
            if not (opcode & ANSWER and HEADER_BYTES <= length <= MAX_RECORD):
                self._end("the executor sent something that is not an answer")
                return handled
            if len(received) < length:
                break
            body = bytes(received[HEADER_BYTES:length])
            if self.received_fds is not None and opcode in BRINGS_FD and not result:
                self.received_fds.claim(sequence, body)
            if opcode == OUTPUT | ANSWER:
                self._output.keep(sequence, result, body, sequence in self._gates)
            else:
                self._deliver(sequence, (flags, result, body))
            del received[:length]
            handled = True
        return handled

    def _deliver(self, sequence: int, answer: Answer) -> None:
        if (gate := self._gates.get(sequence)) is not None:
            self._answers[sequence] = answer
            _open(gate)
        if (slot := self.staging.slot_of(sequence)) is not None:
            report_fault(slot.context, slot.context_id, answer)
            if not slot.kept:
                self.free_slot(sequence)

    def _wake_one(self) -> None:
        """If no thread leads, wake a follower, which becomes the leader, or wakes the next when it leaves."""
        if self._followers and not self._leading.locked():
            for gate in tuple(self._followers.values())[:1]:
                _open(gate)

    # --- the end

    @property
    def error(self) -> CudaError | None:
        """The error of every later call, once the stream has ended; else None."""
        return self._error

    def _end(self, reason: str) -> CudaError:
        if self._error is None:
            self._error = self._on_end(f"{reason}; the contexts on this device are lost; end this process")
        invalidate()  # only now, when no plan can be added any more
        for gate in tuple(self._followers.values()):
            _open(gate)
        return self._error

    def fail(self, error: CudaError) -> None:
        """End the stream, so that every later call, and every waiting one, fails with this error.

        If the stream has ended already, its first error stays.
        """
        self._error = self._error or error
        self._end("")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that still waits on it

    def close(self) -> None:
        """End the stream and close its socket; later calls fail with CUDA_ERROR_MPS_RPC_FAILURE."""
        self.closed = True
        self.fail(connection_lost("the command stream is closed"))
        self._socket.close()

    def abandon(self) -> None:
        """In a forked child: close the copy of the socket; the parent keeps its own."""
        self.closed = True
        self._error = connection_lost("the command stream is the parent's")
        self._socket.close()


def _open(gate: Lock) -> None:
    try:
        gate.release()
    except RuntimeError:  # another thread has just opened it
        return
