"""Device memory that overlapping copies pass through: one piece for each stream, charged to its client.

The copies of a stream run one after another, so they share a piece; the last copy that waits frees it.
"""

from collections.abc import Hashable
from threading import Lock
from typing import Final, Protocol

from attrs import define, field

from pympsd_server.backends.budget import round_up_to_granules
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory

SCRATCH_BYTES: Final = 16 << 20
"""The size of the largest piece in bytes; longer copies pass through it part by part."""


class Account(Protocol):
    """The account that a client's memory is charged to."""

    def take(self, count: int, what: str) -> None:
        """Charge bytes, or raise BackendError OUT_OF_MEMORY."""

    def give(self, count: int) -> None:
        """Release bytes that were charged."""


@define(eq=False)
class Scratch:
    """Device memory of ``size`` bytes at ``address``; ``users`` is the number of copies that are not done with it."""

    stream: Hashable
    account: Account
    address: int
    size: int
    users: int = 1


@define(eq=False)
class ScratchPool:
    """The pieces of one device. Safe to use from several threads."""

    _memory: DeviceMemory
    _lock: Lock = field(factory=Lock, init=False)
    _largest: dict[Hashable, Scratch] = field(factory=dict, init=False)
    """The largest piece of scratch memory of each stream; streams without scratch memory are missing."""

    def take(self, stream: Hashable, account: Account, count: int) -> Scratch:
        """Return a piece for a copy of ``count`` bytes in a stream, or raise BackendError OUT_OF_MEMORY."""
        # A power of two: copies that grow little by little then need few pieces.
        size = min(1 << (count - 1).bit_length(), SCRATCH_BYTES)
        with self._lock:
            scratch = self._largest.get(stream)
            if scratch is not None and scratch.size >= size:
                scratch.users += 1
                return scratch
        scratch = Scratch(stream, account, self._allocate(account, size), size)
        with self._lock:
            self._largest[stream] = scratch
        return scratch

    def give(self, scratch: Scratch) -> None:
        """Give back a piece when its copy is done with the piece, or was never issued."""
        with self._lock:
            scratch.users -= 1
            if scratch.users:
                return
            if self._largest.get(scratch.stream) is scratch:
                del self._largest[scratch.stream]
        self._memory.free(scratch.address)
        scratch.account.give(round_up_to_granules(scratch.size))

    def _allocate(self, account: Account, size: int) -> int:
        account.take(round_up_to_granules(size), "an overlapping copy")
        try:
            return self._memory.allocate(size)
        except BaseException:
            account.give(round_up_to_granules(size))
            raise
