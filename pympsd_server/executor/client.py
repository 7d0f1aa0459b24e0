"""One client process: its command stream, its shared memory, its contexts, and the thread that works for it."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Final

from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd.wire.errors import RemoteError
from pympsd_server.backends.interface import BackendError, Outcome
from pympsd_server.executor.answers import AnswerWriter
from pympsd_server.executor.backpressure import WorkLimit
from pympsd_server.executor.client_context import ClientContext
from pympsd_server.executor.host_memory.pinned import PinnedMemory
from pympsd_server.executor.native_mirror import Outside
from pympsd_server.executor.operations.pinned import FREE_PINNED, free
from pympsd_server.executor.operations.table import ROWS, Row
from pympsd_server.executor.record_source import Incoming, from_socket, from_worker
from pympsd_server.executor.request import Call, reason_bytes

if TYPE_CHECKING:
    from pympsd_server.native.worker import NativeWorker

_PATIENCE_SECONDS: Final = 1.0


class Client:
    """``contexts`` are keyed by the owner's serials, which records name them by."""

    def __init__(
        self, stream: socket.socket, shared: memoryview, pinned: PinnedMemory, native: NativeWorker | None = None
    ) -> None:
        """``native``: who takes records from the ring and executes what it can of them."""
        self._stream = stream
        self._native = native
        self.shared = shared
        self.pinned = pinned
        self.contexts: dict[int, ClientContext] = {}
        self.answers = AnswerWriter(stream, native)
        self.work_limit = WorkLimit()
        self._latest = 0
        """The greatest serial that a context of its has had."""
        self._worker = threading.Thread(target=self._work, name="worker", daemon=True)

    def start(self) -> None:
        """Begin to take records."""
        self._worker.start()

    def add(self, serial: int, context: ClientContext) -> None:
        """The client has a context, whose records are executed from now on."""
        if self._native is not None:
            context.go_outside(Outside(self._native, serial, context))
        self.contexts[serial] = context
        self._latest = max(self._latest, serial)

    def drop(self) -> None:
        """Destroy its contexts, stop its kernels, close its stream."""
        if self._native is not None:
            self._native.close()
        self.answers.close()
        for context in self.contexts.values():
            context.abandon()  # all of them first: so they wait for their kernels together
        for context in self.contexts.values():
            context.destroy()
        self.pinned.close()
        self.work_limit.close()
        # A worker in the midst of a long translation ends when that does; nobody waits for it.
        self._worker.join(_PATIENCE_SECONDS)

    # --- the worker

    def _work(self) -> None:
        try:
            for incoming in from_socket(self._stream) if self._native is None else from_worker(self._native):
                self._execute(incoming)
        except RemoteError:
            pass  # the length field is broken: no later record can be found, so the stream ends here
        self.answers.close()
        self._stream.close()

    def _is_no_context(self, serial: int) -> Outcome:
        """Say why: serials only grow, so one below the latest was a context while its record was on its way."""
        if 0 < serial <= self._latest:
            return Outcome(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
        return Outcome(Result.ERROR_INVALID_CONTEXT, f"no context {serial} in this process")

    def _execute(self, incoming: Incoming) -> None:
        record = incoming.record
        if record.opcode == FREE_PINNED:
            free(self, record)
            return
        row = ROWS.get(record.opcode)
        # An opcode we do not know may be one whose sender waits: it had better hear.
        answered = row.answered if row is not None else not record.flags & records.FLAG_QUIET
        context = self.contexts.get(record.context)
        if context is None:
            if answered:
                outcome = self._is_no_context(record.context)
                self.refuse(record.opcode, record.sequence, outcome, 0)
            return
        call = Call(self, context, record, answered)
        try:
            if incoming.refused and self._native is not None:
                raise self._native.refused(incoming.refused)
            _run(call, row, record)
        except BackendError as error:
            call.fail(Outcome(error.code, error.reason))
        except MemoryError as error:
            call.fail(Outcome(Result.ERROR_OUT_OF_MEMORY, f"the executor has no memory left for this call: {error}"))
        except Exception as error:  # a defect of ours: this call's trouble, nobody else's
            reason = f"the executor failed: {type(error).__name__}: {error}"
            call.fail(Outcome(Result.ERROR_UNKNOWN, reason))

    def refuse(self, opcode: int, sequence: int, outcome: Outcome, flags: int) -> None:
        """Send an answer that carries an error."""
        tail = reason_bytes(outcome)
        self.answers.send(records.pack_answer(opcode, sequence, outcome.code, b"", tail, flags))


def _run(call: Call, row: Row | None, record: records.Record) -> None:
    sticky = call.context.backend.outcome
    if sticky.code is not Result.SUCCESS:
        if call.answered:
            call.fail(sticky)
        return
    if call.waited:
        deferred = call.context.take_deferred()
        if deferred is not None:
            call.fail(deferred)
            return
    if row is None:
        raise BackendError(Result.ERROR_NOT_SUPPORTED, f"unknown opcode {record.opcode}")
    row.read(call, record.body)
    row.execute(call)
    call.client.work_limit.wait_for_room()
