"""Host functions: posted to a stream, announced by the executor, run in this process, reported as done.

A host function has four steps. `HostCallbacks.launch` posts HOST_FUNCTION. The executor answers it when its stream
has come to that point; the stream then waits. A callback thread runs the function. After HOST_FUNCTION_DONE the
stream continues.

    program       post HOST_FUNCTION ...
    executor      ... earlier work ... answer | waits ................. | later work
    listener      waits for answers .......... | submit
    callback thread                              run the function, post HOST_FUNCTION_DONE

- **The listener.** Answers must be read even if no thread of the program waits for one. While functions are pending
  a listener thread waits as any other thread does (see `transport`). When none are pending it sleeps, and after
  IDLE_SECONDS it ends.
- **Order.** Functions of one stream run one after another; streams do not wait for each other (`CallbackThreads`).
  An executable graph gives each of its functions an order of its own, because a function in one branch may wait for
  one in another.
- **Backpressure.** An executor with too much unfinished work stops reading and would not see that a function is
  done. So while functions are unfinished, the client sends a request before every ROOM_CHECK_INTERVAL-th record,
  which the executor answers once it reads on. HOST_FUNCTION_DONE and the work of a running function are exempt,
  because they reduce the unfinished work.
- Callback threads are daemon threads: they never keep a process from exiting.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Condition, Lock, RLock, Thread
from typing import TYPE_CHECKING, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_QUIET, HEADER
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.answers import Faultable, report_fault

if TYPE_CHECKING:
    from pympsd_client._command_stream.answers import Answer
    from pympsd_client._command_stream.transport import Transport

Job = Callable[[], None]
IDLE_SECONDS: Final = 5.0
"""Seconds without work after which a thread ends."""


class CallbackThreads:
    """Threads that run the functions of streams, one for each stream. They never keep a process from ending."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin with neither threads nor jobs, also in a forked child, which has only the thread that forked."""
        self._changed = Condition()
        self._jobs: dict[Hashable, deque[Job]] = {}
        """The jobs of each stream that has a thread or is waiting for one."""
        self._ready: deque[Hashable] = deque()
        """Streams waiting for a thread."""
        self._idle = 0

    def submit(self, stream: Hashable, job: Job) -> None:
        """Run a job after the earlier jobs of its stream. The job must not raise."""
        with self._changed:
            jobs = self._jobs.get(stream)
            if jobs is not None:
                jobs.append(job)
                return
            self._jobs[stream] = deque((job,))
            self._ready.append(stream)
            if self._idle >= len(self._ready):
                self._changed.notify()
                return
        try:
            Thread(target=self._run, name="host functions", daemon=True).start()
        except RuntimeError:  # the system has no more threads: use this one
            self._serve_next(0)

    def _run(self) -> None:
        while self._serve_next(IDLE_SECONDS):
            pass

    def _serve_next(self, seconds: float) -> bool:
        """Run the jobs of a stream; return False if none has come within ``seconds`` seconds."""
        jobs = self._jobs
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._ready, seconds)
            self._idle -= 1
            if not self._ready:
                return False
            stream = self._ready.popleft()
        while (job := self._job_of(stream)) is not None:
            job()
            if self._jobs is not jobs:  # the job has forked, and this is the child, which has no jobs
                return False
        return True

    def _job_of(self, stream: Hashable) -> Job | None:
        with self._changed:
            jobs = self._jobs[stream]
            if jobs:
                return jobs.popleft()
            del self._jobs[stream]
            return None


callback_threads: Final = CallbackThreads()


ROOM_CHECK_INTERVAL: Final = 1024
"""While functions are pending, the client checks after this number of records that the executor still reads them."""


class _Running(threading.local):
    in_function = False
    """Whether this thread runs a function."""


_running: Final = _Running()


@frozen(eq=False)
class PendingCallback:
    """A function queued in a stream. ``run`` gets a CUresult number and must not raise."""

    context: Faultable
    context_id: int
    stream: int
    """The number of the stream, or a number of its own for a function of an executable graph.

    Functions with the same number run one after another.
    """
    run: Callable[[int], None]
    on_error: bool
    """Whether the function runs even after an error in the context."""


