"""The source of a client's records: its socket, or a native worker that leaves some to Python."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from pympsd.channel.sealed_file import make_sealed
from pympsd.wire import records, ring_layout
from pympsd_server.native.states import NativeAccess
from pympsd_server.native.worker import NativeWorker

SHARED_BYTES: Final = 16 << 20
"""The memory for bulk data that each client shares with the executor."""
_RECEIVE_BYTES: Final = 1 << 18
_SPIN_NS: Final = 50_000
_CLIENT_SPIN_COUNT: Final = 600
"""About 30 us of polling a word from Python."""
_SPINNING_TAKES_CORES: Final = 4
"""With fewer, a spinning thread blocks another from running."""


@frozen
class SharedMemory:
    """``view`` is the executor's mapping, ``fd`` the client's descriptor; the receiver of this object closes it."""

    fd: int
    view: memoryview


def create_shared_memory(ring_bytes: int = 0) -> SharedMemory:
    """Return new zeroed shared memory of SHARED_BYTES and a ring's; OSError if the system has none."""
    size = SHARED_BYTES + ring_bytes
    fd = make_sealed("pympsd-bulk", size)
    try:
        return SharedMemory(fd, memoryview(mmap.mmap(fd, size)))
    except BaseException:
        os.close(fd)
        raise


@frozen
class Incoming:
    """A record; ``refused`` is the CUresult with which the driver has refused it already, or 0."""

    record: records.Record
    refused: int = 0


def from_socket(stream: socket.socket) -> Iterator[Incoming]:
    """Yield records until the stream ends; RemoteError if no later record can be found."""
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
    """Return the worker of a client whose shared memory has a ring; BackendError if there is no memory for it."""
    spins = access is not None and len(os.sched_getaffinity(0)) >= _SPINNING_TAKES_CORES
    ring = memory[SHARED_BYTES:]
    if spins:
        ring[ring_layout.SPIN_COUNT : ring_layout.SPIN_COUNT + 8] = _CLIENT_SPIN_COUNT.to_bytes(8, "little")
    address = ctypes.addressof(ctypes.c_char.from_buffer(ring))
    return NativeWorker(stream.fileno(), address, access, _SPIN_NS if spins else 0)


def from_worker(worker: NativeWorker) -> Iterator[Incoming]:
    """Yield the records that a native worker leaves to Python, until the stream ends."""
    while (taken := worker.take()) is not None:
        opcode, flags, _, context, sequence = records.HEADER.unpack_from(taken.record)
        body = taken.record[records.HEADER_BYTES :]
        yield Incoming(records.Record(opcode, flags, context, sequence, body), taken.code)
