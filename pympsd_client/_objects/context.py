"""Contexts, their sticky errors, and the data of each thread: its context stack and its per-thread streams.

A `Context` is the client's side of one context of an executor. It may be closed and opened again under the same
handle, as primary contexts are; ``id`` is the executor's id of the context that is open now. Objects belong to a
context and are dropped with it: modules that keep such objects append a function to `when_closed`.

**Sticky errors.** After a fault every call in the context returns the same error. The client notices the fault in one
of three ways: the answer to the call carries FLAG_STICKY, the answer to another thread's record does, or a *pulse*
finds one. Pulses exist because a program that makes only asynchronous calls never waits for an answer. So after
_PULSE_RECORDS records, and not more often than every _PULSE_S seconds, `Context.pulse` sends a record whose answer a
later pulse looks for without waiting.

A fault ends all contexts of the process, on all its devices: they can be closed, but an attempt to open another
raises the first error, which is in `lost`. This was recorded on one GPU, with and without MPS, and on two GPUs, and
the MPS documents require the process to end. A device that contains faults (`DeviceProperties.contains_faults`) loses
only the context of the fault, and keeps its contexts when the process loses those on other devices.

**Invariants**

- `Context.usable` is the first step of every call: it raises the sticky error, or returns the open context's
  properties.
- A fault is reported with the id under which it happened, and ignored if the context was closed or reopened since.
- Every change of the sticky error also drops the plans of the launch cache (`launch_cache.invalidate`).
- The finalizer of an object that `Context.close` drops may call it again, so its lock is reentrant.

**Waiting.** Memory pools reuse memory once a stream is known to have reached a point. So a call that waits for a
stream does so within `enclose_wait`, which calls the functions in `before_waiting` and, after the wait, the functions
that they have returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import RLock
from time import monotonic
from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FIRST_HANDLE, FLAG_QUIET, FLAG_STICKY, GENERATION_SHIFT
from pympsd_client._arguments.errors import CudaError, invalid_context, not_supported
from pympsd_client._arguments.values import find_by_handle
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.answers import Answer
from pympsd_client._command_stream.launch_cache import invalidate
from pympsd_client._command_stream.operations import OperationLayout
from pympsd_client._connect.connection import Connection, Opened, VisibleDevice


class ThreadStreams:
    """The per-thread default streams (CU_STREAM_PER_THREAD) of one thread, by context and context id.

    When the thread ends, each stream is handed to its context, which destroys it when the next stream is created.
    The destructor must not send records itself, because that might block.
    """

    def __init__(self) -> None:
        self.handles: dict[tuple[Context, int], int] = {}

    def __del__(self) -> None:
        for (context, context_id), handle in self.handles.items():
            if context.id == context_id:
                context.ended_threads_streams.append(handle)


class _ThreadState(threading.local):
    """Attributes of which each thread has its own values."""

    def __init__(self) -> None:
        self.stack: list[Context] = []
        """This thread's stack of contexts; the last one is current (CUDA driver API, Context Management)."""
        self.streams = ThreadStreams()
        self.in_host_function = False
        """Whether this thread is running a host function, in which CUDA calls are not permitted."""


this_thread: Final = _ThreadState()


_count = count(FIRST_HANDLE).__next__
_PULSE_RECORDS: Final = 64
_PULSE_S: Final = 0.005


def new_handle() -> int:
    """Return a new handle for an object that the executor does not have."""
    return (1 << GENERATION_SHIFT) | _count()


contexts: Final[dict[int, Context]] = {}
"""The contexts of this process by handle."""
lost: Final[list[CudaError]] = []
"""The first fault of this process, if it had one; every context of the process has it, and no other can be opened."""
_ENDED_FROM_OUTSIDE: Final = (Result.ERROR_CONTEXT_IS_DESTROYED, Result.ERROR_MPS_CLIENT_TERMINATED)
"""Sticky errors that are not faults."""
when_closed: Final[list[Callable[[Context], None]]] = []
"""Functions that drop the objects of a context; called with each context that is being closed."""
when_opened: Final[list[Callable[[Context], None]]] = []
"""Functions that are called with each context that has just been opened."""
before_waiting: Final[list[Callable[[Context, int | None], Callable[[bool], None] | None]]] = []
"""Functions that are called before a call waits for a stream of a context (None means all its streams).

A function may return another, which is called after the wait, with True if the wait was successful.
"""


@contextmanager
def enclose_wait(context: Context, stream: int | None) -> Iterator[None]:
    """Enclose a call that waits for a stream of a context (None means all its streams).

    After a successful wait, memory pools let other streams use the memory that was freed in it. If the block raises,
    they do not.
    """
    afterwards = [after for prepare in before_waiting if (after := prepare(context, stream)) is not None]
    done = False
    try:
        yield
        done = True
    finally:
        for after in afterwards:
            after(done)


