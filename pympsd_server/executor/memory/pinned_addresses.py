"""Address ranges and byte limits of page-locked memory for the clients of one device.

All users of the machine share host memory, and the kernel kills executors first when it runs out. So a client may
have at most a quarter of it, and all clients together half of it. Freed memory counts until it is unmapped.
"""

import mmap
import os
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Final

from pympsd.vocabulary.device_properties import PINNED_BITS, PINNED_WINDOWS, pinned_window_of
from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError

MAX_PIECES: Final = 4096
"""The maximum number of pieces of a client: each is a mapping of this process, which may have 65,530."""
MAX_ALL_PIECES: Final = 16384
GRAIN_BYTES: Final = 1 << 16
"""The largest page size in bytes. Pieces begin at its multiples, with at least one page between two pieces."""
_MEMINFO: Final = "/proc/meminfo"
_GROUPS: Final = Path("/sys/fs/cgroup")


def machine_bytes(own_group: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS) -> int:
    """Return the memory of this machine in bytes, or a lower limit of this process's cgroup (cgroups(7), v2)."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        paths = [line[3:] for line in own_group.read_text().splitlines() if line.startswith("0::")]
        for group in (groups / path.lstrip("/") for path in paths):
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # the file does not exist, or contains "max"
                    limits.append(int((folder / "memory.max").read_text()))
    return min(limits)


def available_bytes() -> int:
    """Return the memory that is available now, in bytes (proc(5), MemAvailable)."""
    try:
        with open(_MEMINFO, "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return machine_bytes()


class PinnedAddresses:
    """The ranges in use, by owner. Thread-safe, even for finalizers that the garbage collector runs."""

    def __init__(
        self,
        ordinal: int,
        machine: int | None = None,
        available: Callable[[], int] = available_bytes,
        base: int = 0,
    ) -> None:
        """``ordinal``: the device's, which selects the window, unless the window's ``base`` is given.

        ``machine``: the machine's memory in bytes, by default as `machine_bytes` returns it.
        """
        # The lock is reentrant, because a finalizer may run in a thread that holds it.
        self._lock = RLock()
        self._base = base or (pinned_window_of(ordinal) if ordinal < PINNED_WINDOWS else 0)
        self._end = self._base + (1 << PINNED_BITS) if self._base else 0
        size = machine_bytes() if machine is None else machine
        self._client_limit, self._limit = size // 4, size // 2
        self._available = available
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, object]] = {}
        """The size in bytes and the owner of each range, by the range's first address."""
        self._bytes: Counter[object] = Counter()
        self._pieces: Counter[object] = Counter()
        self._next = self._start_anywhere()

    def _start_anywhere(self) -> int:
        # A program may still map memory of an ended executor, so the next executor starts elsewhere.
        if not self._base:
            return 0
        return self._base + int.from_bytes(os.urandom(4), "little") % (1 << PINNED_BITS - 17) * GRAIN_BYTES

    def take(self, size: int, owner: object) -> int:
        """Reserve ``size`` bytes, whole pages; return the address.

        Raise BackendError with OUT_OF_MEMORY, which names the limit.
        """
        with self._lock:
            self._check(size, owner)
            address = self._find(size)
            insort(self._starts, address)
            self._ranges[address] = size, owner
            self._count(owner, size, 1)
            self._next = address + _space_between(size)
        return address

    def offset_of(self, address: int) -> int:
        """Return the offset of an address in the window, which is also the offset in the owner's file."""
        return address - self._base

    def give(self, address: int) -> None:
        """Free a range that was unmapped."""
        with self._lock:
            size, owner = self._ranges.pop(address)
            self._starts.remove(address)
            self._count(owner, -size, -1)

    def charge(self, size: int, owner: object) -> Callable[[], None]:
        """Count memory that has no range here; return a function that stops counting it.

        Raise BackendError with OUT_OF_MEMORY.
        """
        with self._lock:
            self._check(size, owner)
            self._count(owner, size, 1)

        def discharge() -> None:
            with self._lock:
                self._count(owner, -size, -1)

        return discharge

    def _count(self, owner: object, size: int, pieces: int) -> None:
        for counter, amount in ((self._bytes, size), (self._pieces, pieces)):
            counter[owner] += amount
            if not counter[owner]:
                del counter[owner]

    def skip(self, address: int) -> None:
        """Avoid an address from now on, because something else is mapped there."""
        with self._lock:
            self._next = address + (1 << 30) if address + (1 << 30) < self._end else self._base

    def _check(self, size: int, owner: object) -> None:
        """Raise BackendError OUT_OF_MEMORY if an allocation would exceed a limit of its owner or the device."""
        if not self._base:
            raise _no_memory(f"only the first {PINNED_WINDOWS} devices share page-locked memory with their clients")
        used, all_used = self._bytes[owner], sum(self._bytes.values())
        if used + size > self._client_limit:
            raise _no_memory(
                f"{size} bytes of page-locked memory, with {used} in use, are more than a client may have: "
                f"{self._client_limit} bytes, a quarter of this machine's memory (freed memory "
                "counts until no work on the device can use it); free some, or use pageable memory"
            )
        if all_used + size > self._limit:
            raise _no_memory(
                f"{size} bytes of page-locked memory: the clients of this device have {all_used} of the "
                f"{self._limit} bytes, half of this machine's memory, that they may have; use pageable memory"
            )
        if self._pieces[owner] >= MAX_PIECES or len(self._ranges) >= MAX_ALL_PIECES:
            raise _no_memory(
                f"a client has at most {MAX_PIECES} pieces of page-locked memory, all of a device's clients "
                f"{MAX_ALL_PIECES}; allocate larger ones and divide them"
            )
        if size > self._available():
            raise _no_memory(f"this machine has no {size} bytes of memory to spare; use pageable memory")

    def _find(self, size: int) -> int:
        """Return the first free address after the range that was allocated last, or else from the window's start."""
        length = _space_between(size)
        for low in (self._next, self._base):
            at = low
            for start in islice(self._starts, max(bisect_right(self._starts, at) - 1, 0), None):
                if start + _space_between(self._ranges[start][0]) <= at:
                    continue
                if start - at >= length:
                    break
                at = start + _space_between(self._ranges[start][0])
            if at + length <= self._end:
                return at
        raise _no_memory(f"no range of {size} addresses is free for page-locked memory")

    @property
    def pieces(self) -> int:
        """The number of ranges in use."""
        return len(self._ranges)


def _space_between(size: int) -> int:
    """Return the minimum distance in bytes from the start of a piece to the start of the next one."""
    return -(-(size + mmap.PAGESIZE) // GRAIN_BYTES) * GRAIN_BYTES


def _no_memory(reason: str) -> BackendError:
    return BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
