"""The command stream between a client and an executor: ONE table, from which both sides are made.

A record is a 24-byte header, its operands of 8 bytes each, and for some a tail of bytes, padded to 8 with zeros.
Header: opcode (u16), flags (u16), length of the whole record in bytes (u32), context (u64), sequence number (u64).
An answer has its record's opcode with ANSWER set and its sequence number; where a record names its context an
answer has the result, a CUresult number. An answer with another result than success carries a sentence in its tail.
"""

from __future__ import annotations

import struct
from typing import Final

from attrs import frozen

from pympsd.wire.errors import RemoteError

HEADER: Final = struct.Struct("=HHIQQ")
HEADER_BYTES: Final = HEADER.size
RECORD_LIMIT: Final = 1 << 20
"""No record is longer than 1 MiB; bulk data goes through the shared memory."""
ANSWER: Final = 0x8000
FLAG_QUIET: Final = 1
"""In a record: the sender does not wait for this answer; a failure is kept for its next waiting call."""
FLAG_COOPERATIVE: Final = 2
"""In a LAUNCH: all blocks of the grid must be resident together, or the launch is refused."""
FLAG_RUINED: Final = 1
"""In an answer: the result is sticky, the context is ruined and every later call in it answers the same."""

STREAM_LEGACY: Final = 0
FIRST_HANDLE: Final = 16
"""Handles below are never minted: 0, 1 and 2 mean streams in CUDA."""
GENERATION_SHIFT: Final = 40
"""A handle is ``generation << 40 | count``: a respawned executor refuses the old ones."""


@frozen
class Operation:
    """One row of the table: operands and answers are pairs of name and struct code (all 8 bytes wide)."""

    opcode: int
    name: str
    operands: tuple[tuple[str, str], ...]
    tail: str = ""
    answered: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    answer_tail: str = ""

    @property
    def layout(self) -> struct.Struct:
        """Header and operands together."""
        return struct.Struct(HEADER.format + "".join(code for _, code in self.operands))

    @property
    def answer_layout(self) -> struct.Struct:
        """The operands of the answer, after its header."""
        return struct.Struct("=" + "".join(code for _, code in self.answers))


def _u64(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "Q") for name in names)


