"""Define the command stream between a client and an executor in one table, from which both sides are generated.

A record is a 24-byte header, its operands of 8 bytes each, and for some operations a tail, padded with zeros to a
multiple of 8 bytes.
Header: opcode (u16), flags (u16), length of the record in bytes, header included (u32), context (u64), sequence
number (u64). An answer has its record's opcode with ANSWER set, its record's sequence number, and in place of the
context the result, a CUresult number. If the result is not success, the tail is a sentence that explains it.
"""

import struct
from enum import Enum, IntEnum
from typing import Final

from attrs import frozen

from pympsd.errors import RemoteError

HEADER: Final = struct.Struct("=HHIQQ")
HEADER_BYTES: Final = HEADER.size
MAX_RECORD: Final = 1 << 20
"""The maximum size of a record, 1 MiB; bulk data is in the shared memory."""
ANSWER: Final = 0x8000
OUTPUT: Final = 0x3FF
"""The opcode of an answer without a record: text that a context's kernels have printed.

It is sent before the answer to a call that waits, with the same sequence number. The tail is the text; the result is
1 for standard output, 2 for standard error.
"""
FLAG_QUIET: Final = 1
"""In a record: the sender does not wait for the answer; a failure is kept for the sender's next call that waits."""
FLAG_COOPERATIVE: Final = 2
"""In a LAUNCH: all blocks of the grid must be resident together, or the launch is refused.

Bits 4 to 15 are the blocks of a cluster in x, y and z, 4 bits for each number minus 1; 0 without clusters.
"""
NO_CLUSTER: Final = (1, 1, 1)
MAX_CLUSTER: Final = 16
"""The maximum number of blocks of a cluster in one direction."""
_CLUSTER_SHIFTS: Final = (4, 8, 12)
MEMORY_SHAREABLE, MEMORY_OF_HOST = 1, 2
"""Flags of CREATE_MEMORY. SHAREABLE: the memory can be exported.

OF_HOST: it does not count as device memory, and the client maps it too.
"""
FLAG_STICKY: Final = 1
"""In an answer: the error is sticky; every later call in the context returns it."""

STREAM_LEGACY: Final = 0
FIRST_HANDLE: Final = 16
"""The lowest handle that is allocated, because 0, 1 and 2 mean streams in CUDA."""
GENERATION_SHIFT: Final = 40
"""A handle is ``generation << 40 | count``, so a respawned executor refuses old handles."""


class Kind(Enum):
    """The kind of a handle; the client allocates handles.

    A handle is unique in the client's connection to an executor, whatever its kind. The executor checks the kind of
    each handle in a record.
    """

    STREAM = "stream"
    EVENT = "event"
    MODULE = "module"
    MEMORY = "memory"
    """Physical memory, which is mapped at addresses."""
    GRAPH = "graph"
    """An executable graph."""


class Use(Enum):
    """The effect of an operation on the handle in an operand.

    The executor uses it to decide which handles of a record must exist before it, and which must not.
    """

    NAMED = "named"
    ANNOUNCED = "announced"
    """The handle is new; a later operation creates its object."""
    CREATED = "created"
    DESTROYED = "destroyed"


class Scope(Enum):
    """The objects that an operation concerns: a context, or the process, whose records have 0 as the context."""

    CONTEXT = "context"
    PROCESS = "process"


class Completion(Enum):
    """The time when an operation is done, and answered if it has an answer.

    This determines how long the calling thread of the client waits.
    """

    IMMEDIATE = "immediate"
    """The operation is done as soon as its record is executed."""
    QUEUED = "queued"
    """The operation is put in its stream, and nobody waits for it."""
    COMPLETE = "complete"
    """The operation is done when its own work is done or, if it only waits, when the work before it is done."""


class CopySpace(IntEnum):
    """The place of one side of a COPY_3D or COPY_3D_STAGED. Exactly one side of a COPY_3D_STAGED is STAGING."""

    DEVICE = 0
    """Device memory; the base is an address."""
    STAGING = 1
    """The shared memory; the base is an offset in it."""
    PINNED = 2
    """Page-locked memory from ALLOCATE_PINNED; the base is an address."""


