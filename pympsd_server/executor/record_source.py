"""Read the command stream: a client's records come from its socket, or through a native worker from a ring.

**Two ways.** Without a native worker a client writes its records to its socket, and `read_socket` splits the bytes
into records. With a native worker (for a device that offers `NativeAccess`, see `native.states`) the client writes
records into a *ring* in the memory that it shares with the executor; the socket carries only wake-ups and answers:

    shared memory:   | SHARED_BYTES of bulk data (staging) | ring: tail, head, flags, 512 KiB of records |

`read_worker` then runs the C worker (`native/src/worker.c`), which reads the records, executes launches and waits
itself (`fast_path.c`), and returns all other records to Python, in order. A client uses only one of the two ways.

**Trust.** A client is not trusted. It may change the shared memory at any time, so the worker copies a record before
it reads it, checks all positions against its own copy, and ends the stream at the first violation. The file is
sealed, so that a client cannot shrink it while the executor uses it. Only a client's own worker interprets its
records.

**Sleeping.** A worker polls for _SPIN_NS before it sleeps, and the client polls as long for its answer, unless the
machine has so few cores that a polling thread would keep another from running.
"""

import ctypes
import mmap
import os
import socket
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.channel.mapping import make_sealed
from pympsd.wire import records, ring_layout
from pympsd_server.native.states import NativeAccess
from pympsd_server.native.worker import NativeWorker

SHARED_BYTES: Final = 16 << 20
"""The size in bytes of the memory for bulk data that each client shares with the executor."""
_RECEIVE_BYTES: Final = 1 << 18
_SPIN_NS: Final = 50_000
_CLIENT_SPIN_COUNT: Final = 600
"""The number of times that a client polls a word from Python, which takes about 30 us."""
_MIN_SPINNING_PROCESSORS: Final = 4
"""The minimum number of processors for polling; with fewer, a polling thread keeps another from running."""


@frozen
class SharedMemory:
    """Memory shared with a client: ``view`` is the executor's mapping; ``fd``, the client's, is closed by the
    receiver.
    """

    fd: int
    view: memoryview


def create_shared_memory(ring_bytes: int = 0) -> SharedMemory:
    """Return new shared memory, all zeros, of SHARED_BYTES and the ring's bytes.

    Raise OSError if no memory is left.
    """
    size = SHARED_BYTES + ring_bytes
    fd = make_sealed("pympsd-bulk", size)
    try:
        return SharedMemory(fd, memoryview(mmap.mmap(fd, size)))
    except BaseException:
        os.close(fd)
        raise


@frozen
class Incoming:
    """A record to execute; ``refused`` is the CUresult with which the driver has refused it, or 0."""

    record: records.Record
    refused: int = 0


def read_socket(stream: socket.socket) -> Iterator[Incoming]:
    """Yield records until the stream ends. Raise RemoteError if later records cannot be found."""
    reader = records.RecordReader()
    while data := _receive(stream):
        for record in reader.feed(data):
            yield Incoming(record)


def _receive(stream: socket.socket) -> bytes:
    try:
        return stream.recv(_RECEIVE_BYTES)
    except OSError:
        return b""


def native_worker(stream: socket.socket, memory: memoryview, access: NativeAccess | None) -> NativeWorker:
    """Return the worker of a client whose shared memory has a ring. Raise BackendError if no memory is left."""
    spins = access is not None and len(os.sched_getaffinity(0)) >= _MIN_SPINNING_PROCESSORS
    ring = memory[SHARED_BYTES:]
    if spins:
        ring[ring_layout.SPIN_COUNT : ring_layout.SPIN_COUNT + 8] = _CLIENT_SPIN_COUNT.to_bytes(8, "little")
    address = ctypes.addressof(ctypes.c_char.from_buffer(ring))
    return NativeWorker(stream.fileno(), address, access, _SPIN_NS if spins else 0)


def read_worker(worker: NativeWorker) -> Iterator[Incoming]:
    """Yield the records that a native worker leaves to Python, until the stream ends."""
    while (item := worker.take()) is not None:
        opcode, flags, _, context, sequence = records.HEADER.unpack_from(item.record)
        body = item.record[records.HEADER_BYTES :]
        yield Incoming(records.Record(opcode, flags, context, sequence, body), item.code)
