"""A native worker without an executor: the test is its client and receives the records that it declines.

``take`` runs the worker in the test's own thread, up to the next record that Python would execute; ``start`` starts a
thread for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from attrs import define, field

from pympsd.wire import records, ring_layout
from pympsd_client._command_stream.ring import Ring
from pympsd_client._command_stream.staging import StagingMemory
from pympsd_server.executor.record_source import SHARED_BYTES, SharedMemory, create_shared_memory
from pympsd_server.native.states import ContextState, KernelRow, StreamState
from pympsd_server.native.worker import DeclinedRecord, NativeWorker
from tests.native.fake_driver import FakeDriver

SECONDS: Final = 30.0
"""The limit of every wait."""
CONTEXT_ID: Final = 1
MODULE: Final = 0x3000
FUNCTION: Final = 0xF00D
PARAMETER_BYTES: Final = 12
KERNELS: Final = ((FUNCTION, PARAMETER_BYTES, 1024, 1024, 4096), (FUNCTION + 1, 0, 128, 0, 0))
"""Functions of MODULE: CUfunction, parameter bytes, thread limit, static and maximal dynamic shared bytes."""

_SOURCES: Final = Path(__file__).resolve().parents[2] / "pympsd_server" / "native" / "src"


def source_constant(file: str, name: str) -> int:
    """Return the number of a constant in a C source, in its unit."""
    match = re.search(rf"\b{name}(?: =)? \(?(\d+)\b", (_SOURCES / file).read_text())
    assert match is not None, name
    return int(match[1])


@define(eq=False)
class Rig:
    """A worker, its client, and one context with a default stream and a module; to be closed."""

    driver: FakeDriver
    spin_ns: int = 0
    taken: Queue[DeclinedRecord | None] = field(factory=Queue, init=False)
    """The records that a worker with a thread declines; None at the end."""
    on_taken: Callable[[DeclinedRecord], object] = field(default=lambda taken: None, init=False)
    """Called in that thread before each is queued."""
    server_end: socket.socket = field(init=False)
    client_end: socket.socket = field(init=False)
    memory: SharedMemory = field(init=False)
    client_memory: StagingMemory = field(init=False)
    worker: NativeWorker = field(init=False)
    default_stream: StreamState = field(init=False)
    context: ContextState = field(init=False)
    thread: threading.Thread | None = field(default=None, init=False)
    _ring: Ring | None = field(default=None, init=False)
    _sequence: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.server_end, self.client_end = socket.socketpair()
        self.client_end.settimeout(SECONDS)
        self.memory = create_shared_memory(ring_layout.AREA_BYTES)
        self.client_memory = StagingMemory(self.memory.fd, SHARED_BYTES, ring_layout.AREA_BYTES)
        area = self.memory.view[SHARED_BYTES:]
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        self.worker = NativeWorker(self.server_end.fileno(), address, self.driver.native_access(), self.spin_ns)
        self.default_stream = self.driver.stream(is_default=True)
        self.context = self.add_context(CONTEXT_ID, self.default_stream)

    def add_context(self, context: int, default: StreamState) -> ContextState:
        """Add a context with a default stream and the module."""
        state = ContextState(default_stream=ctypes.pointer(default))
        self.worker.add_context(context, state)
        self.worker.add_module(context, MODULE, (KernelRow * len(KERNELS))(*KERNELS))
        return state

    def add_stream(self, handle: int, blocking: bool = False, context: int = CONTEXT_ID) -> StreamState:
        """Add a stream to a context."""
        stream = self.driver.stream(blocking=blocking)
        self.worker.add_stream(context, handle, stream)
        return stream

    # --- the client

    @property
    def words(self) -> memoryview:
        """The words of the ring's header, as the client sees them."""
        return self._area[: ring_layout.DATA].cast("Q")

    @property
    def data(self) -> memoryview:
        """The ring's data, as the client sees them."""
        return self._area[ring_layout.DATA :]

    @property
    def _area(self) -> memoryview:
        address = self.client_memory.address + SHARED_BYTES
        return memoryview((ctypes.c_char * ring_layout.AREA_BYTES).from_address(address)).cast("B")

    @property
    def ring(self) -> Ring:
        """The client's side of the ring, which is in use after the first access."""
        if self._ring is None:
            self._ring = Ring(self.client_memory, SHARED_BYTES)
        return self._ring

    def pack(self, name: str, *operands: int, **options: object) -> bytes:
        """Return a record of the context with the next sequence number."""
        self._sequence += 1
        return records.pack(name, CONTEXT_ID, self._sequence, *operands, **options)  # type: ignore[arg-type]

    def launch(self, stream: int = 0, parameters: bytes = bytes(PARAMETER_BYTES), **options: object) -> bytes:
        """Return a launch of one block of one thread."""
        return self.pack("LAUNCH", stream, MODULE, 0, *[1] * 6, 0, len(parameters), tail=parameters, **options)

    def put(self, *some: bytes) -> None:
        """Put records into the ring, as the client library does."""
        for record in some:
            with threading.Lock():  # the fence
                assert self.ring.put(record), "the ring is full"
            if self.ring.asleep:
                self.client_end.send(b"\0")

    def answers(self, count: int) -> list[int]:
        """Receive ``count`` answers, all successes; return their sequence numbers."""
        data = b""
        while len(data) < count * records.HEADER_BYTES:
            received = self.client_end.recv(count * records.HEADER_BYTES - len(data))
            assert received, "the stream has ended"
            data += received
        headers = list(records.HEADER.iter_unpack(data))
        assert all(opcode & records.ANSWER and not result for opcode, _, _, result, _ in headers), headers
        return [sequence for *_, sequence in headers]

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to read."""
        return bool(select.select([self.client_end], [], [], 0)[0])

    # --- the worker

    def take(self, *some: bytes) -> DeclinedRecord | None:
        """Put records and run the worker in this thread; return the next record that it declines."""
        self.put(*some)
        return self.worker.take()

    def run(self, *some: bytes) -> list[DeclinedRecord]:
        """Put records and run the worker; return all records that it declines."""
        last = self.pack("MEMORY_INFO")
        self.put(*some, last)
        taken = []
        while (fake_work := self.worker.take()) is not None and fake_work.record != last:
            taken.append(fake_work)
        assert fake_work is not None, "the worker has ended"
        return taken

    def start(self) -> None:
        """Start a thread for the worker."""
        self.thread = threading.Thread(target=self._work, name="rig")
        self.thread.start()

    def _work(self) -> None:
        while (fake_work := self.worker.take()) is not None:
            self.on_taken(fake_work)
            self.taken.put(fake_work)
        self.taken.put(None)

    def next(self) -> DeclinedRecord | None:
        """Return the next record that the worker's thread declines."""
        try:
            return self.taken.get(timeout=SECONDS)
        except Empty:
            raise AssertionError("the worker declined nothing") from None

    def drain(self) -> None:
        """Wait until the worker's thread has taken all records."""
        record = self.pack("MEMORY_INFO")
        self.put(record)
        while (taken := self.next()) is not None and taken.record != record:
            pass
        assert taken is not None, "the worker has ended"

    def close(self) -> None:
        """Close everything; the worker's thread must end by itself."""
        self.worker.close()
        with contextlib.suppress(OSError):
            self.server_end.shutdown(socket.SHUT_RDWR)
        if self.thread is not None:
            self.thread.join(SECONDS)
            assert not self.thread.is_alive(), "the worker does not end"
        del self.worker
        self.memory.view.release()
        self.server_end.close()
        self.client_end.close()