@frozen
class Operand:
    """One operand, 8 bytes wide: a number, or a handle of a kind. ``code`` is its struct code.

    The executor checks a handle before the operation gets it.
    """

    name: str
    code: str = "Q"
    kind: Kind | None = None
    use: Use = Use.NAMED


@frozen
class Operation:
    """One row of the table. Answers have operands too, all 8 bytes wide.

    Both sides find the row by its name; the number is the opcode on the wire.
    """

    opcode: int
    name: str
    operands: tuple[Operand, ...]
    completion: Completion = Completion.IMMEDIATE
    answered: bool = False
    answers: tuple[Operand, ...] = ()
    tail: str = ""
    """The content after a record's operands, whose length in bytes is the last operand; empty if nothing
    may follow.
    """
    answer_tail: str = ""
    scope: Scope = Scope.CONTEXT
    brings_fd: bool = False
    """True if a file descriptor comes with the answer, unless the operation failed."""
    may_be_slow: bool = False
    """True if executing the operation may take long: a native worker first sends its pending answers."""
    is_native: bool = False
    """True if a native worker executes the operation if it can."""

    @property
    def layout(self) -> struct.Struct:
        """The layout of header and operands together."""
        return struct.Struct(HEADER.format + "".join(operand.code for operand in self.operands))

    @property
    def operand_layout(self) -> struct.Struct:
        """The layout of the operands alone."""
        return struct.Struct("=" + "".join(operand.code for operand in self.operands))

    @property
    def answer_layout(self) -> struct.Struct:
        """The layout of the answer's operands, which follow its header."""
        return struct.Struct("=" + "".join(operand.code for operand in self.answers))


def _u64(names: str) -> tuple[Operand, ...]:
    return tuple(Operand(name) for name in names.split())


def _handle(kind: Kind, use: Use = Use.NAMED) -> Operand:
    return Operand(kind.value, kind=kind, use=use)


_STREAM: Final = _handle(Kind.STREAM)
_EVENT: Final = _handle(Kind.EVENT)
_START_AND_END: Final = tuple(Operand(name, kind=Kind.EVENT) for name in ("start", "end"))
_MODULE: Final = _handle(Kind.MODULE)
_MEMORY_HANDLE: Final = _handle(Kind.MEMORY)
_NEW_MEMORY: Final = _handle(Kind.MEMORY, Use.CREATED)
_GRAPH: Final = _handle(Kind.GRAPH)
_SECRET: Final = _u64("secret_high secret_low")
_FILE: Final = _u64("process descriptor") + _SECRET

_SIDES: Final = (
    *_u64("destination_space destination destination_pitch destination_slice_pitch"),
    *_u64("source_space source source_pitch source_slice_pitch width height depth"),
)

