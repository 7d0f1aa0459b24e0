"""Carry out the owner's requests: create and drop clients and their contexts.

The owner of an executor is its server. It attaches contexts of clients (a client's first context comes with the
command stream), detaches and terminates them, and drops whole clients. It also starts timelines, and reports the
memory that other executors' clients hold. One thread handles all requests, in order, so this module does not need
locks. The clients' workers run concurrently and share only objects that are documented as thread-safe.

A request that cannot be carried out is refused with a CUresult and a sentence, and leaves nothing behind: neither a
thread nor a socket nor shared memory of a client that could not be created.

`ExecutorTimeline` writes to the trace when the device worked, and when the work in each stream began and ended.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from pympsd.channel.descriptors import PROCESS_ADVICE, close_all, explain
from pympsd.channel.trace_file import TraceFile
from pympsd.vocabulary.results import Result
from pympsd.wire import executor_messages as messages
from pympsd.wire.ring_layout import AREA_BYTES
from pympsd_server.backends.budget import Shortage
from pympsd_server.backends.device_interface import Device
from pympsd_server.backends.interface import BackendError, Status
from pympsd_server.executor.client import CommandClient
from pympsd_server.executor.graphs.streams import GraphMemory
from pympsd_server.executor.memory.device_memory import Shortages
from pympsd_server.executor.memory.pinned import PinnedPieces
from pympsd_server.executor.memory.pinned_addresses import PinnedAddresses
from pympsd_server.executor.record_source import SHARED_BYTES, create_shared_memory, native_worker
from pympsd_server.executor.requests.client_context import ClientContext
from pympsd_server.executor.requests.request import SharedEvents
from pympsd_server.native.mirror import Workers, native_access

COMPUTE: Final = 0
"""The number of the device's own track, which belongs to the executor's process."""
STREAMS: Final = 1 << 16
"""The number of tracks that a context may have: a stream's track is STREAMS * its context's id + its own number."""


class ExecutorTimeline:
    """Writes a device's work to a trace. ``pids``: the PIDs of the contexts' clients."""

    def __init__(self, trace: TraceFile, ordinal: int, name: str, pids: Mapping[int, int]) -> None:
        self._trace, self._ordinal, self._pids = trace, ordinal, pids
        self._process = os.getpid()
        trace.name(self._process, f"device {ordinal}: {name}")
        trace.name(self._process, "work", COMPUTE)

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """Write a slice of the device's time to the trace."""
        client = self._pids.get(context, 0)
        self._trace.slice(self._process, COMPUTE, name, began, ended, client=client, context=context)

    def note_finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Write work in a stream to the trace, on a track of the stream's client."""
        client, track = self._pids.get(context, 0), context * STREAMS + stream
        self._trace.name(client, f"device {self._ordinal}, context {context}, stream {stream}", track)
        self._trace.slice(client, track, name, began, ended, waited_us=(began - submitted) / 1000)

    def note_fault(self, context: int, reason: str, at: int) -> None:
        """Write that a context has faulted because of its own work."""
        self._trace.instant(self._pids.get(context, 0), context * STREAMS, "fault", at, reason=reason)

    def close(self) -> None:
        """Stop writing to the trace."""
        self._trace.close()


