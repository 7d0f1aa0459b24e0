"""A fake executor: the other end of a command stream, in a thread, with a hook for every record."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable

from attrs import define, field

from pympsd.vocabulary.device_facts import DeviceFacts, window_of
from pympsd.wire import records
from pympsd.wire.records import Record
from pympsd_client._arguments.errors import lost
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.connection import Device, Opened, open_stream
from pympsd_client._objects.context import Context

SHARED_BYTES = 1 << 20
OPCODES = {name: operation.opcode for name, operation in records.BY_NAME.items()}

FACTS = DeviceFacts(
    name="NVIDIA Fake",
    uuid="GPU-00112233-4455-6677-8899-aabbccddeeff",
    pci="0000:1A.06.00",
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_bytes=1 << 30,
    attributes={
        "MULTIPROCESSOR_COUNT": 132,
        "MAX_REGISTERS_PER_BLOCK": 65536,
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        **{f"MAX_BLOCK_DIM_{axis}": most for axis, most in zip("XYZ", (1024, 1024, 64), strict=True)},
        **{f"MAX_GRID_DIM_{axis}": most for axis, most in zip("XYZ", (2**31 - 1, 65535, 65535), strict=True)},
    },
)


@define(eq=False)
class FakeExecutor:
    """Answers what is answered: with success, or with what ``reply`` returns for a record (None: no answer yet).

    ``reply`` gets the record and returns a packed answer. Copies move bytes in and out of ``memory`` by address.
    """

    reply: Callable[[Record], bytes | None] | None = None
    serial: int = 1
    ordinal: int = 0
    seen: list[Record] = field(factory=list)
    memory: dict[int, int] = field(factory=dict)
    stream: socket.socket = field(init=False)
    transport: Transport = field(init=False)
    _shared: mmap.mmap = field(init=False)
    _thread: threading.Thread = field(init=False)
    reading: threading.Event = field(factory=threading.Event, init=False)
    """Cleared: the executor takes no records."""

    def __attrs_post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        fd = os.memfd_create("fake", os.MFD_CLOEXEC)
        os.ftruncate(fd, SHARED_BYTES)
        self._shared = mmap.mmap(fd, SHARED_BYTES)
        self.stream = ours
        self.transport = open_stream((theirs.detach(), fd), SHARED_BYTES, lost)
        self.reading.set()
        self._thread = threading.Thread(target=self._run, name="fake executor")
        self._thread.start()

    def context(self) -> Context:
        """Return an open context of this executor."""
        device = Device(self.ordinal, self.ordinal, FACTS)
        context = Context(device, 0, primary=False)
        context.open(self)
        return context

    # --- the Connection a context opens through

    devices = (Device(0, 0, FACTS), Device(1, 1, FACTS))
    driver_version = 13000
    provisions = True
    per_context = False

    def open_context(self, device: Device, flags: int, affinity: int | None = None) -> Opened:
        """Open at once."""
        return Opened(self.serial, 1, self.transport, affinity or 132, 1 << 30, (0, -5))

    def close_context(self, device: Device, serial: int) -> None:
        """Close at once."""

    def check(self) -> None:
        """It is always there."""

    def abandon(self) -> None:
        """Let go of the client's end."""
        self.transport.abandon()

    def close(self) -> None:
        """End both ends."""
        self.reading.set()
        self.transport.close()
        self.hang_up()
        self._thread.join()
        self.stream.close()
        self._shared.close()

    # --- the executor

    def hang_up(self) -> None:
        """End the stream, as an executor that died."""
        try:
            self.stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def answer(
        self, record: Record, operands: bytes = b"", result: int = 0, reason: str = "", flags: int = 0
    ) -> bytes:
        """Return an answer to a record."""
        return records.pack_answer(record.opcode, record.sequence, result, operands, reason.encode(), flags)

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        self.stream.sendall(data)

    def _run(self) -> None:
        reader = records.RecordReader()
        while self.reading.wait() and (data := self._receive()):
            for record in reader.feed(data):
                self.seen.append(record)
                self._execute(record)

    def _receive(self) -> bytes:
        try:
            return self.stream.recv(4096)
        except OSError:
            return b""

    def _execute(self, record: Record) -> None:
        operation = records.BY_OPCODE[record.opcode]
        if not operation.answered:
            return
        try:
            answer = self.reply(record) if self.reply is not None else self.succeed(record)
            if answer is not None:
                self.send(answer)
        except OSError:  # the client has gone
            return

    def operands(self, record: Record) -> tuple[int, ...]:
        """Return a record's operands."""
        count = len(records.BY_OPCODE[record.opcode].operands)
        return tuple(int.from_bytes(record.body[8 * i : 8 * i + 8], "little") for i in range(count))

    def succeed(self, record: Record) -> bytes:
        """Do what a record asks, as far as memory goes, and return its answer."""
        operation = records.BY_OPCODE[record.opcode]
        if operation.name == "ALLOCATE":
            return self.answer(record, operation.answer_layout.pack(window_of(self.ordinal) + (1 << 20)))
        if operation.name == "COPY_TO_DEVICE":
            _, address, offset, count = self.operands(record)
            self.memory.update(enumerate(self._shared[offset : offset + count], address))
        if operation.name == "COPY_FROM_DEVICE":
            _, address, offset, count = self.operands(record)
            self._shared[offset : offset + count] = bytes(self.memory.get(address + i, 0) for i in range(count))
        return self.answer(record, bytes(operation.answer_layout.size))