# Opcodes by chapter of the driver API, 256 for each; unused numbers are for later operations of the chapter.
_MEMORY: Final = (
    Operation(0x101, "ALLOCATE", _u64("bytes"), answered=True, answers=_u64("address")),
    Operation(0x102, "FREE", _u64("address"), Completion.COMPLETE, answered=True),
    Operation(0x103, "MEMORY_INFO", (), answered=True, answers=_u64("free total")),
    # Bulk copies: the data is in the shared memory at `offset`; the answer frees its slot.
    Operation(0x104, "COPY_TO_DEVICE", (_STREAM, *_u64("destination offset bytes")), Completion.COMPLETE, True),
    Operation(0x105, "COPY_FROM_DEVICE", (_STREAM, *_u64("source offset bytes")), Completion.COMPLETE, answered=True),
    Operation(0x106, "COPY_ON_DEVICE", (_STREAM, *_u64("destination source bytes")), Completion.QUEUED),
    # `height` rows of `count` elements of `width` bytes, `pitch` bytes apart.
    Operation(0x107, "FILL", (_STREAM, *_u64("destination value width count pitch height")), Completion.QUEUED),
    # For each side: its CopySpace, base, and bytes between rows and between slices. A copy with a side in the shared
    # memory is COPY_3D_STAGED, whose answer frees the slot; COPY_3D is not answered.
    Operation(0x108, "COPY_3D", (_STREAM, *_SIDES), Completion.QUEUED),
    Operation(0x109, "COPY_3D_STAGED", (_STREAM, *_SIDES), Completion.COMPLETE, answered=True),
    # The memory belongs to the process, so the record that frees it has context 0. It stays until the work enqueued
    # before is done.
    Operation(0x110, "ALLOCATE_PINNED", _u64("bytes"), answered=True, answers=_u64("address offset"), brings_fd=True),
    Operation(0x111, "FREE_PINNED", _u64("address"), answered=True, scope=Scope.PROCESS),
    # Copies from and to page-locked memory are not answered: the client may change the source, and read the
    # destination, when the stream is done with them.
    Operation(0x112, "COPY_TO_DEVICE_PINNED", (_STREAM, *_u64("destination source bytes")), Completion.QUEUED),
    Operation(0x113, "COPY_FROM_DEVICE_PINNED", (_STREAM, *_u64("destination source bytes")), Completion.QUEUED),
)
_MODULES: Final = (
    # An image is sent in parts and then loaded. The answer's tail is JSON: functions, layouts, globals.
    Operation(0x201, "IMAGE_PART", (_handle(Kind.MODULE, Use.ANNOUNCED), *_u64("offset bytes")), answered=True),
    Operation(
        0x202,
        "LOAD_MODULE",
        (_handle(Kind.MODULE, Use.CREATED),),
        answered=True,
        answer_tail="json",
        may_be_slow=True,
    ),
    Operation(0x203, "UNLOAD_MODULE", (_handle(Kind.MODULE, Use.DESTROYED),), answered=True, may_be_slow=True),
    # Sent before the first launch: managed variables move to page-locked memory that the client has mapped too. With
    # is_in_use other modules of the same library use that memory, possibly on another device, so its content stays.
    Operation(0x204, "PLACE_MANAGED", (_MODULE, *_u64("address is_in_use")), answered=True, answer_tail="json"),
    # Translates a function that LOAD_MODULE described only by its name. The answer is its description.
    Operation(
        0x205, "LOAD_FUNCTION", (_MODULE, *_u64("function")), answered=True, answer_tail="json", may_be_slow=True
    ),
)
_EXECUTION: Final = (
    Operation(
        0x301,
        "LAUNCH",
        (
            _STREAM,
            _MODULE,
            *_u64("function grid_x grid_y grid_z block_x block_y block_z shared_bytes parameter_bytes"),
        ),
        Completion.QUEUED,
        tail="parameters",
        is_native=True,
    ),
    # A host function of the client. The answer comes when the stream reaches it; the stream resumes with
    # HOST_FUNCTION_DONE.
    Operation(0x302, "HOST_FUNCTION", (_STREAM, *_u64("token")), Completion.QUEUED, answered=True),
    Operation(0x303, "HOST_FUNCTION_DONE", _u64("token")),
    # Answered when at most half of the work that a client may have unfinished is left. A client with pending host
    # functions must send this in time: above the limit its records are not read, HOST_FUNCTION_DONE included.
    Operation(0x304, "ROOM", (), Completion.COMPLETE, answered=True),
    # CU_LIMIT_PRINTF_FIFO_SIZE or CU_LIMIT_MALLOC_HEAP_SIZE of the context, by their numbers.
    Operation(0x305, "SET_LIMIT", _u64("limit bytes"), answered=True),
)
_STREAMS: Final = (
    Operation(
        0x401,
        "CREATE_STREAM",
        (_handle(Kind.STREAM, Use.CREATED), *_u64("flags"), Operand("priority", "q")),
        may_be_slow=True,
    ),
    Operation(0x402, "DESTROY_STREAM", (_handle(Kind.STREAM, Use.DESTROYED),)),
    Operation(0x403, "QUERY_STREAM", (_STREAM,), answered=True, is_native=True),
    Operation(0x404, "SYNCHRONIZE_STREAM", (_STREAM,), Completion.COMPLETE, answered=True, is_native=True),
    Operation(0x405, "WAIT_EVENT", (_STREAM, _EVENT), Completion.QUEUED),
    Operation(0x406, "SYNCHRONIZE_CONTEXT", (), Completion.COMPLETE, answered=True, is_native=True),
)
_EVENTS: Final = (
    Operation(0x501, "CREATE_EVENT", (_handle(Kind.EVENT, Use.CREATED), *_u64("flags"))),
    Operation(0x502, "DESTROY_EVENT", (_handle(Kind.EVENT, Use.DESTROYED),)),
    Operation(0x503, "RECORD_EVENT", (_EVENT, _STREAM), Completion.QUEUED),
    Operation(0x504, "QUERY_EVENT", (_EVENT,), answered=True),
    Operation(0x505, "SYNCHRONIZE_EVENT", (_EVENT,), Completion.COMPLETE, answered=True),
    Operation(0x506, "ELAPSED_TIME", _START_AND_END, answered=True, answers=(Operand("milliseconds", "d"),)),
    # Clients of an executor name each other's events by a secret.
    Operation(0x507, "SHARE_EVENT", (_EVENT,), answered=True, answers=_SECRET),
    Operation(0x508, "OPEN_EVENT", (_handle(Kind.EVENT, Use.CREATED), *_SECRET), answered=True),
)

