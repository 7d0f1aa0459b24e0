"""Page-locked host memory of this process, and its accounting (CUDA driver API, Memory Management).

- **Allocated** memory (cuMemHostAlloc) is shared with the executor of the context that was current. That executor
  copies from and to it directly; copies of other devices treat it as pageable memory. Kernels access it at the same
  address, also kernels of other emulated devices (`peer_access`).
- **Registered** memory (cuMemHostRegister) stays the program's own until the program requests the address at which
  kernels access it. Then shared pages replace the program's pages in place, with the same content. Unregistering
  replaces them by private pages again (`RegisteredPages`). No Python code runs while a page is replaced, but a native
  thread may, and what it writes to that page at that moment may be lost. During a fork the pages are private, so that
  parent and child do not write to each other's memory.
- **Bounds.** Before Volta the size of /dev/shm bounds a client's page-locked memory (MPS documents, 2.3.2).
  Allocations in progress count (``_pending_bytes``).
- As in CUDA, every context of the process can use the memory, and it is freed, or no longer registered, when the
  context in which it was allocated or registered is destroyed. cudaDeviceReset frees memory, too, but what was
  registered stays registered (both recorded on an H200).

Copies look up addresses without a lock. So the starts and regions are one tuple, which is replaced as a whole.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from pympsd.channel.mapping import map_nothing, unmap
from pympsd.vocabulary.results import Result
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._objects.context import when_closed
from pympsd_client._objects.handle_table import next_buffer_id
from pympsd_client._objects.memory.peer_access import peer_access
from pympsd_client._objects.memory.shared_pages import SharedPages, share

if TYPE_CHECKING:
    from pympsd_client._command_stream.transport import Transport
    from pympsd_client._objects.context import Context

try:
    from pympsd_client.native import _pages
except ImportError:  # pympsd was installed without a C compiler
    _pages = None  # type: ignore[assignment]

_LINE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ (\S+ [0-9]+) *(.*)\n")
_PRIVATE: Final = "rw-p"


@frozen(eq=False)
class RegisteredPages:
    """``pages`` of an executor that are mapped at ``start`` in this process, too."""

    start: int
    pages: SharedPages

    @property
    def end(self) -> int:
        """The address after the last of the pages in this process."""
        return self.start + self.pages.size

    def replace_pages(self) -> None:
        """Replace the program's pages for the first time; raise CudaError.

        The error is NOT_SUPPORTED for pages that cannot be replaced, such as shared or read-only ones.
        """
        if _pages is None:
            raise _refusal("this client was installed without a C compiler, and cannot replace pages")
        at = self.start
        for low, high, mode, _, name in _mappings():
            if low <= at < high and at < self.end:
                if mode != _PRIVATE or name.startswith("[stack"):
                    raise _refusal(
                        f"{at:#x} is in a mapping {mode} {name}".rstrip() + ", not private memory to write to"
                    )
                at = high
        if at < self.end:
            raise invalid_value(f"nothing is mapped at {at:#x}")
        self.share([(self.start, self.end)])

    def share(self, ranges: list[tuple[int, int]]) -> None:
        """Replace the program's pages in some ranges by the shared ones; on failure undo this and raise CudaError."""
        for low, high in ranges:
            try:
                done = _pages.replace(low, self.pages.address + low - self.start, high - low, True)
            except ValueError as error:
                raise _refusal(f"{low:#x}: {error}") from None
            if done < high - low:
                self.make_private()
                raise CudaError(Result.ERROR_OUT_OF_MEMORY, f"the system cannot map {high - low} bytes again")

    def make_private(self) -> list[tuple[int, int]]:
        """Replace the shared pages by private ones, except where the program has unmapped them.

        Return the replaced ranges.
        """
        own_file = next((file for low, high, _, file, _ in _mappings() if low <= self.pages.address < high), None)
        ranges = [
            (max(low, self.start), min(high, self.end))
            for low, high, _, file, _ in _mappings()
            if file == own_file and low < self.end and self.start < high
        ]
        for low, high in ranges:
            new_pages = map_nothing(high - low)
            done = _pages.replace(low, new_pages, high - low, False)
            if done < high - low:  # the remaining pages stay shared
                unmap(new_pages + done, high - low - done)
        return ranges


def _mappings() -> Iterator[tuple[int, int, str, str, str]]:
    """Yield start, end, mode, device and inode, and name of every mapping of this process (proc(5), maps)."""
    with open(f"/proc/{os.getpid()}/maps", encoding="utf-8", errors="replace") as lines:
        for match in map(_LINE.fullmatch, lines):
            if match is not None:
                yield int(match[1], 16), int(match[2], 16), match[3], match[4], match[5]