class HostCallbacks:
    """The host functions of one command stream. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._gate: Final = Lock()
        self._gate.acquire()
        self._changed: Final = Condition()
        self._pending: Final[dict[int, PendingCallback]] = {}
        """Functions that are posted but not announced, by their records' sequence numbers, also their tokens."""
        self._unfinished = 0
        self._listening = False
        # Reentrant, because the finalizers of objects collected during the request may make calls.
        self._requesting: Final = RLock()
        self._posted = count().__next__

    def launch(self, callback: PendingCallback, record: Callable[[int], bytes] | None = None) -> None:
        """Post a function; raise CudaError if the record cannot be sent.

        ``record`` packs the record from the function's token. Without it the record is HOST_FUNCTION; an executable
        graph passes a function that packs GRAPH_HOST_FUNCTION. After Ctrl-C the function stays pending, because its
        record may be on its way.
        """
        sequence = self._enter(callback)
        self._transport.expect(sequence, self._gate)
        try:
            if record is None:
                operands = (callback.context_id, sequence, callback.stream, sequence)
                self._transport.post(operations.HOST_FUNCTION.record(*operands, flags=FLAG_QUIET))
            else:
                self._transport.post(record(sequence))
        except CudaError:  # not KeyboardInterrupt: the record may be on its way
            self._transport.discard(sequence)
            if self._pending.pop(sequence, None) is not None:
                self._finish()
            raise

    def _enter(self, callback: PendingCallback) -> int:
        """Enter a callback and return its sequence number; start the listener if none runs; raise CudaError."""
        with self._changed:
            if not self._listening:
                try:
                    Thread(target=self._listen, name="host function listener", daemon=True).start()
                except RuntimeError as error:
                    raise CudaError(
                        Result.ERROR_OPERATING_SYSTEM, f"cannot start a thread for host functions: {error}"
                    ) from None
                self._listening = True
            sequence = self._transport.sequence()
            self._pending[sequence] = callback
            self._unfinished += 1
            self._transport.backpressure = self._wait_for_room
            self._changed.notify()
        return sequence

    # --- the listener

    def _listen(self) -> None:
        """In the listener thread, handle announcements until none has been pending for IDLE_SECONDS."""
        while True:
            with self._changed:
                self._listening = self._changed.wait_for(lambda: bool(self._pending), IDLE_SECONDS)
                if not self._listening:
                    return
            try:
                self._transport.wait(
                    self._gate, lambda: any(map(self._pending.__contains__, self._transport.list_answered()))
                )
            except CudaError as error:
                self._end(error)
                return
            for sequence in self._transport.list_answered():
                self._handle_announcement(sequence)

    def _handle_announcement(self, sequence: int) -> None:
        callback = self._pending.pop(sequence, None)
        if callback is None:  # a Ctrl-C during the start of a listener can leave two listeners
            return
        answer = self._transport.answer(sequence)
        self._transport.discard(sequence)
        report_fault(callback.context, callback.context_id, answer)
        self._submit(sequence, callback, answer)

    def _end(self, error: CudaError) -> None:
        """Call the pending callbacks with the error that ended the command stream, unless this process ended it."""
        with self._changed:
            self._listening = False
            pending = tuple(self._pending.items())
            self._pending.clear()
        for sequence, callback in pending:
            self._transport.discard(sequence)
            if not self._transport.closed:
                self._submit(sequence, callback, (0, error.code, b""))

    # --- in the callback threads

    def _submit(self, token: int, callback: PendingCallback, answer: Answer) -> None:
        stream = callback.context, callback.stream
        callback_threads.submit(stream, partial(self._run, token, callback, answer))

    def _run(self, token: int, callback: PendingCallback, answer: Answer) -> None:
        """Run a function unless earlier work has failed, and report to the executor that the function is done."""
        _, result, _ = answer
        if result == Result.SUCCESS or callback.on_error:
            _running.in_function = True
            try:
                callback.run(result)
            finally:
                _running.in_function = False
        if self._transport.closed:
            return
        if result == Result.SUCCESS:
            done = operations.HOST_FUNCTION_DONE.record(callback.context_id, self._transport.sequence(), token)
            with suppress(CudaError):  # the executor has gone, and its stream does not wait any more
                self._transport.post(done, urgent=True)
        self._finish()

    def _finish(self) -> None:
        with self._changed:
            self._unfinished -= 1
            if not self._unfinished:
                self._transport.backpressure = None

    # --- backpressure

    def _wait_for_room(self, record: bytes) -> None:
        """Before every ROOM_CHECK_INTERVAL-th record, wait until the executor takes more records."""
        if _running.in_function or self._posted() < ROOM_CHECK_INTERVAL:
            return  # the work of a running function lets other functions finish
        with self._requesting:
            if self._posted() < ROOM_CHECK_INTERVAL:
                return  # another thread has just done this
            context = HEADER.unpack_from(record)[3]
            sequence = self._transport.sequence()
            self._transport.expect(sequence)
            try:
                # Quiet, because errors of earlier work belong to the program's next call.
                self._transport.post(operations.ROOM.record(context, sequence, flags=FLAG_QUIET), urgent=True)
                self._transport.answer(sequence)
            finally:
                self._transport.discard(sequence)
            self._posted = count().__next__
