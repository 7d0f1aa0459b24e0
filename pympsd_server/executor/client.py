"""A client process in the executor: its command stream, its contexts, and the thread that executes its records.

Each client has its own worker thread, so a client that sends expensive records (translating PTX may take seconds)
delays only itself. The worker takes a record (`record_source`), finds its row in the table of operations
(`operations.table`) and executes it; an error of any kind fails only this record, never the thread. Errors have
CUDA's order: an unknown context, the context's sticky error, an error that an earlier asynchronous call left for the
next call that waits, then the operation's own errors.

The owner's thread ends a client (`drop`): it closes the stream, which ends the worker, destroys the contexts, and
waits at most one second for the worker.
"""

import socket
import threading
from typing import Final

from pympsd.errors import RemoteError
from pympsd.vocabulary.results import Result
from pympsd.wire import records
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.executor.graphs.streams import GraphBudget, GraphMemory
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
    """A client process that the executor serves.

    ``contexts`` has the client's contexts by the server's ids, which records contain.
    """

    def __init__(
        self,
        stream: socket.socket,
        staging: memoryview,
        pinned: PinnedPieces,
        shared_events: SharedEvents,
        shortages: Shortages,
        client_id: int,
        graph_memory: GraphMemory,
        native: NativeWorker | None = None,
    ) -> None:
        """Prepare a client; `start` begins to execute its records.

        Args:
            stream: The socket of its command stream.
            staging: The shared memory through which its copies pass.
            pinned: The client's page-locked host memory.
            shared_events: The events that processes share, for all clients.
            shortages: The requests for memory that other clients must free.
            client_id: The server's id of the client.
            graph_memory: The memory of the executable graphs of the client's user.
            native: The native worker that reads the ring and executes the records that it can; None if Python
                executes all.
        """
        self._stream = stream
        self._native = native
        self.contexts: dict[int, ClientContext] = {}
        answers = AnswerWriter(stream, native)
        budgets = Backpressure(), staging, pinned, GraphBudget(graph_memory)
        self.resources = ClientResources(answers, *budgets, self.contexts, shared_events, shortages, client_id)
        self._latest = 0
        """The highest id of this client's contexts so far."""
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

        Wait at most 1 s for the worker, which may be translating a large module.
        """
        if self._native is not None:
            self._native.close()
        self.resources.answers.close()
        for context in self.contexts.values():
            context.abandon()  # abandon all contexts first, so that they wait for their kernels together
        for context in self.contexts.values():
            context.destroy()
        self.resources.pinned.close()
        self.resources.backpressure.close()
        self.resources.shortages.client_left(self.resources.client)
        # A worker that is translating a large module ends after that; do not wait for it.
        self._worker.join(_JOIN_SECONDS)

    # --- the worker

    def _work(self) -> None:
        try:
            for incoming in read_socket(self._stream) if self._native is None else read_worker(self._native):
                self._execute(incoming)
        except RemoteError:
            pass  # after an invalid length later records cannot be found, so end the stream
        self.resources.answers.close()
        self._stream.close()

    def _execute(self, incoming: Incoming) -> None:
        """Execute a record; every error becomes its answer."""
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
        """Execute a record in its context, unless the context has a sticky or deferred error to deliver."""
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
        # Ids only grow: an id up to the latest one named a context when the record was sent.
        if 0 < context_id <= self._latest:
            return BackendError(Result.ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed")
        return BackendError(Result.ERROR_INVALID_CONTEXT, f"no context {context_id} in this process")