class Context:
    """A context, open or closed. A primary context opens again under the same handle. Thread-safe.

    Attributes that other modules use: ``handle`` (the program's), ``id`` (the executor's id of the context that is
    open now), ``device``, ``flags``, ``primary``, ``partition`` (a green context's number of SMs, else None),
    ``settings`` and ``stream_attributes`` (values that the program has set).
    """

    def __init__(
        self,
        device: VisibleDevice,
        flags: int,
        primary: bool,
        affinity: int | None = None,
        partition: int | None = None,
    ) -> None:
        """``partition``: the number of SMs of a green context; None for other contexts."""
        self.device: Final = device
        self.flags = flags
        self.attached = 0
        """The number of cuCtxAttach calls that no cuCtxDetach has undone."""
        self._affinity: Final = affinity
        self.partition: Final = partition
        self.primary: Final = primary
        self.handle: Final = new_handle()
        self.id = 0
        self.opened: Opened | None = None
        self.ended_threads_streams: deque[int] = deque()
        """Per-thread streams of threads that have ended."""
        self.prints = False
        """Whether a module with kernels that may print has been loaded."""
        self._unwatched = 0
        """The number of records without an answer since the last pulse."""
        self._pulse_due = 0.0
        self._watched_record: tuple[int, int] | None = None
        """The context's id and the sequence number of the record whose answer the next pulse looks for."""
        self.settings: Final[dict[str, int]] = {}
        """Limits and preferences that the program has set."""
        self.stream_attributes: Final[dict[int, dict[str, bytes]]] = {}
        """Attributes that the program has set on the context's streams, by the stream's handle."""
        self._sticky_error: CudaError | None = _not_open()
        self._changing: Final = RLock()  # the finalizer of an object that is dropped may close the context again
        contexts[self.handle] = self

    @classmethod
    def open_new(
        cls,
        connection: Connection,
        device: VisibleDevice,
        flags: int = 0,
        affinity: int | None = None,
        partition: int | None = None,
    ) -> Context:
        """Return a new context that is open and not primary. Raise CudaError; then `contexts` does not have it."""
        context = cls(device, flags, False, affinity, partition)
        try:
            context.open(connection)
        except BaseException:
            contexts.pop(context.handle, None)
            raise
        return context

    def open(self, connection: Connection) -> None:
        """Open the context if it is closed; raise CudaError: the device's earlier fault, or the server's refusal.

        Call the functions in `when_opened`, which for example give the context peer access. If one of them raises an
        error, close the context and raise the error.
        """
        with self._changing:
            if self.opened is None:
                if lost and self._shares_faults:
                    raise lost[0].copy()
                self.opened = connection.open_context(self.device, self.flags, self._affinity, self.partition)
                self.id = self.opened.context_id
                self._sticky_error = None
                try:
                    if lost and self._shares_faults:  # a fault while the context was being opened
                        raise lost[0].copy()
                    for call in when_opened:
                        call(self)
                except BaseException:
                    with suppress(CudaError):
                        self.close(connection)
                    raise

    def close(self, connection: Connection) -> None:
        """Close the context and free its objects, even after a fault; no effect if it is closed.

        First its kernels' output is printed. The functions in `when_closed` drop its objects, whose handles become
        invalid. Raise CudaError if the server cannot be reached; the context is closed nevertheless.
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
                    connection.close_context(self.device, opened.context_id)

    @property
    def active(self) -> bool:
        """Whether the context is open."""
        return self.opened is not None

    @property
    def sticky_error(self) -> CudaError | None:
        """The error that every call in this context returns, or None."""
        return self._sticky_error

    def usable(self) -> Opened:
        """Return the properties of the open context. Every call that uses a context begins here.

        Raise the sticky error, or CONTEXT_IS_DESTROYED if the context is closed.
        """
        opened, error = self.opened, self._sticky_error
        if error is not None or opened is None:
            raise (error or _not_open()).copy()
        return opened

    def fault(self, context_id: int, code: int, reason: str) -> None:
        """Set the sticky error after a fault, so that every later call in a context of this process fails with it.

        ``context_id``: the executor's id of the context in which the fault happened. No effect if the context was
        closed or reopened since, or has an error already. ``code`` is a CUresult number.
        """
        if self._sticky_error is None and context_id == self.id:
            error = CudaError(code, reason or "an earlier fault made this context unusable")
            try:
                self._sticky_error = error
                if code not in _ENDED_FROM_OUTSIDE and self._shares_faults:
                    lost.append(error)
                    for context in tuple(contexts.values()):
                        if context.active and context.sticky_error is None and context._shares_faults:
                            context.end(error)
            finally:
                invalidate()

    @property
    def _shares_faults(self) -> bool:
        """Whether a fault in this context ends the other contexts of the process, and theirs ends this one."""
        return not self.device.properties.contains_faults

    def end(self, error: CudaError) -> None:
        """Make every later call in the context fail with an error: after a fault, in a forked child, and at exit."""
        self._sticky_error = error

    def allocate_handle(self) -> int:
        """Return a new handle, unique in this process, for an object in the executor; it contains its generation."""
        return (self.usable().generation << GENERATION_SHIFT) | _count()

    # --- records

    def post(self, operation: OperationLayout, *operands: int) -> None:
        """Send a record that is not answered, and return; raise CudaError.

        An error of the work itself is returned by a later call (CUDA driver API, API synchronization behavior).
        """
        opened = self.usable()
        self.pulse(opened)
        opened.transport.post(operation.record(opened.context_id, opened.transport.sequence(), *operands))

    def pulse(self, opened: Opened, now: bool = False) -> None:
        """Check, without waiting, whether a fault has ended the context; raise its error.

        Now and then a pulse sends a record, and a later pulse looks for its answer, so that a program that makes only
        asynchronous calls gets its errors too. ``now``: do not wait for _PULSE_RECORDS calls, because earlier
        launches in C were not counted.
        """
        self._unwatched += 1
        if self._unwatched < _PULSE_RECORDS and not now:
            return
        moment = monotonic()
        if moment < self._pulse_due:
            return
        self._unwatched, self._pulse_due = 0, moment + _PULSE_S
        transport = opened.transport
        watched = self._watched_record
        if watched is None or watched[0] != opened.context_id:
            self._watched_record = opened.context_id, transport.sequence()
            sequence = self._watched_record[1]
            transport.expect(sequence)
            record = operations.MEMORY_INFO.record(opened.context_id, sequence, flags=FLAG_QUIET)
            transport.post(record, urgent=True)
            return
        answer = transport.poll(watched[1])
        if answer is not None:
            self._watched_record = None
            transport.discard(watched[1])
            if answer[0] & FLAG_STICKY:
                self.judge(opened, answer)

    def call(self, operation: OperationLayout, *operands: int) -> bytes:
        """Send a record, wait for its answer, and return the answer's operands and tail; raise CudaError."""
        opened = self.usable()
        sequence = opened.transport.sequence()
        record = operation.record(opened.context_id, sequence, *operands)
        return self.judge(opened, opened.transport.call(sequence, record))

    def query(self, operation: OperationLayout, *operands: int) -> tuple[Any, ...]:
        """Send a record, wait for its answer, and return the answer's operands; raise CudaError."""
        return operation.answer.unpack_from(self.call(operation, *operands))

    def judge(self, opened: Opened, answer: Answer) -> bytes:
        """Return an answer's operands and tail, or raise its error.

        An error that is marked as sticky is kept, and every later call in the context raises it too.
        """
        flags, result, body = answer
        if result == Result.SUCCESS:
            return body
        reason = body.decode("utf-8", "replace")
        if flags & FLAG_STICKY:
            self.fault(opened.context_id, result, reason)
        raise CudaError(result, reason)

    def synchronize(self) -> None:
        """Wait for all work in the context's streams."""
        with enclose_wait(self, None):
            self.call(operations.SYNCHRONIZE_CONTEXT)