OPERATIONS: Final = (
    Operation(1, "ALLOCATE", _u64("bytes"), answered=True, answers=_u64("address")),
    Operation(2, "FREE", _u64("address"), answered=True),
    Operation(3, "MEMORY_INFO", (), answered=True, answers=_u64("free", "total")),
    # Bulk copies: the data lies in the shared memory at `offset`; the answer gives the slot back.
    Operation(4, "COPY_TO_DEVICE", _u64("stream", "destination", "offset", "bytes"), answered=True),
    Operation(5, "COPY_FROM_DEVICE", _u64("stream", "source", "offset", "bytes"), answered=True),
    Operation(6, "COPY_ON_DEVICE", _u64("stream", "destination", "source", "bytes")),
    Operation(7, "FILL", _u64("stream", "destination", "value", "width", "count")),
    # An image arrives in parts, then is loaded; the answer's tail is JSON: functions, layouts, globals.
    Operation(8, "IMAGE_PART", _u64("module", "offset", "bytes"), answered=True),
    Operation(9, "LOAD_MODULE", _u64("module"), answered=True, answer_tail="json"),
    Operation(10, "UNLOAD_MODULE", _u64("module"), answered=True),
    Operation(
        11,
        "LAUNCH",
        _u64("stream", "module", "function", "grid_x", "grid_y", "grid_z")
        + _u64("block_x", "block_y", "block_z", "shared_bytes", "parameter_bytes"),
        tail="parameters",
    ),
    Operation(12, "CREATE_STREAM", (*_u64("stream", "flags"), ("priority", "q"))),
    Operation(13, "DESTROY_STREAM", _u64("stream")),
    Operation(14, "QUERY_STREAM", _u64("stream"), answered=True),
    Operation(15, "SYNCHRONIZE_STREAM", _u64("stream"), answered=True),
    Operation(16, "WAIT_EVENT", _u64("stream", "event")),
    Operation(17, "CREATE_EVENT", _u64("event", "flags")),
    Operation(18, "DESTROY_EVENT", _u64("event")),
    Operation(19, "RECORD_EVENT", _u64("event", "stream")),
    Operation(20, "QUERY_EVENT", _u64("event"), answered=True),
    Operation(21, "SYNCHRONIZE_EVENT", _u64("event"), answered=True),
    Operation(22, "ELAPSED_TIME", _u64("start", "end"), answered=True, answers=(("milliseconds", "d"),)),
    Operation(23, "SYNCHRONIZE_CONTEXT", (), answered=True),
    # A function of the client's: answered when the stream reaches it; the stream goes on with HOST_FUNCTION_DONE.
    Operation(24, "HOST_FUNCTION", _u64("stream", "token"), answered=True),
    Operation(25, "HOST_FUNCTION_DONE", _u64("token")),
    # Answered once at most half of the work that the client may have unfinished is. Who has host functions pending
    # asks in time: past the limit its records wait unread, and HOST_FUNCTION_DONE among them.
    Operation(26, "ROOM", (), answered=True),
    # Page-locked host memory at one address on both sides: its descriptor comes with the answer. It belongs to the
    # process: to free it no context is named (0), and it stays until the work so far is done.
    Operation(27, "ALLOCATE_PINNED", _u64("bytes"), answered=True, answers=_u64("address")),
    Operation(28, "FREE_PINNED", _u64("address"), answered=True),
    # Copies from and to that memory, not answered: it may change, and has changed, when the stream is done with them.
    Operation(29, "COPY_TO_DEVICE_PINNED", _u64("stream", "destination", "source", "bytes")),
    Operation(30, "COPY_FROM_DEVICE_PINNED", _u64("stream", "destination", "source", "bytes")),
)

BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
BY_OPCODE: Final = {operation.opcode: operation for operation in OPERATIONS}


@frozen
class Record:
    """One record or answer, taken apart. In an answer ``context`` is the result."""

    opcode: int
    flags: int
    context: int
    sequence: int
    body: bytes
    """Operands and tail."""


def padded(length: int) -> int:
    """Return a length rounded up to 8 bytes."""
    return (length + 7) & ~7


def pack(name: str, context: int, sequence: int, *operands: int, tail: bytes = b"", flags: int = 0) -> bytes:
    """Return the record of an operation by name (the quick paths keep their layouts instead)."""
    operation = BY_NAME[name]
    layout = operation.layout
    length = padded(layout.size + len(tail))
    head = layout.pack(operation.opcode, flags, length, context, sequence, *operands)
    return (head + tail).ljust(length, b"\0")


def pack_answer(
    opcode: int, sequence: int, result: int, operands: bytes = b"", tail: bytes = b"", flags: int = 0
) -> bytes:
    """Return an answer; ``operands`` are already packed by the operation's answer layout."""
    length = HEADER_BYTES + len(operands) + len(tail)
    # Answers are not padded: a reader takes the exact tail from the length.
    return HEADER.pack(opcode | ANSWER, flags, length, result, sequence) + operands + tail


class RecordReader:
    """Whole records out of a byte stream, however it was cut. Raises RemoteError on a length out of range."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Record]:
        """Take received bytes; return each record they complete."""
        buffer = self._buffer + data if self._buffer else data
        records = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            opcode, flags, length, context, sequence = HEADER.unpack_from(buffer, start)
            if not HEADER_BYTES <= length <= RECORD_LIMIT:
                raise RemoteError(
                    f"a record of {length} bytes: between {HEADER_BYTES} and {RECORD_LIMIT} are allowed"
                )
            if len(buffer) - start < length:
                break
            body = buffer[start + HEADER_BYTES : start + length]
            records.append(Record(opcode, flags, context, sequence, body))
            start += length
        self._buffer = buffer[start:]
        return records
