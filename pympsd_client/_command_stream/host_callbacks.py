"""Host functions on their way through one command stream: posted, announced by the executor, run, reported done.

The executor answers HOST_FUNCTION when its stream has come to it, so somebody has to read while functions are
pending: a thread of their own takes part as one that waits. It sleeps, and then ends, when there are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Final

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.records import FLAG_QUIET, HEADER
from pympsd_client._arguments.errors import CudaError
from pympsd_client._command_stream import operations
from pympsd_client._command_stream.callback_threads import IDLE_S, runners
from pympsd_client._objects.thread_local import this_thread

if TYPE_CHECKING:
    from pympsd_client._command_stream.transport import Answer, Transport
    from pympsd_client._objects.context import Context, Opened

STRIDE: Final = 1024
"""Records that may be posted while functions are pending before the executor is asked for room.

It stops reading when too much is unfinished, and would not see that a function is done.
"""


@frozen(eq=False)
class HostCall:
    """A function for a point of a stream. ``run`` gets a CUresult number and raises nothing."""

    context: Context
    opened: Opened
    stream: int
    run: Callable[[int], None]
    on_error: bool
    """Whether it runs when the context has met with an error too."""


class HostCalls:
    """The host functions of one command stream. Safe for threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport: Final = transport
        self._gate: Final = Lock()
        self._gate.acquire()
        self._changed: Final = Condition()
        self._awaited: Final[dict[int, HostCall]] = {}
        """Posted and not announced, by the sequence numbers of their records, which are their tokens too."""
        self._unfinished = 0
        self._listening = False
        self._asking: Final = Lock()
        self._posted = count().__next__

    def launch(self, call: HostCall) -> None:
        """Post a function; raise CudaError."""
        sequence = self._enter(call)
        self._transport.expect(sequence, self._gate)
        record = operations.HOST_FUNCTION.record(
            call.opened.serial, sequence, call.stream, sequence, flags=FLAG_QUIET
        )
        try:
            self._transport.post(record)
        except CudaError:  # after Ctrl-C it stays awaited: its record may be on its way
            self._transport.forget(sequence)
            if self._awaited.pop(sequence, None) is not None:
                self._finished()
            raise

    def _enter(self, call: HostCall) -> int:
        with self._changed:
            if not self._listening:
                self._start()
            sequence = self._transport.sequence()
            self._awaited[sequence] = call
            self._unfinished += 1
            self._transport.pace = self._keep_pace
            self._changed.notify()
        return sequence

    def _start(self) -> None:
        try:
            Thread(target=self._listen, name="host function listener", daemon=True).start()
        except RuntimeError as error:
            raise CudaError(Result.ERROR_OPERATING_SYSTEM, f"no thread for host functions: {error}") from None
        self._listening = True

    # --- the listener

    def _listen(self) -> None:
        while self._some_awaited():
            try:
                self._transport.wait(self._gate, self._some_announced)
            except CudaError as error:
                self._end(error)
                return
            for sequence in self._transport.arrived():
                self._announced(sequence)

    def _some_awaited(self) -> bool:
        with self._changed:
            self._listening = self._changed.wait_for(lambda: bool(self._awaited), IDLE_S)
            return self._listening

    def _some_announced(self) -> bool:
        return any(map(self._awaited.__contains__, self._transport.arrived()))

    def _announced(self, sequence: int) -> None:
        call = self._awaited.pop(sequence, None)
        if call is None:  # Ctrl-C while a listener began may have left two
            return
        answer = self._transport.answer(sequence)
        self._transport.forget(sequence)
        with contextlib.suppress(CudaError):
            call.context.judge(call.opened, answer)
        runners.give((call.context, call.stream), lambda: self._run(sequence, call, answer))

    def _end(self, error: CudaError) -> None:
        """The command stream has ended: callbacks are told, unless it is the process that ends."""
        with self._changed:
            self._listening = False
            calls = tuple(self._awaited.items())
            self._awaited.clear()
        for sequence, call in calls:
            self._transport.forget(sequence)
            if not self._transport.closed:
                answer = (0, error.code, b"")
                runners.give((call.context, call.stream), lambda s=sequence, c=call, a=answer: self._run(s, c, a))  # type: ignore[misc]

    # --- the runners' part

    def _run(self, token: int, call: HostCall, answer: Answer) -> None:
        _, result, _ = answer
        if result == Result.SUCCESS or call.on_error:
            this_thread.in_host_function = True
            try:
                call.run(result)
            finally:
                this_thread.in_host_function = False
        if self._transport.closed:
            return
        if result == Result.SUCCESS:
            done = operations.HOST_FUNCTION_DONE.record(call.opened.serial, self._transport.sequence(), token)
            with contextlib.suppress(CudaError):  # the executor is gone, and the stream with it
                self._transport.post(done, urgent=True)
        self._finished()

    def _finished(self) -> None:
        with self._changed:
            self._unfinished -= 1
            if not self._unfinished:
                self._transport.pace = None

    # --- pace

    def _keep_pace(self, record: bytes) -> None:
        """Before a record is posted: wait for room in the executor, now and then."""
        if self._posted() < STRIDE:
            return
        with self._asking:
            if self._posted() < STRIDE:
                return  # another thread has asked meanwhile
            context = HEADER.unpack_from(record)[3]
            sequence = self._transport.sequence()
            self._transport.expect(sequence)
            try:
                # Quiet: errors that wait for a call are not for this one.
                self._transport.post(operations.ROOM.record(context, sequence, flags=FLAG_QUIET), urgent=True)
                self._transport.answer(sequence)
            finally:
                self._transport.forget(sequence)
            self._posted = count().__next__
