"""Device memory that overlapping copies pass through: one piece for each stream, charged to its client.

The copies of a stream are made one after another, so those that wait in it share a piece; it goes with the last.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from attrs import define

from pympsd_server.backends.budget import charged

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.stream import CudaStream

SCRATCH_BYTES: Final = 16 << 20
"""The largest piece; longer copies pass through it part by part."""


@define(eq=False)
class Scratch:
    """Device memory of ``size`` bytes at ``address``; ``users`` are the copies that are not done with it."""

    stream: CudaStream
    address: int
    size: int
    users: int = 1


class Scratches:
    """Those of one device. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of: dict[CudaStream, Scratch] = {}
        """The largest of each stream that has any."""

    def take(self, stream: CudaStream, count: int) -> Scratch:
        """Return what a copy of ``count`` bytes in a stream passes through; BackendError OUT_OF_MEMORY."""
        # By powers of two: copies that are ever a little longer make few pieces.
        size = min(1 << (count - 1).bit_length(), SCRATCH_BYTES)
        with self._lock:
            known = self._of.get(stream)
            if known is not None and known.size >= size:
                known.users += 1
                return known
        scratch = Scratch(stream, _allocate(stream, size), size)
        with self._lock:
            self._of[stream] = scratch
        return scratch

    def give(self, scratch: Scratch) -> None:
        """A copy is done with it, or was never issued."""
        with self._lock:
            scratch.users -= 1
            if scratch.users:
                return
            if self._of.get(scratch.stream) is scratch:
                del self._of[scratch.stream]
        context = scratch.stream.context
        context.device.memory.free(scratch.address)
        context.space.give(charged(scratch.size))


def _allocate(stream: CudaStream, size: int) -> int:
    space = stream.context.space
    space.take(charged(size), "an overlapping copy")
    try:
        return stream.context.device.memory.allocate(size)
    except BaseException:
        space.give(charged(size))
        raise