class Send(Protocol):
    """Sends a message to the owner."""

    def __call__(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Send a message with descriptors, which are then closed."""


class Attachments:
    """The clients of one device. Only the thread that handles the owner's requests may use it."""

    def __init__(
        self,
        device: Device,
        generation: int,
        send: Send,
        ordinal: int = 0,
        name: str = "",
        report_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """``report_memory`` reports the memory that clients hold to the owner immediately."""
        self._device, self._ordinal, self._name = device, ordinal, name
        self._timeline: ExecutorTimeline | None = None
        self._pinned_addresses = PinnedAddresses(ordinal, base=device.host_memory_base)
        self._generation = generation
        self._send = send
        self._clients: dict[int, CommandClient] = {}
        self._graph_memory: WeakValueDictionary[int, GraphMemory] = WeakValueDictionary()
        """The memory of the executable graphs of each user who has clients, by UID."""
        self._shared_events = SharedEvents()
        self._shortages = Shortages(report_memory, send)
        self._owners: dict[int, CommandClient] = {}
        """The client of each context, by context id."""
        self._pids: dict[int, int] = {}
        """The PID of each context's client, by context id."""
        self.workers = Workers.choose(device)
        self._native = self.workers.native
        self._access = native_access(device)

    def handle(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Answer a request of the owner, which may have a descriptor."""
        try:
            if isinstance(message, messages.StartTimeline) and fds:
                self._start_timeline(message, *fds)
            else:
                close_all(fds)
                self._answer(message)
        except Shortage as error:
            self._shortages.report()
            self._send(messages.ExecutorRefused(message.request, error.code, error.reason, error.short))
        except BackendError as error:
            self._send(messages.ExecutorRefused(message.request, error.code, error.reason))
        except Exception as error:
            reason = f"the executor failed: {type(error).__name__}: {error}"
            self._send(messages.ExecutorRefused(getattr(message, "request", 0), Result.ERROR_UNKNOWN, reason))

    def _answer(self, message: Any) -> None:
        """Carry out one request of the owner and send its answer; raise BackendError if it fails."""
        match message:
            case messages.Attach():
                self._attach(message)
            case messages.Detach():
                client = self._owners.pop(message.context, None)
                if client is None:
                    raise BackendError(Result.ERROR_INVALID_CONTEXT, f"no context {message.context}")
                client.contexts.pop(message.context).destroy()
                del self._pids[message.context]
                self._send(messages.ExecutorDone(message.request, self._device.unfinished))
            case messages.Terminate():
                self._terminate(message)
            case messages.DropClient():
                self._drop(message)
            case messages.OthersMemory(count, groups):
                self._device.account_others(count, groups)
            case messages.RoomMade():
                self._shortages.deliver(message)
            case messages.StopTimeline():
                self._stop_timeline()
                self._send(messages.ExecutorDone(message.request))
            case messages.AskTrace():
                device = self._device
                contexts, batches = tuple(device.context_traces), tuple(device.batch_traces)
                self._send(messages.Trace(message.request, dict(device.trace), contexts, batches))
            case _:
                raise BackendError(Result.ERROR_NOT_SUPPORTED, f"{type(message).__name__} is not a request")

    def _attach(self, request: messages.Attach) -> None:
        """Create a context, and a command stream for a new client; send Attached with the descriptors."""
        if request.context in self._owners:
            raise BackendError(Result.ERROR_INVALID_VALUE, f"context {request.context} exists")
        if request.new_stream == (request.client in self._clients):
            state = "has" if request.new_stream else "has no"
            raise BackendError(Result.ERROR_INVALID_VALUE, f"client {request.client} {state} command stream")
        context = self._create_context(request)
        fds: tuple[int, ...] = ()
        try:
            client, fds = self._client(request)
            client.add(request.context, context)
        except BaseException:
            close_all(fds)  # the new client has no context: this ends its stream, and so its worker
            context.backend.destroy()
            raise
        self._owners[request.context] = client
        self._pids[request.context] = request.pid
        _, total = context.backend.memory_info()
        ring = AREA_BYTES if self._native else 0
        priorities = self._device.stream_priorities
        answer = messages.Attached(request.request, SHARED_BYTES, total, priorities, ring)
        self._send(answer, fds)

    def _create_context(self, request: messages.Attach) -> ClientContext:
        backend = self._device.create_context(
            request.client, request.quota, self._fault_report(request.context), request.context
        )
        return ClientContext(backend, self._generation)

    def _fault_report(self, context: int) -> Callable[[Status], None]:
        def report(status: Status) -> None:
            if (timeline := self._timeline) is not None:
                timeline.note_fault(context, status.reason, time.perf_counter_ns())
            self._send(messages.ContextFaulted(context, status.code, status.reason))

        return report

    def _client(self, request: messages.Attach) -> tuple[CommandClient, tuple[int, ...]]:
        """Return the client of a request, and for a new client the descriptors of its command stream."""
        if not request.new_stream:
            return self._clients[request.client], ()
        try:
            worker_end, client_end = socket.socketpair()
            memory = create_shared_memory(AREA_BYTES if self._native else 0)
        except OSError as error:  # unreferenced sockets are closed automatically
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, f"no command stream: {explain(error)}") from None
        try:
            worker = native_worker(worker_end, memory.view, self._access) if self._native else None
        except BackendError:
            close_all((worker_end.detach(), client_end.detach(), memory.fd))
            raise
        pinned = PinnedPieces(self._device, self._pinned_addresses, request.client)
        staging = memory.view[:SHARED_BYTES]
        graph_memory = self._graph_memory.setdefault(request.quota.user, GraphMemory())
        shared = self._shared_events, self._shortages
        client = CommandClient(worker_end, staging, pinned, *shared, request.client, graph_memory, worker)
        try:
            client.start()
        except RuntimeError as error:
            close_all((worker_end.detach(), client_end.detach(), memory.fd))
            # The mapping has a duplicate of the descriptor until its last view is dropped.
            client.resources.staging.release()
            memory.view.release()
            reason = f"no thread for this client: {error}; {PROCESS_ADVICE}"
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, reason) from None
        self._clients[request.client] = client
        return client, (client_end.detach(), memory.fd)

    def _terminate(self, request: messages.Terminate) -> None:
        client = self._owners.get(request.context)
        if client is None:
            raise BackendError(Result.ERROR_INVALID_CONTEXT, f"no context {request.context}")
        client.contexts[request.context].backend.terminate(Status(Result(request.code), request.reason))
        self._shortages.report()
        self._send(messages.ExecutorDone(request.request))

    def _drop(self, request: messages.DropClient) -> None:
        client = self._clients.pop(request.client, None)
        if client is not None:
            contexts = tuple(client.contexts)
            for context in contexts:
                del self._owners[context]
            client.drop()
            for context in contexts:
                del self._pids[context]
        self._send(messages.ExecutorDone(request.request, self._device.unfinished))

    def _start_timeline(self, request: messages.StartTimeline, fd: int) -> None:
        self._stop_timeline()
        timeline = ExecutorTimeline(TraceFile(fd), self._ordinal, self._name, self._pids)
        try:
            self._device.set_timeline(timeline)
        except BackendError:
            timeline.close()
            raise
        self._timeline = timeline
        self._send(messages.ExecutorDone(request.request))

    def _stop_timeline(self) -> None:
        if self._timeline is not None:
            self._device.set_timeline(None)
            self._timeline.close()
            self._timeline = None
