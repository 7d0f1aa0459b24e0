"""The memory shared with an executor: a mapping that keeps no descriptor, and the slots that records use.

The bytes of a copy are in a *slot* while its record is on the way. A slot is free again when the answer has come. For
a copy to the host, the slot is *kept* beyond the answer, until the caller has copied the bytes out. Several threads
may free a slot at the same time: the one that removes it from the dictionary of slots in use marks its grains free.
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
"""Slots begin and end at multiples of this many bytes, so that there are few grains to search."""


@frozen
class StagingSlot:
    """A range of the staging memory in use by one record of a context."""

    offset: int
    size: int
    context: Faultable
    context_id: int
    """The context's id when the record was made; a primary context may have closed and opened again since."""
    kept: bool
    """Whether the slot stays in use after the answer, until the bytes are copied out."""


class StagingMemory:
    """``size`` bytes mapped at ``address``, shared with an executor. Thread-safe.

    The memory is unmapped when the last reference to this object is dropped.
    """

    def __init__(self, fd: int, size: int, ring_bytes: int = 0) -> None:
        """Map the slots' ``size`` bytes and the ring behind them, and close ``fd``; raise OSError if that fails."""
        mapped = size + ring_bytes
        try:
            if not 0 < size <= mapped <= os.fstat(fd).st_size:  # touching a page beyond its end kills the process
                raise OSError(f"shared memory of {os.fstat(fd).st_size} bytes, but {mapped} were announced")
            # Not Python's mmap, which keeps a duplicate of the descriptor that a forked child could not close.
            self.address: Final = map_file(fd, mapped)
        finally:
            os.close(fd)
        self.size: Final = size
        self.max_slot_bytes: Final = max(size // 4 // GRAIN * GRAIN, min(size, GRAIN))
        """The maximum size of a slot in bytes, so that there are at least four, which keep both sides busy."""
        self._grains: Final = bytearray(-(-size // GRAIN))
        """A byte for each grain: 1 if it belongs to a slot in use."""
        self._slots: dict[int, StagingSlot] = {}
        self._taking = Lock()
        # Not at exit, when a daemon thread may be copying; the kernel then unmaps the memory.
        weakref.finalize(self, unmap, self.address, mapped).atexit = False

    def take(self, sequence: int, count: int, context: Faultable, is_kept: bool) -> int | None:
        """Take a slot of ``count`` bytes for a record and return its offset; None if none is free."""
        grains = min(-(-count // GRAIN), len(self._grains))
        with self._taking:
            first = self._grains.find(bytes(grains))
            offset = first * GRAIN
            size = min(grains * GRAIN, self.size - offset)
            if first < 0 or size < min(count, self.size):  # the last grain may be incomplete
                return None
            self._grains[first : first + grains] = b"\1" * grains
            self._slots[sequence] = StagingSlot(offset, size, context, context.id, is_kept)
            return offset

    def max_slot_bytes_for(self, threads: int) -> int:
        """Return the maximum size of a slot in bytes when several threads copy, each with two slots in turn."""
        if threads == 1:
            return self.max_slot_bytes
        return max(self.size // (2 * threads) // GRAIN * GRAIN, min(self.size, GRAIN))

    def slot_of(self, sequence: int) -> StagingSlot | None:
        """Return the slot that a record uses, or None."""
        return self._slots.get(sequence)

    def release_on_answer(self, sequence: int) -> None:
        """Let a kept slot become free with its answer, as other slots do."""
        slot = self._slots.get(sequence)
        if slot is not None:
            self._slots[sequence] = evolve(slot, kept=False)

    def free(self, sequence: int) -> StagingSlot | None:
        """Free the record's slot and return it; return None if it has no slot, or its slot is free already."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            first, grains = slot.offset // GRAIN, -(-slot.size // GRAIN)
            self._grains[first : first + grains] = bytes(grains)
        return slot

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return len(self._slots)


def map_at(fd: int, address: int, size: int, offset: int = 0) -> None:
    """Map ``size`` bytes of a descriptor's file at an address, and close the descriptor.

    Raise OSError; its errno is EEXIST if the addresses are in use.
    """
    try:
        if not 0 < size <= os.fstat(fd).st_size - offset:
            reason = f"shared memory of {os.fstat(fd).st_size} bytes, but {size} from {offset} on were announced"
            raise OSError(errno.EINVAL, reason)
        map_file(fd, size, address, offset)
    finally:
        os.close(fd)