def _not_open() -> CudaError:
    return CudaError(
        Result.ERROR_CONTEXT_IS_DESTROYED,
        "the context was destroyed, or is a primary context that is not retained; make another one current",
    )


def context_of(handle: int) -> Context:
    """Return the context of a handle; raise INVALID_CONTEXT."""
    return find_by_handle(contexts, handle, "a context of this process", invalid_context)


def current() -> Context:
    """Return the calling thread's current context; raise INVALID_CONTEXT if it has none."""
    stack = this_thread.stack
    if not stack:
        raise invalid_context(
            "no context is current to this thread; call cuCtxCreate, or cuDevicePrimaryCtxRetain and cuCtxSetCurrent"
        )
    return stack[-1]


def require_context(handle: int = 0) -> Context:
    """Return the context of a handle (0 means the current one) if it can be used.

    Raise INVALID_CONTEXT, or the context's sticky error.
    """
    context = context_of(handle) if handle else current()
    context.usable()
    return context


def current_on_device_with(attribute: str, problem: str) -> Context:
    """Return the current context if it can be used and its device's ``attribute`` is not 0.

    Raise NOT_SUPPORTED with the reason ``problem`` if the attribute is 0.
    """
    context = require_context()
    if not context.device.properties.attributes.get(attribute):
        raise not_supported(problem)
    return context


def context_on(ordinal: int) -> Context:
    """Return a context on a device, preferably the current one; raise INVALID_VALUE if there is none to use.

    ``ordinal`` is the daemon's number of the device, which also selects its window of addresses. A process's contexts
    on one device share its memory, so any of them will do.
    """
    if (context := find_on(ordinal)) is not None:
        return context
    raise CudaError(
        Result.ERROR_INVALID_VALUE, "the address is on a device on which this process has no usable context"
    )


def find_on(ordinal: int) -> Context | None:
    """Return the current context if it is on the device with this ordinal, else a usable one there, or None."""
    if this_thread.stack and current().device.ordinal == ordinal:
        return current()
    return usable_on(ordinal)


def usable_on(ordinal: int) -> Context | None:
    """Return an open context without an error on the device with this ordinal, or None."""
    for context in tuple(contexts.values()):
        if context.device.ordinal == ordinal and context.active and context.sticky_error is None:
            return context
    return None