_VIRTUAL_MEMORY: Final = (
    # The client chooses addresses in its part of the device's window; all ranges are whole granules. Memory of
    # another process is named by a secret, which is in the name of the file whose descriptor was exported.
    Operation(0x701, "CREATE_MEMORY", (_NEW_MEMORY, *_u64("bytes flags")), answered=True),
    Operation(0x702, "RELEASE_MEMORY", (_handle(Kind.MEMORY, Use.DESTROYED),), answered=True),
    Operation(0x703, "MAP_MEMORY", (_MEMORY_HANDLE, *_u64("address")), answered=True),
    Operation(0x704, "UNMAP_MEMORY", _u64("address bytes"), answered=True),
    Operation(0x705, "SET_ACCESS", _u64("address bytes accessible"), answered=True),
    Operation(0x706, "EXPORT_MEMORY", (_MEMORY_HANDLE,), answered=True, brings_fd=True),
    Operation(0x707, "IMPORT_MEMORY", (_NEW_MEMORY, *_SECRET), answered=True, answers=_u64("bytes of_host")),
    # Makes an allocation importable; returns the secret of the memory that contains it, and its offset there.
    Operation(0x708, "SHARE_ALLOCATION", _u64("address"), answered=True, answers=_SECRET + _u64("offset")),
    # Makes memory a file, which a peer's executor opens by its descriptor in this process. The memory is a part of a
    # client's window, named by its start address (allocations or host memory), or memory without an address.
    Operation(0x709, "PUBLISH_WINDOW", _u64("address"), answered=True, answers=_FILE),
    Operation(0x70A, "MAP_PEER", (*_u64("address"), *_FILE), answered=True),
    Operation(0x70B, "UNMAP_PEER", _u64("address"), answered=True),
    Operation(0x70C, "PUBLISH_MEMORY", (_MEMORY_HANDLE,), answered=True, answers=_FILE + _u64("offset")),
    Operation(0x70D, "IMPORT_PEERS_MEMORY", (_NEW_MEMORY, *_FILE, *_u64("offset bytes")), answered=True),
)

_GRAPHS: Final = (
    # An executable graph is sent in parts (`pympsd.wire.graph_items`) and then created. Its records are queued
    # operations in stream 0, which stands for the stream of the launch. A HOST_FUNCTION's token is its number among
    # the graph's host functions.
    Operation(0x601, "GRAPH_PART", (_handle(Kind.GRAPH, Use.ANNOUNCED), *_u64("offset bytes")), answered=True),
    Operation(0x602, "INSTANTIATE_GRAPH", (_handle(Kind.GRAPH, Use.CREATED),), answered=True, may_be_slow=True),
    Operation(0x603, "LAUNCH_GRAPH", (_STREAM, _GRAPH), Completion.QUEUED),
    Operation(0x604, "DESTROY_GRAPH", (_handle(Kind.GRAPH, Use.DESTROYED),)),
    # Sent before a launch: one of the graph's host functions, by number. Answered and finished like HOST_FUNCTION.
    Operation(
        0x605, "GRAPH_HOST_FUNCTION", (_STREAM, _GRAPH, *_u64("token number")), Completion.QUEUED, answered=True
    ),
)

