"""One client process: its command stream, its contexts, and the thread that executes its records.

Each client has a worker thread of its own, so a client that sends expensive records (a translation of PTX may take
seconds) delays only itself. The worker takes a record (`record_source`), finds its row in the table of operations
(`operations.table`) and executes it; an error of any kind fails this one record and never the thread. The order of
checks is the order of CUDA's errors: an unknown context, the context's sticky error, an error that an earlier
asynchronous call left for the next waiting one, then the operation's own.

The owner's thread ends a client (`drop`): it closes the stream, which ends the worker, destroys the contexts, and
waits a second for the worker at most.
"""

import socket
import threading
from typing import Final

from pympsd.errors import RemoteError
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.executor.graphs.streams import StreamBudget
from pympsd_server.executor.memory.device_memory import Shortages
from pympsd_server.executor.memory.pinned import PinnedPieces
from pympsd_server.executor.operations.table import ROWS, ExecutedOperation
from pympsd_server.executor.record_source import Incoming, read_socket, read_worker
from pympsd_server.executor.requests.answers import AnswerWriter
from pympsd_server.executor.requests.backpressure import Backpressure
from pympsd_server.executor.requests.client_context import ClientContext
from pympsd_server.executor.requests.request import ClientResources, Request, SharedEvents
from pympsd_server.native.mirror import NativeMirror
from pympsd_server.native.worker import NativeWorker

_JOIN_SECONDS: Final = 1.0


class CommandClient:
    """One client process, as the executor serves it.

    ``contexts`` has the client's contexts by the ids that the server gave them, which records name.
    """

    def __init__(
        self,
        stream: socket.socket,
        staging: memoryview,
        pinned: PinnedPieces,
        shared_events: SharedEvents,
        shortages: Shortages,
        client_id: int,
        native: NativeWorker | None = None,
    ) -> None:
        """Prepare a client; `start` begins to execute its records.

        Args:
            stream: The socket of its command stream.
            staging: The shared memory that its copies pass through.
            pinned: Its page-locked host memory.
            shared_events: The events that processes share, of all clients.
            shortages: Requests for memory that other clients have to free.
            client_id: The server's id of the client.
            native: The native worker that reads the ring and executes the records that it can; None: Python does all.
        """
        self._stream = stream
        self._native = native
        self.contexts: dict[int, ClientContext] = {}
        answers = AnswerWriter(stream, native)
        budgets = Backpressure(), staging, pinned, StreamBudget()
        self.resources = ClientResources(answers, *budgets, self.contexts, shared_events, shortages, client_id)
        self._latest = 0
        """The greatest id of this client's contexts."""
        self._worker = threading.Thread(target=self._work, name="worker", daemon=True)

    def start(self) -> None:
        """Start the worker thread, which executes records until the stream ends."""
        self._worker.start()

    def add(self, context_id: int, context: ClientContext) -> None:
        """Add a context, whose records are executed from now on.

        Args:
            context_id: The server's id of the context, greater than that of every earlier context of the client.
            context: The context.
        """
        if self._native is not None and self._native.access is not None:
            context.attach_mirror(NativeMirror(self._native, self._native.access, context_id, context.backend))
        self.contexts[context_id] = context
        self._latest = max(self._latest, context_id)

    def drop(self) -> None:
        """Destroy the client's contexts, stop its kernels and close its stream.

        Waits 1 s at most for the worker, which may be in a long translation.
        """
        if self._native is not None:
            self._native.close()
        self.resources.answers.close()
        for context in self.contexts.values():
            context.abandon()  # all of them first, so that they wait for their kernels together
        for context in self.contexts.values():
            context.destroy()
        self.resources.pinned.close()
        self.resources.backpressure.close()
        self.resources.shortages.client_left(self.resources.client)
        # A worker in a long translation ends when that does; do not wait for it.
        self._worker.join(_JOIN_SECONDS)

    # --- the worker

    def _work(self) -> None:
        try:
            for incoming in read_socket(self._stream) if self._native is None else read_worker(self._native):
                self._execute(incoming)
        except RemoteError:
            pass  # the length field is invalid: no later record can be found, so end the stream
        self.resources.answers.close()
        self._stream.close()

    def _execute(self, incoming: Incoming) -> None:
        record = incoming.record
        row = ROWS.get(record.opcode)
        context = self.contexts.get(record.context)
        if row is not None and row.scope is records.Scope.PROCESS:
            context = None
        # The sender of an unknown opcode may wait for an answer, so it gets one.
        answered = row.answered if row is not None else not record.flags & records.FLAG_QUIET
        request = Request(self.resources, context, record, answered)
        try:
            if incoming.refused and self._native is not None and context is not None:
                raise self._native.error_of(incoming.refused)
            self._run(request, context, row, record)
        except BackendError as error:
            request.fail(Status(error.code, error.reason))
        except MemoryError as error:
            reason = f"the executor has no memory left for this call: {error}"
            request.fail(Status(Result.ERROR_OUT_OF_MEMORY, reason))
        except Exception as error:  # an internal error: fail only this call
            reason = f"the executor failed: {type(error).__name__}: {error}"
            request.fail(Status(Result.ERROR_UNKNOWN, reason))

    def _run(
        self, request: Request, context: ClientContext | None, row: ExecutedOperation | None, record: records.Record
    ) -> None:
        if context is None:
            if row is None or row.scope is records.Scope.CONTEXT:
                raise self._no_context(record.context)
            row.run(request, record.body)
            return
        sticky = context.backend.status
        if sticky.code is not Result.SUCCESS:
            if request.answered:
                request.fail(sticky)
            return
        if request.waited:
            deferred = context.take_deferred()
            if deferred is not None:
                request.fail(deferred)
                return
        if row is None:
            raise BackendError(Result.ERROR_NOT_SUPPORTED, f"unknown opcode {record.opcode}")
        row.run(request, record.body)
        self.resources.backpressure.wait_for_room()

    def _no_context(self, context_id: int) -> BackendError:
        # Ids only grow: one below the latest named a context when its record was sent.
        if 0 < context_id <= self._latest:
            return BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
        return BackendError(Result.ERROR_INVALID_CONTEXT, f"no context {context_id} in this process")
