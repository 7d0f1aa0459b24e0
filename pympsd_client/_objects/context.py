"""What each thread has for itself: its stack of current contexts, its streams.

Contexts: one client context of an executor, its sticky error, and the objects that belong to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import RLock
from time import monotonic
from typing import Final

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FIRST_HANDLE, FLAG_POISONED, FLAG_QUIET, GENERATION_SHIFT
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.answers import Answer
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._command_stream.operations import Operation
from pympsd_client._connect.connection import Connection, Device, Opened


class ThreadStreams:
    """The per-thread default streams (CU_STREAM_PER_THREAD) of one thread, by their contexts' serials.

    When the thread ends they are handed to their contexts, which destroy them with their next stream: a
    destructor is no place for a send that might block.
    """

    def __init__(self) -> None:
        self.handles: dict[tuple[Context, int], int] = {}

    def __del__(self) -> None:
        for (context, serial), handle in self.handles.items():
            if context.serial == serial:
                context.ended_threads_streams.append(handle)


class _ThreadState(threading.local):
    """One instance's attributes are this thread's own."""

    def __init__(self) -> None:
        self.stack: list[Context] = []
        """Contexts current to this thread, the last one on top (CUDA driver API, Context Management)."""
        self.streams = ThreadStreams()
        self.in_host_function = False
        """Whether this thread runs a host function just now, in which CUDA calls are not permitted."""


this_thread: Final = _ThreadState()


_count = count(FIRST_HANDLE).__next__
_PULSE_RECORDS: Final = 64
_PULSE_S: Final = 0.005


def new_handle() -> int:
    """Return a handle for an object of this process, which no executor knows."""
    return (1 << GENERATION_SHIFT) | _count()


contexts: Final[dict[int, Context]] = {}
"""The contexts of this process by handle."""
when_closed: Final[list[Callable[[Context], None]]] = []
"""Called with a context that closes, to drop the objects that belonged to it."""
when_opened: Final[list[Callable[[Context], None]]] = []
"""Called with a context that was opened."""
before_waiting: Final[list[Callable[[Context, int | None], Callable[[bool], None] | None]]] = []
"""Called before a call waits for a stream of a context (None: for all).

