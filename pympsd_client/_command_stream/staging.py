"""The memory shared with an executor: a mapping that keeps no descriptor, and the slots that records use.

The bytes of a copy lie in a *slot* while its record is on the way. A slot is free again when the answer has come. A
slot of a copy to the host is *kept* beyond the answer, until the caller has copied the bytes out. Several threads may
free a slot at the same time: it is free for the one that takes it out of the dictionary of the slots in use, and
that one marks its grains.
"""

from __future__ import annotations

import errno
import os
import weakref
from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from pympsd.channel.mapping import map_file, unmap

if TYPE_CHECKING:
    from pympsd_client._command_stream.answers import Faultable

GRAIN: Final = 65536
"""Slots begin and end at multiples of this many bytes, so that there are few of them."""


@frozen
class StagingSlot:
    """A range of the staging memory in use by one record of a context."""

    offset: int
    size: int
    context: Faultable
    context_id: int
    """The context's when the record was made: a primary context may have closed and opened again since."""
    kept: bool
    """Whether it stays in use after the answer, until the bytes are copied out."""


class StagingMemory:
    """``size`` bytes mapped at ``address``, shared with an executor. Thread-safe.

    The memory is unmapped with the last reference to this object. ``max_slot_bytes``: the most bytes of one slot, so
    that four of them keep both sides busy.
    """

    def __init__(self, fd: int, size: int, ring_bytes: int = 0) -> None:
        """Map a descriptor, the ring behind the bulk data too, and close it; OSError when it cannot be mapped."""
        mapped = size + ring_bytes
        try:
            if not 0 < size <= mapped <= os.fstat(fd).st_size:  # a page beyond its end would kill the process
                raise OSError(f"shared memory of {os.fstat(fd).st_size} bytes where {mapped} were announced")
            # Python's own mmap keeps a duplicate of the descriptor, which a forked child could not close.
            self.address: Final = map_file(fd, mapped)
        finally:
            os.close(fd)
        self.size: Final = size
        self.max_slot_bytes: Final = max(size // 4 // GRAIN * GRAIN, min(size, GRAIN))
        """The most bytes of one slot: four of them keep both sides busy."""
        self._grains: Final = bytearray(-(-size // GRAIN))
        """1 for each grain of a slot in use."""
        self._slots: dict[int, StagingSlot] = {}
        self._taking = Lock()
        # Not at exit: a daemon thread may still be copying then, and the kernel unmaps anyway.
        weakref.finalize(self, unmap, self.address, mapped).atexit = False

    def take(self, sequence: int, count: int, context: Faultable, is_kept: bool) -> int | None:
        """Take a slot of ``count`` bytes for a record and return its offset; None if none is free."""
        grains = min(-(-count // GRAIN), len(self._grains))
        with self._taking:
            first = self._grains.find(bytes(grains))
            offset = first * GRAIN
            size = min(grains * GRAIN, self.size - offset)
            if first < 0 or size < min(count, self.size):  # the last grain may be a part of one
                return None
            self._grains[first : first + grains] = b"\1" * grains
            self._slots[sequence] = StagingSlot(offset, size, context, context.id, is_kept)
            return offset

    def max_slot_bytes_for(self, threads: int) -> int:
        """Return the most bytes of a slot when several threads copy: two slots of each keep all of them busy."""
        if threads == 1:
            return self.max_slot_bytes
        return max(self.size // (2 * threads) // GRAIN * GRAIN, min(self.size, GRAIN))

    def slot_of(self, sequence: int) -> StagingSlot | None:
        """Return the slot that a record uses."""
        return self._slots.get(sequence)

    def release_on_answer(self, sequence: int) -> None:
        """Keep a kept slot no longer than until its answer."""
        slot = self._slots.get(sequence)
        if slot is not None:
            self._slots[sequence] = evolve(slot, kept=False)

    def free(self, sequence: int) -> StagingSlot | None:
        """Free the record's slot and return it; None when the record has none, or no more."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            first, grains = slot.offset // GRAIN, -(-slot.size // GRAIN)
            self._grains[first : first + grains] = bytes(grains)
        return slot

    @property
    def in_use(self) -> int:
        """Return the number of slots in use."""
        return len(self._slots)


def map_at(fd: int, address: int, size: int, offset: int = 0) -> None:
    """Map ``size`` bytes of a descriptor's file at an address, and close it; OSError, EEXIST when it is taken."""
    try:
        if not 0 < size <= os.fstat(fd).st_size - offset:
            reason = f"shared memory of {os.fstat(fd).st_size} bytes where {size} from {offset} on were announced"
            raise OSError(errno.EINVAL, reason)
        map_file(fd, size, address, offset)
    finally:
        os.close(fd)