OPERATIONS: Final = (*_MEMORY, *_MODULES, *_EXECUTION, *_STREAMS, *_EVENTS, *_GRAPHS, *_VIRTUAL_MEMORY)

BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
BY_OPCODE: Final = {operation.opcode: operation for operation in OPERATIONS}


@frozen
class Record:
    """One decoded record or answer.

    ``context`` is the id of a record's context, 0 for records of the process; in an answer it is the result.
    """

    opcode: int
    flags: int
    context: int
    sequence: int
    body: bytes
    """The operands and the tail."""


def pad(length: int) -> int:
    """Return a length rounded up to a multiple of 8 bytes.

    >>> pad(0), pad(1), pad(16)
    (0, 8, 16)
    """
    return (length + 7) & ~7


def pack(name: str, context: int, sequence: int, *operands: int, tail: bytes = b"", flags: int = 0) -> bytes:
    """Return the record of an operation by name. Fast paths keep the layout instead of calling this.

    Args:
        name: The operation's name in the table; KeyError for any other name.
        context: The context's id; 0 for an operation of the process.
        sequence: The number by which the answer is recognised.
        operands: As many as the row has, unsigned 64-bit unless their code is another.
        tail: Bytes after the operands, padded here.
        flags: FLAG_QUIET, or flags of the operation.
    """
    operation = BY_NAME[name]
    layout = operation.layout
    length = pad(layout.size + len(tail))
    head = layout.pack(operation.opcode, flags, length, context, sequence, *operands)
    return (head + tail).ljust(length, b"\0")


def pack_answer(
    opcode: int, sequence: int, result: int, operands: bytes = b"", tail: bytes = b"", flags: int = 0
) -> bytes:
    """Return an answer; ``operands`` must be packed in the operation's answer layout."""
    length = HEADER_BYTES + len(operands) + len(tail)
    # Answers are not padded: the length gives the exact end of the tail.
    return HEADER.pack(opcode | ANSWER, flags, length, result, sequence) + operands + tail


class RecordReader:
    """Extracts complete records from a byte stream that is received in any chunks."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Record]:
        """Add received bytes; return each record that they complete.

        Raise RemoteError if a record's length is out of range.

        ``data`` may end in the middle of a record, which the next call continues.
        """
        buffer = self._buffer + data if self._buffer else data
        records = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            opcode, flags, length, context, sequence = HEADER.unpack_from(buffer, start)
            if not HEADER_BYTES <= length <= MAX_RECORD:
                raise RemoteError(f"a record of {length} bytes: between {HEADER_BYTES} and {MAX_RECORD} are allowed")
            if len(buffer) - start < length:
                break
            body = buffer[start + HEADER_BYTES : start + length]
            records.append(Record(opcode, flags, context, sequence, body))
            start += length
        self._buffer = buffer[start:]
        return records


def pack_launch_flags(cooperative: bool, cluster: tuple[int, int, int]) -> int:
    """Return the flags of a LAUNCH. ``cluster``: the blocks of a cluster in x, y and z, each 1 to MAX_CLUSTER.

    >>> cluster_of(pack_launch_flags(False, (2, 1, 4)))
    (2, 1, 4)
    """
    flags = FLAG_COOPERATIVE if cooperative else 0
    for size, shift in zip(cluster, _CLUSTER_SHIFTS, strict=True):
        flags |= (size - 1) << shift
    return flags


def cluster_of(flags: int) -> tuple[int, int, int]:
    """Return the blocks of a cluster in x, y and z from the flags of a LAUNCH; NO_CLUSTER if it has none.

    ``flags`` are not trusted: any 16 bits give numbers from 1 to MAX_CLUSTER.
    """
    x, y, z = ((flags >> shift) % MAX_CLUSTER + 1 for shift in _CLUSTER_SHIFTS)
    return x, y, z