What it returns is called after the wait, with whether it was successful.
"""


@contextmanager
def waiting(context: Context, stream: int | None) -> Iterator[None]:
    """Enclose a call that waits for a stream of a context, or for all of them."""
    afterwards = [after for each in before_waiting if (after := each(context, stream)) is not None]
    done = False
    try:
        yield
        done = True
    finally:
        for after in afterwards:
            after(done)


class Context:
    """A context, open or closed (a primary one opens again under the same handle). Safe for threads."""

    def __init__(
        self, device: Device, flags: int, primary: bool, affinity: int | None = None, partition: int | None = None
    ) -> None:
        """``partition``: the SMs of a green context, None: no such context."""
        self.device: Final = device
        self.flags = flags
        self.attached = 0
        """Calls of cuCtxAttach that no cuCtxDetach has undone."""
        self._affinity: Final = affinity
        self.partition: Final = partition
        self.primary: Final = primary
        self.handle: Final = new_handle()
        self.serial = 0
        self.opened: Opened | None = None
        self.ended_threads_streams: deque[int] = deque()
        """Per-thread streams of threads that have ended."""
        self.prints = False
        """Whether kernels of a module of it may print."""
        self._unwatched = 0
        """Records without an answer since the last pulse."""
        self._pulse_due = 0.0
        self._asked: tuple[int, int] | None = None
        """The serial and sequence number of a record whose answer is looked for."""
        self.settings: Final[dict[str, int]] = {}
        """Limits and preferences that were set."""
        self.stream_attributes: Final[dict[int, dict[str, bytes]]] = {}
        """Attributes that were set of its streams, by handle."""
        self._sticky_error: CudaError | None = _not_open()
        self._changing: Final = RLock()  # what it drops when it closes may close it again
        contexts[self.handle] = self

    def open(self, connection: Connection) -> None:
        """Open it if it is closed; raise CudaError."""
        with self._changing:
            if self.opened is None:
                self.opened = connection.open_context(self.device, self.flags, self._affinity, self.partition)
                self.serial = self.opened.serial
                self._sticky_error = None
                for call in when_opened:
                    call(self)

    def close(self, connection: Connection) -> None:
        """Close it and free what it held, unless it is closed; a poisoned context can be closed too.

        What its kernels print is printed before.
        """
        if self.prints and self.opened is not None:
            with suppress(CudaError):
                self.synchronize()
        with self._changing:
            opened, self.opened = self.opened, None
            if opened is not None:
                try:
                    self._sticky_error = _not_open()
                finally:
                    invalidate()
                self.ended_threads_streams.clear()
                self.settings.clear()
                self.stream_attributes.clear()
                try:
                    for drop in when_closed:
                        drop(self)
                finally:
                    connection.close_context(self.device, opened.serial)

    @property
    def active(self) -> bool:
        """Whether it is open."""
        return self.opened is not None

    @property
    def sticky_error(self) -> CudaError | None:
        """The error every call in this context returns, or None."""
        return self._sticky_error

    def usable(self) -> Opened:
        """Return the properties of the opened context; raise its sticky error."""
        opened, error = self.opened, self._sticky_error
        if error is not None or opened is None:
            raise (error or _not_open()).again()
        return opened

    def poison(self, serial: int, code: int, reason: str) -> None:
        """Poison the context after a fault: from now on every call in it fails at once with this error.

        ``serial`` identifies the context at the time of the fault; no effect if it was closed or reopened since.
        """
        if self._sticky_error is None and serial == self.serial:
            try:
                self._sticky_error = CudaError(code, reason or "an earlier fault poisoned this context")
            finally:
                invalidate()

    def end(self, error: CudaError) -> None:
        """Fail every use of it with this error: in a forked child, and at the end of the process."""
        self._sticky_error = error

    def mint(self) -> int:
        """Return a handle that no other object of this process has, of this executor's generation."""
        return (self.usable().generation << GENERATION_SHIFT) | _count()

    # --- records

    def post(self, operation: Operation, *operands: int) -> None:
        """Send a record without an answer."""
        opened = self.usable()
        self.pulse(opened)
        opened.transport.post(operation.record(opened.serial, opened.transport.sequence(), *operands))

    def pulse(self, opened: Opened, now: bool = False) -> None:
        """See whether a fault has ended the context, without waiting; raise its error.

        A program that only makes asynchronous calls learns of it so: now and then a record is sent whose answer is
        looked for later. ``now``: this call stands for many.
        """
        self._unwatched += 1
        if self._unwatched < _PULSE_RECORDS and not now:
            return
        moment = monotonic()
        if moment < self._pulse_due:
            return
        self._unwatched, self._pulse_due = 0, moment + _PULSE_S
        transport = opened.transport
        asked = self._asked
        if asked is None or asked[0] != opened.serial:
            self._asked = opened.serial, transport.sequence()
            sequence = self._asked[1]
            transport.expect(sequence)
            record = operations.MEMORY_INFO.record(opened.serial, sequence, flags=FLAG_QUIET)
            transport.post(record, urgent=True)
            return
        answer = transport.poll(asked[1])
        if answer is not None:
            self._asked = None
            transport.discard(asked[1])
            if answer[0] & FLAG_POISONED:
                self.judge(opened, answer)

    def call(self, operation: Operation, *operands: int) -> bytes:
        """Send a record, wait for its answer, return the operands and tail; raise CudaError."""
        opened = self.usable()
        sequence = opened.transport.sequence()
        record = operation.record(opened.serial, sequence, *operands)
        return self.judge(opened, opened.transport.call(sequence, record))

    def judge(self, opened: Opened, answer: Answer) -> bytes:
        """Return an answer's operands and tail, or raise its error (and keep it if it is marked sticky)."""
        flags, result, body = answer
        if result == Result.SUCCESS:
            return body
        reason = body.decode("utf-8", "replace")
        if flags & FLAG_POISONED:
            self.poison(opened.serial, result, reason)
        raise CudaError(result, reason)

    def synchronize(self) -> None:
        """Wait for all work of all its streams."""
        with waiting(self, None):
            self.call(operations.SYNCHRONIZE_CONTEXT)


def _not_open() -> CudaError:
    return CudaError(
        Result.ERROR_CONTEXT_IS_DESTROYED,
        "the context was destroyed, or is a primary context that is not retained; make another one current",
    )


def context_of(handle: int) -> Context:
    """Return the context of a handle; raise INVALID_CONTEXT."""
    found = contexts.get(handle)
    if found is None:
        raise CudaError(Result.ERROR_INVALID_CONTEXT, f"{handle:#x} is no context of this process")
    return found


def current() -> Context:
    """Return the calling thread's current context; raise INVALID_CONTEXT when it has none."""
    stack = this_thread.stack
    if not stack:
        raise CudaError(
            Result.ERROR_INVALID_CONTEXT,
            "no context is current to this thread; call cuCtxCreate, or cuDevicePrimaryCtxRetain and cuCtxSetCurrent",
        )
    return stack[-1]


def current_on_device_with(attribute: str, problem: str) -> Context:
    """Return the current context, which is usable; NOT_SUPPORTED, for ``problem``, if this device attribute is 0."""
    context = current()
    context.usable()
    if not context.device.facts.attributes.get(attribute):
        raise CudaError(Result.ERROR_NOT_SUPPORTED, problem)
    return context


def context_on(ordinal: int) -> Context:
    """Return a usable context on a device (its ordinal), preferably the current one; raise INVALID_VALUE if none.

    A process's contexts on one device share its memory.
    """
    if this_thread.stack and current().device.ordinal == ordinal:
        return current()
    if (found := usable_on(ordinal)) is not None:
        return found
    raise CudaError(
        Result.ERROR_INVALID_VALUE, "the address is on a device on which this process has no usable context"
    )


def usable_on(ordinal: int) -> Context | None:
    """Return a context on a device (its ordinal) that is open and has no error, None if there is none."""
    for context in tuple(contexts.values()):
        if context.device.ordinal == ordinal and context.active and context.sticky_error is None:
            return context
    return None
