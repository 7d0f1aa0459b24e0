"""A fake executor: the other end of a command stream, by socket or ring, with a hook for every record."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import select
import socket
import termios
import threading
from collections.abc import Callable

from attrs import define, field

from pympsd.vocabulary.device_properties import DeviceProperties, window_of
from pympsd.wire import records
from pympsd.wire.module_layout import ModuleLayout
from pympsd.wire.records import Record
from pympsd.wire.ring_layout import AREA_BYTES, ASLEEP, DATA, HEAD, RING_BYTES, TAIL
from pympsd_client._arguments.errors import CudaError, connection_lost
from pympsd_client._command_stream.transport import Transport
from pympsd_client._connect.connection import Opened, VisibleDevice, open_stream
from pympsd_client._objects.context import Context

SHARED_BYTES = 1 << 20
OPCODES = {name: operation.opcode for name, operation in records.BY_NAME.items()}

PROPERTIES = DeviceProperties(
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
    """Answers every record that has an answer: with success, or with what ``reply`` returns (None: no answer yet).

    ``reply`` gets the record and returns a packed answer. Copies move bytes in and out of ``memory`` by address.
    """

    reply: Callable[[Record], bytes | None] | None = None
    context_id: int = 1
    ordinal: int = 0
    ring: bool = False
    """Records come by a ring, whose reader reports that it sleeps, so that a bell follows each record."""
    on_end: Callable[[str], CudaError] = connection_lost
    layout: ModuleLayout = field(factory=lambda: ModuleLayout((), ()))
    """What loading a module answers."""
    seen: list[Record] = field(factory=list)
    memory: dict[int, int] = field(factory=dict)
    stream: socket.socket = field(init=False)
    transport: Transport = field(init=False)
    shared: mmap.mmap = field(init=False)
    bells: int = field(default=0, init=False)
    _client_end: socket.socket = field(init=False)
    _thread: threading.Thread = field(init=False)
    reading: threading.Event = field(factory=threading.Event, init=False)
    """Cleared: the executor takes no records."""

    def __attrs_post_init__(self) -> None:
        own_end, peer_end = socket.socketpair()
        fd = os.memfd_create("fake", os.MFD_CLOEXEC)
        ring_bytes = AREA_BYTES if self.ring else 0
        os.ftruncate(fd, SHARED_BYTES + ring_bytes)
        self.shared = mmap.mmap(fd, SHARED_BYTES + ring_bytes)
        if self.ring:
            self._set_word(ASLEEP, 1)
        self.stream, self._client_end = own_end, peer_end.dup()
        self.transport = open_stream((peer_end.detach(), fd), SHARED_BYTES, self.on_end, ring_bytes)
        self.reading.set()
        self._thread = threading.Thread(target=self._run, name="fake executor")
        self._thread.start()

    def context(self) -> Context:
        """Return an open context of this executor."""
        device = VisibleDevice(self.ordinal, self.ordinal, PROPERTIES)
        context = Context(device, 0, primary=False)
        context.open(self)
        return context

    # --- the Connection a context opens through

    devices = (VisibleDevice(0, 0, PROPERTIES), VisibleDevice(1, 1, PROPERTIES))
    driver_version = 13000
    provisions = True
    per_context = False

    def open_context(
        self, device: VisibleDevice, flags: int, affinity: int | None = None, partition: int | None = None
    ) -> Opened:
        """Open immediately."""
        return Opened(self.context_id, 1, self.transport, affinity or 132, 1 << 30, (0, -5))

    def close_context(self, device: VisibleDevice, context_id: int) -> None:
        """Close immediately."""

    def check(self) -> None:
        """It is always there."""

    def abandon(self) -> None:
        """Close the client's end."""
        self.transport.abandon()

    def close(self) -> None:
        """End both ends."""
        self.reading.set()
        self.transport.close()
        self.hang_up()
        self._thread.join()
        self._client_end.close()
        self.stream.close()
        self.shared.close()

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

    # --- the client's end of the socket, as the system sees it

    def limit_buffers(self, size: int) -> None:
        """Limit the bytes that each side can send before the other receives them."""
        for end in (self.stream, self._client_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def client_is_full(self) -> bool:
        """Return whether the client's socket is full."""
        poll = select.poll()
        poll.register(self._client_end, select.POLLOUT)
        return not poll.poll(0)

    def unread(self) -> int:
        """Return the number of bytes that the client has not received yet."""
        count = array.array("i", [0])
        fcntl.ioctl(self._client_end, termios.FIONREAD, count)
        return count[0]

    # --- the ring

    def _word(self, offset: int) -> int:
        return int.from_bytes(self.shared[SHARED_BYTES + offset : SHARED_BYTES + offset + 8], "little")

    def _set_word(self, offset: int, value: int) -> None:
        self.shared[SHARED_BYTES + offset : SHARED_BYTES + offset + 8] = value.to_bytes(8, "little")

    def refuse_bells(self) -> None:
        """Say from now on that the reader is awake."""
        self._set_word(ASLEEP, 0)

    @property
    def ring_room(self) -> int:
        """Return the number of free bytes of the ring."""
        return RING_BYTES - self._word(TAIL) + self._word(HEAD)

    def _take(self) -> bytes:
        head, tail = self._word(HEAD), self._word(TAIL)
        begin, first = SHARED_BYTES + DATA, head % RING_BYTES
        end = first + tail - head
        taken = self.shared[begin + first : begin + min(end, RING_BYTES)]
        taken += self.shared[begin : begin + max(0, end - RING_BYTES)]
        self._set_word(HEAD, tail)
        return taken

    def _run(self) -> None:
        reader = records.RecordReader()
        while self.reading.wait() and (data := self._receive()):
            if self.ring:
                self.bells += len(data)
                self.stream.recv(len(data))
                data = self._take()
            for record in reader.feed(data):
                self.seen.append(record)
                self._execute(record)

    @property
    def has_unread_bells(self) -> bool:
        """Whether there are bells that are not counted yet."""
        return bool(select.select([self.stream], [], [], 0)[0])

    def _receive(self) -> bytes:
        """Return records, or of a ring its bells, which stay in the socket until they are counted."""
        try:
            return self.stream.recv(4096, socket.MSG_PEEK if self.ring else 0)
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
            self.memory.update(enumerate(self.shared[offset : offset + count], address))
        if operation.name == "COPY_FROM_DEVICE":
            _, address, offset, count = self.operands(record)
            self.shared[offset : offset + count] = bytes(self.memory.get(address + i, 0) for i in range(count))
        if operation.name == "LOAD_MODULE":
            return self.answer(record, self.layout.encode())
        return self.answer(record, bytes(operation.answer_layout.size))