def _refusal(reason: str) -> CudaError:
    return not_supported(f"kernels do not reach this memory: {reason}. Allocate it with cuMemHostAlloc, or copy it")


SHARED_MEMORY: Final = "/dev/shm"
PORTABLE: Final = 1
DEVICE_MAP: Final = 2
WRITE_COMBINED: Final = 4
IO_MEMORY: Final = 4
READ_ONLY: Final = 8
"""Flags of cuMemHostAlloc (the first three) and cuMemHostRegister (the first two and the last two)."""

_MS_ASYNC: Final = 1
_msync = ctypes.CDLL(None, use_errno=True).msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@frozen
class PinnedRegion:
    """``size`` page-locked bytes at ``address``; ``pages`` is None if the memory is registered."""

    address: int
    size: int
    flags: int
    pages: SharedPages | None
    context: Context | None = None
    """The context that was current at the call, for the attributes of the address."""
    buffer_id: int = field(factory=next_buffer_id, init=False)

    @property
    def is_mapped(self) -> bool:
        """Whether kernels of the region's context can access it at the same address."""
        device = None if self.pages is None or self.context is None else self.context.device
        return device is not None and bool(device.properties.attributes.get("CAN_MAP_HOST_MEMORY"))

    @property
    def charged(self) -> int:
        """The size in bytes of all pages that contain the region."""
        return _whole_pages(self.address, self.size)[1]


