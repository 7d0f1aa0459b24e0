"""A client made of bare records: no library between the test and the command stream."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from attrs import define, field

from pympsd.wire import records
from pympsd.wire.executor_messages import Attached
from pympsd.wire.module_layout import ModuleLayout
from pympsd_client._command_stream.ring import Ring
from pympsd_client._command_stream.staging import StagingMemory

SECONDS = 30.0
HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"
PTX = (
    HEADER
    + """
.visible .global .align 4 .u32 counter = 5;
.visible .entry empty() { ret; }
.visible .entry endless() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
.visible .entry store(.param .u64 where, .param .u32 value) {
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [where]; ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry trapped() { trap; ret; }
"""
)
EMPTY, ENDLESS, STORE, TRAPPED = range(4)


@define
class Answer:
    """An answer taken apart."""

    opcode: int
    flags: int
    result: int
    sequence: int
    body: bytes

    @property
    def reason(self) -> str:
        """The sentence of an error."""
        return self.body.decode()


@define
class RawClient:
    """One client process' stream and shared memory."""

    stream: socket.socket
    memory: mmap.mmap
    context: int
    generation: int
    attached: Attached
    ring: Ring | None = None
    """Where records go, if not to the socket."""
    received_fds: list[int] = field(factory=list)
    """Descriptors that came with answers and were not taken."""
    _answers: dict[int, Answer] = field(factory=dict)
    _received: bytes = b""
    _sequence: int = 0
    _handle: int = 15

    @classmethod
    def from_fds(
        cls, fds: tuple[int, ...], context: int, generation: int, attached: Attached, by_ring: bool = False
    ) -> RawClient:
        """Take the descriptors of Attached; ``by_ring``: and use the ring, which must be there."""
        stream = socket.socket(fileno=fds[0])
        stream.settimeout(SECONDS)
        memory = mmap.mmap(fds[1], attached.shared_bytes)
        if not by_ring:
            os.close(fds[1])
            return cls(stream, memory, context, generation, attached)
        assert attached.ring_bytes, "the executor has no native workers"
        shared = StagingMemory(fds[1], attached.shared_bytes, attached.ring_bytes)
        return cls(stream, memory, context, generation, attached, Ring(shared, attached.shared_bytes))

    # --- records

    def handle(self) -> int:
        """Mint a handle."""
        self._handle += 1
        return self.generation << records.GENERATION_SHIFT | self._handle

    def send(self, name: str, *operands: int, tail: bytes = b"", flags: int = 0, context: int | None = None) -> int:
        """Send a record; return its sequence number."""
        self._sequence += 1
        number = self.context if context is None else context
        self.post(records.pack(name, number, self._sequence, *operands, tail=tail, flags=flags))
        return self._sequence

    def post(self, record: bytes) -> None:
        """Send a record, whatever is in it."""
        if self.ring is None:
            self.stream.sendall(record)
            return
        deadline = time.monotonic() + SECONDS
        while not self.try_to_put(record):
            assert time.monotonic() < deadline, "the ring stays full"

    def try_to_put(self, record: bytes) -> bool:
        """Put a record in the ring; wait a little and return False when it is full."""
        assert self.ring is not None
        with threading.Lock():  # taken and released: the fence between the record and the check for a sleeping reader
            is_put = self.ring.put(record)
        if self.ring.asleep:
            with suppress(BlockingIOError):  # it has bells enough
                self.stream.send(b"\0", socket.MSG_DONTWAIT)
        if not is_put:
            select.select([], [], [], 0.001)
        return is_put

    def answer(self, sequence: int) -> Answer:
        """Wait for the answer of a sequence number; EOFError when the stream ends first."""
        while sequence not in self._answers:
            self._receive()
        return self._answers.pop(sequence)

    def arrived(self) -> frozenset[int]:
        """Return the sequence numbers of the answers that came and were not taken."""
        return frozenset(self._answers)

    def _receive(self) -> None:
        data, fds, _, _ = socket.recv_fds(self.stream, 1 << 16, 1)
        self.received_fds += fds
        if not data:
            raise EOFError
        self._received += data
        while len(self._received) >= records.HEADER_BYTES:
            opcode, flags, length, result, sequence = records.HEADER.unpack_from(self._received)
            if len(self._received) < length:
                return
            body = self._received[records.HEADER_BYTES : length]
            self._received = self._received[length:]
            assert opcode & records.ANSWER
            self._answers[sequence] = Answer(opcode & ~records.ANSWER, flags, result, sequence, body)

    def call(self, name: str, *operands: int, **options: Any) -> Answer:
        """Send a record and wait for its answer."""
        return self.answer(self.send(name, *operands, **options))

    def good(self, name: str, *operands: int, **options: Any) -> bytes:
        """The same, and it has to succeed; return the answer's body."""
        answer = self.call(name, *operands, **options)
        assert answer.result == 0, (name, answer.result, answer.reason)
        assert answer.flags == 0
        return answer.body

    # --- what clients do

    def allocate(self, count: int) -> int:
        """Return an address."""
        return int(struct.unpack("=Q", self.good("ALLOCATE", count))[0])

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total)."""
        free, total = struct.unpack("=QQ", self.good("MEMORY_INFO"))
        return free, total

    def write(self, address: int, data: bytes, stream: int = 0) -> None:
        """Copy bytes to the device through the shared memory."""
        self.memory[: len(data)] = data
        self.good("COPY_TO_DEVICE", stream, address, 0, len(data))

    def read(self, address: int, count: int, stream: int = 0) -> bytes:
        """Copy bytes from the device through the shared memory."""
        self.good("COPY_FROM_DEVICE", stream, address, 4096, count)
        return self.memory[4096 : 4096 + count]

    def load(self, ptx: str = PTX) -> tuple[int, ModuleLayout]:
        """Load a module; return its handle and layout."""
        handle = self.handle()
        image = ptx.encode()
        for start in range(0, len(image), 1000):
            part = image[start : start + 1000]
            self.memory[: len(part)] = part
            self.good("IMAGE_PART", handle, 0, len(part))
        return handle, ModuleLayout.decode(self.good("LOAD_MODULE", handle))

    def launch(self, module: int, function: int, parameters: bytes = b"", stream: int = 0, **options: Any) -> int:
        """Launch one block of one thread."""
        grid, block = options.get("grid", (1, 1, 1)), options.get("block", (1, 1, 1))
        return self.send("LAUNCH", stream, module, function, *grid, *block, 0, len(parameters), tail=parameters)

    def allocate_pinned(self, count: int) -> tuple[int, mmap.mmap]:
        """Return the address that records name page-locked memory by, and a mapping of it, wherever."""
        address, offset = struct.unpack("=QQ", self.good("ALLOCATE_PINNED", count))
        fd = self.received_fds.pop(0)
        try:
            return address, mmap.mmap(fd, -(-count // mmap.PAGESIZE) * mmap.PAGESIZE, offset=offset)
        finally:
            os.close(fd)

    def free_pinned(self, address: int) -> Answer:
        """Free it, naming no context."""
        return self.call("FREE_PINNED", address, context=0)

    def close(self) -> None:
        """Let go of everything."""
        while self.received_fds:
            os.close(self.received_fds.pop())
        self.stream.close()
        self.memory.close()
