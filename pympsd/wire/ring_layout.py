"""Define the ring of records in the memory that a client shares with an executor, behind the bulk data.

Offsets are bytes from the ring's start, words are 64 bits. One side writes each word, and each word that the other
side watches has a cache line of its own. Positions count bytes and never wrap; a record lies at its position modulo
RING_BYTES, in two pieces if it reaches the end. If ASLEEP is set after a client has moved TAIL, the client sends any
byte on the stream's socket, and the executor then reads the ring.

::

    offset     word               written by
    0, 8       TAIL, IN_USE       client
    64         HEAD               executor
    128, 136   ASLEEP, SPIN_COUNT executor
    192        ANSWERS            executor
    4096       records            client, between HEAD and TAIL modulo RING_BYTES
"""

from __future__ import annotations

from typing import Final

TAIL: Final = 0
"""The offset of the word that the client writes: the position at which its next record will begin."""
IN_USE: Final = 8
"""The offset of the word that the client writes first: 1 means that its records are in the ring, and that bytes on
the socket only wake the executor.
"""
HEAD: Final = 64
"""The offset of the word that the executor writes: the position of the record that it reads next."""
ASLEEP: Final = 128
"""The offset of the word that the executor writes: not 0 while it waits for a byte on the socket."""
SPIN_COUNT: Final = 136
"""The offset of the word that the executor writes once: the number of times that a client should read ANSWERS before
it sleeps.
"""
ANSWERS: Final = 192
"""The offset of the word that the executor increases before it sends answers."""
DATA: Final = 4096
"""The offset of the first record."""
RING_BYTES: Final = 1 << 19
"""The maximum number of bytes of records that the executor has not read yet."""
AREA_BYTES: Final = DATA + RING_BYTES
RECORD_BYTES: Final = RING_BYTES // 4
"""The maximum size of a record in the ring. (Parameters of a launch: at most 4 KiB, from Volta on 32,764 bytes.)"""
