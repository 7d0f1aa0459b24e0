"""The client's side of the ring of records in the memory shared with an executor (pympsd.wire.ring_layout)."""

from __future__ import annotations

import ctypes
import platform
from itertools import repeat
from typing import Final

from pympsd.wire.ring_layout import (
    ANSWERS,
    AREA_BYTES,
    ASLEEP,
    DATA,
    HEAD,
    IN_USE,
    RECORD_BYTES,
    RING_BYTES,
    SPIN_COUNT,
    TAIL,
)
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._command_stream.launch_cache import writer
from pympsd_client._command_stream.staging import StagingMemory

_WORD: Final = 8
_TAIL, _HEAD, _ASLEEP, _ANSWERS = (place // _WORD for place in (TAIL, HEAD, ASLEEP, ANSWERS))
_FENCED: Final = ("x86_64", "AMD64")
"""Machines on which taking and releasing a lock is a full fence. On others records go through the socket."""


def ring_of(staging: StagingMemory, offset: int, ring_bytes: int) -> Ring | None:
    """Return the ring behind the staging memory; None if this process cannot use one."""
    if ring_bytes != AREA_BYTES or platform.machine() not in _FENCED:
        return None
    return Ring(staging, offset)


class Ring:
    """The ring's writing end. Call ``put`` under a lock, and release the lock before reading ``asleep``."""

    def __init__(self, staging: StagingMemory, offset: int) -> None:
        """Begin to use the ring at an offset of the staging memory; no record may have been sent before."""
        area = memoryview((ctypes.c_char * AREA_BYTES).from_address(staging.address + offset)).cast("B")
        self._staging: Final = staging  # keeps the memory mapped
        self._words: Final = area[:DATA].cast("Q")
        self._data: Final = area[DATA : DATA + RING_BYTES]
        self._spins: Final = int(self._words[SPIN_COUNT // _WORD])
        self._seen = 0
        self.writer: Final = writer(staging, staging.address + offset, DATA, RING_BYTES, TAIL, HEAD, ASLEEP)
        """The extension's writer, which puts records in without Python; None without the extension."""
        self._words[IN_USE // _WORD] = 1

    def put(self, record: bytes) -> bool:
        """Put a record in; return False if it does not fit now.

        Call it under a lock, and release the lock before reading ``asleep``. Raise INVALID_VALUE for a record that
        never fits.
        """
        length = len(record)
        if length > RECORD_BYTES:
            raise invalid_value(f"a record of {length} bytes; {RECORD_BYTES} are allowed: use fewer parameters")
        if self.writer is not None:
            return self.writer.put(record)
        words = self._words
        tail = words[_TAIL]
        if length > RING_BYTES - tail + words[_HEAD]:
            return False
        start = tail % RING_BYTES
        end = start + length
        if end <= RING_BYTES:
            self._data[start:end] = record
        else:
            first = RING_BYTES - start
            self._data[start:] = record[:first]
            self._data[: length - first] = record[first:]
        words[_TAIL] = tail + length  # a single store, which publishes the record
        return True

    @property
    def asleep(self) -> bool:
        """Whether the executor waits for a byte on the socket; read this after the fence that follows ``put``."""
        return self._words[_ASLEEP] != 0

    def await_answer(self) -> None:
        """Spin until an answer comes, or for as long as the executor advises (at most a few microseconds)."""
        words, last_answer = self._words, self._seen
        for _ in repeat(None, self._spins):
            if words[_ANSWERS] != last_answer:
                break
        self._seen = words[_ANSWERS]