class Pinned:
    """The page-locked memory of this process. Thread-safe."""

    def __init__(self, shared_memory: str = SHARED_MEMORY) -> None:
        self._shared_memory: Final = shared_memory
        self._regions: Final[dict[int, PinnedRegion]] = {}
        self._pending_bytes = 0
        """The number of bytes of allocations in progress."""
        self._ordered: tuple[tuple[int, ...], tuple[PinnedRegion, ...]] = ((), ())
        """Starts and regions by address; replaced as one, because copies take no lock."""
        self._changing: Final = RLock()
        self._mapped: Final[dict[int, RegisteredPages]] = {}
        """The pages of registered memory that kernels can access, by the registered address."""
        self._private: list[tuple[RegisteredPages, list[tuple[int, int]]]] = []
        """The pages and their ranges that are private during a fork."""

    def allocate(
        self,
        size: int,
        flags: int,
        bounded: bool,
        make: Callable[[int], SharedPages],
        context: Context | None = None,
    ) -> int:
        """Return the address of ``size`` new bytes, zero and page-aligned; 0 for 0 bytes, as recorded on an H200.

        ``flags`` combine CU_MEMHOSTALLOC_*. ``bounded``: whether the size of /dev/shm bounds the memory (devices
        before Volta). ``make`` returns new pages of a size. Raise INVALID_VALUE, OUT_OF_MEMORY, and the errors of
        ``make``.
        """
        if flags & ~(PORTABLE | DEVICE_MAP | WRITE_COMBINED):
            raise invalid_value(f"cuMemHostAlloc takes a combination of CU_MEMHOSTALLOC_*, not {flags:#x}")
        if size == 0:
            return 0
        charged = _whole_pages(0, size)[1]
        with self._changing:
            self._check_bound(charged, bounded)
            self._pending_bytes += charged
        try:
            pages = make(size)
            with self._changing:
                self._add(PinnedRegion(pages.address, size, flags, pages, context))
        finally:
            with self._changing:
                self._pending_bytes -= charged
        return pages.address

    def _add(self, region: PinnedRegion) -> None:
        self._regions[region.address] = region
        self._order(region.address, region)

    def _remove(self, address: int) -> None:
        del self._regions[address]
        self._order(address)

    def _order(self, address: int, *added: PinnedRegion) -> None:
        """Replace the region that starts at an address, if there is one, by those ``added`` in `_ordered`."""
        after = None
        while self._ordered is not after:
            before = starts, regions = self._ordered
            first, end = bisect_left(starts, address), bisect_right(starts, address)
            added_starts = tuple(region.address for region in added)
            after = starts[:first] + added_starts + starts[end:], regions[:first] + added + regions[end:]
            # A finalizer may have freed a region meanwhile, but none runs within this line.
            self._ordered = after if self._ordered is before else self._ordered

    def free(self, address: int) -> None:
        """Free the allocation that starts at ``address``; raise INVALID_VALUE. Address 0 has no effect."""
        if address == 0:
            return
        peer_access.wait_for_peers(self._pages_at(address).device)  # before any change, because it can be interrupted
        with self._changing:
            pages = self._pages_at(address)
            self._remove(address)
        pages.close()

    def release_all(self, context: Context) -> None:
        """Free the memory that was allocated in a context, and unregister what was registered in it.

        What was registered in a primary context stays registered.
        """
        for region in tuple(self._regions.values()):
            if region.context is context:
                with suppress(CudaError):  # another thread has freed it
                    if region.pages is not None:
                        self.free(region.address)
                    elif not context.primary:
                        self.unregister(region.address)

    def _pages_at(self, address: int) -> SharedPages:
        region = self._regions.get(address)
        if region is None or region.pages is None:
            raise invalid_value(f"{address:#x} was not returned by cuMemAllocHost or cuMemHostAlloc")
        return region.pages

    def is_reached_by(self, transport: Transport, address: int, count: int) -> bool:
        """Return whether the executor behind a transport copies from and to these bytes directly.

        ``address`` and ``count``: the host's side of a copy, in bytes. Raise INVALID_VALUE if it begins in
        page-locked memory but does not end in the same allocation. Called for every copy, without a lock.
        """
        region = self.region_at(address)
        if region is None or region.pages is None:
            return False
        if address + count > region.address + region.size:
            raise invalid_value(
                f"{count} bytes at {address:#x} are not all within the {region.size} bytes of page-locked memory at "
                f"{region.address:#x}"
            )
        return region.pages.transport is transport

    def register(self, address: int, size: int, flags: int, bounded: bool, context: Context | None = None) -> None:
        """Count the caller's own memory as page-locked. The caller has to unregister it before freeing it.

        ``flags`` combine CU_MEMHOSTREGISTER_*. Raise INVALID_VALUE if not all of it is memory of this process,
        HOST_MEMORY_ALREADY_REGISTERED if it overlaps page-locked memory, NOT_SUPPORTED for IOMEMORY and READ_ONLY.
        """
        if address == 0 or size == 0:
            raise invalid_value("cuMemHostRegister takes an address and at least 1 byte")
        if flags & ~(PORTABLE | DEVICE_MAP | IO_MEMORY | READ_ONLY):
            raise invalid_value(f"cuMemHostRegister takes a combination of CU_MEMHOSTREGISTER_*, not {flags:#x}")
        if flags & (IO_MEMORY | READ_ONLY):
            raise not_supported(
                "CU_MEMHOSTREGISTER_IOMEMORY and CU_MEMHOSTREGISTER_READ_ONLY are not supported; copy such memory as "
                "it is, without registering it"
            )
        if not is_memory(address, size):
            raise invalid_value(f"the {size} bytes at {address:#x} are not all memory of this process")
        with self._changing:
            for registered in tuple(self._regions.values()):
                if address < registered.address + registered.size and registered.address < address + size:
                    raise CudaError(
                        Result.ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                        f"the {registered.size} bytes at {registered.address:#x} are page-locked already",
                    )
            self._check_bound(_whole_pages(address, size)[1], bounded)
            self._add(PinnedRegion(address, size, flags, None, context))

    def device_address(self, context: Context, address: int) -> int:
        """Return the address at which kernels of a context's device access page-locked memory; raise CudaError."""
        transport, region = context.usable().transport, self.region_at(address)

        def can_access(pages: SharedPages) -> bool:
            return pages.transport is transport or peer_access.is_mapped(context.device, pages.device)

        if region is not None and region.pages is not None and can_access(region.pages):
            return address
        if region is None or region.pages is not None or not region.flags & DEVICE_MAP:
            raise invalid_value(
                f"{address:#x} is not within memory of cuMemAllocHost or cuMemHostAlloc on device "
                f"{context.device.number}, or of cuMemHostRegister with CU_MEMHOSTREGISTER_DEVICEMAP"
            )
        mapped = self._mapped.get(region.address) or self._map(context, region)
        if not can_access(mapped.pages):
            raise invalid_value(f"{address:#x} is mapped for a device other than {context.device.number}")
        return mapped.pages.address + address - mapped.start

    def _map(self, context: Context, region: PinnedRegion) -> RegisteredPages:
        """Replace a registered region's pages by pages that the executor shares; return these; raise CudaError."""
        start, size = _whole_pages(region.address, region.size)
        registered = RegisteredPages(start, share(context, size))  # without the lock, because it waits
        try:
            with self._changing:
                if self._regions.get(region.address) is not region or region.address in self._mapped:
                    raise invalid_value(
                        f"another thread is unregistering {region.address:#x}, or asking for its address"
                    )
                if any(
                    other.start < registered.end and registered.start < other.end for other in self._mapped.values()
                ):
                    raise not_supported(
                        f"{region.address:#x} is in a page with other registered memory that kernels reach: register "
                        f"both together, or memory that begins at a multiple of {mmap.PAGESIZE}"
                    )
                registered.replace_pages()
                self._mapped[region.address] = registered
        except BaseException:
            registered.pages.close()
            raise
        return registered

    def addresses_of(self, address: int) -> tuple[int, int]:
        """Return the program's and the kernels' address of registered memory, given either.

        For any other address return the address and 0.
        """
        for at, mapped in tuple(self._mapped.items()):
            region, offset = self._regions.get(at), mapped.pages.address - mapped.start
            for host_address in (address, address - offset):
                if region is not None and region.address <= host_address < region.address + region.size:
                    return host_address, host_address + offset
        return address, 0

    def prepare_fork(self) -> None:
        """Make registered pages private before a fork, and lock the tables until it is done."""
        self._changing.acquire()
        self._private = [(mapped, mapped.make_private()) for mapped in tuple(self._mapped.values())]

    def finish_fork(self, in_child: bool) -> None:
        """Unlock the tables after a fork; in the parent, share the registered pages with the executor again."""
        try:
            if in_child:
                self._mapped.clear()
            else:
                for mapped, ranges in self._private:
                    mapped.share(ranges)
        finally:
            self._private = []
            self._changing.release()

    def unregister(self, address: int) -> None:
        """Undo the registration at an address; if kernels can access the memory, wait for their work first.

        Raise INVALID_VALUE for an address within registered memory, HOST_MEMORY_NOT_REGISTERED for any other.
        """
        with self._changing:
            region = self._regions.get(address)
            if region is None or region.pages is not None:
                around = self.region_at(address)
                if around is not None and around.pages is None:
                    raise invalid_value(
                        f"{address:#x} is within the memory that was registered at {around.address:#x}"
                    )
                raise CudaError(
                    Result.ERROR_HOST_MEMORY_NOT_REGISTERED,
                    f"{address:#x} was not passed to cuMemHostRegister",
                )
            self._remove(address)
            mapped = self._mapped.pop(address, None)
        if mapped is not None:
            if region.context is not None:
                with suppress(CudaError):  # on an error its kernels have ended
                    region.context.synchronize()
            peer_access.wait_for_peers(mapped.pages.device)
            mapped.make_private()
            mapped.pages.close()

    def holds(self, address: int) -> bool:
        """Return whether kernels access page-locked memory at an address."""
        region = self.region_at(address)
        if region is not None and region.pages is not None:
            return True
        return bool(self._mapped) and self.addresses_of(address)[1] == address

    def region_at(self, address: int) -> PinnedRegion | None:
        """Return the region that contains an address, or None."""
        starts, regions = self._ordered
        at = bisect_right(starts, address) - 1
        return regions[at] if at >= 0 and address < starts[at] + regions[at].size else None

    def _check_bound(self, requested: int, bounded: bool) -> None:
        if not bounded:
            return
        size, used = (
            self._size(),
            self._pending_bytes + sum(region.charged for region in tuple(self._regions.values())),
        )
        if used + requested > size:
            raise CudaError(
                Result.ERROR_OUT_OF_MEMORY,
                f"{requested} bytes of page-locked memory, with {used} in use, are more than {self._shared_memory} "
                f"has: {size} bytes, which bound the page-locked memory of an MPS client on devices before Volta; "
                f"free some, use pageable memory, or enlarge it: mount -o remount,size=... {self._shared_memory}",
            )

    def _size(self) -> int:
        try:
            status = os.statvfs(self._shared_memory)
        except OSError:  # without shared memory nothing fits
            return 0
        return status.f_blocks * status.f_frsize


def is_memory(address: int, size: int) -> bool:
    """Return whether all pages of a range are mapped in this process."""
    start, length = _whole_pages(address, size)
    # This msync changes nothing, and fails if a page is not mapped.
    return start + length < 1 << 64 and _msync(start, length, _MS_ASYNC) == 0


def _whole_pages(address: int, size: int) -> tuple[int, int]:
    """Return the start and the length of the pages that contain a range."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, end - start


pinned: Final = Pinned()
when_closed.append(pinned.release_all)
os.register_at_fork(
    before=pinned.prepare_fork,
    after_in_parent=partial(pinned.finish_fork, False),
    after_in_child=partial(pinned.finish_fork, True),
)
