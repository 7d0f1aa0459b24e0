"""Physical memory under the device's window of addresses: mapped as allocations need it, zero when handed out.

**The problem.** All clients of a GPU work in one context of the driver. cuMemAlloc gives them memory that another
user's program has just used, at addresses that anybody's kernels reach, and cuMemFree waits for the kernels of all
clients.

**The idea.** The driver's virtual memory management reserves one window of addresses for the device, and its calls
wait for no kernel (docs/decisions/004-what-the-gpu-decided.md). `AddressWindow` decides which addresses an allocation
gets and which pages of 2 MiB lie under it; this class maps those pages and unmaps them with their last allocation.

- Memory is cleared when it is mapped and when it is freed, in a stream of its own with the highest priority;
  `allocate` returns when that is done. So a client never reads another client's data.
- Up to _SPARE_PAGES unused pages stay mapped, so that a program that allocates and frees a little maps nothing.
- `free` is called only for memory that no work can use any more (`memory.deferred_free`).

**Invariants.** Every page under a living allocation is mapped exactly once. An address outside all allocations is
unmapped, or in a cleared part of a spare or shared page. The driver must reserve the window that the executor asks
for, because clients compute addresses in it; if it reserves another one, the device cannot be opened.
"""

from threading import Lock
from typing import Any, Final

from pympsd.vocabulary.device_properties import WINDOW_BITS
from pympsd.vocabulary.results import Result
from pympsd_server.backends.cuda.driver.calls import Driver, cu, plain_call
from pympsd_server.backends.cuda.memory.address_ranges import PAGE_BYTES, AddressWindow, Pages
from pympsd_server.backends.free_ranges import NoRange
from pympsd_server.backends.interface import BackendError

_SPARE_PAGES: Final = 16
"""The number of unused pages that stay mapped, so that a program that allocates and frees a little maps nothing."""


class DeviceMemory:
    """The allocations of all clients. Safe to use from several threads."""

    def __init__(self, driver: Driver, device: int, window: int) -> None:
        """Reserve the window; raise BackendError if the driver reserves other addresses."""
        self._driver = driver
        self._lock = Lock()
        reserved = int(driver.call(cu.cuMemAddressReserve, 1 << WINDOW_BITS, 0, window, 0))
        if reserved != window:
            reason = f"the driver reserved addresses at {reserved:#x}, not at the device's window {window:#x}"
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, reason)
        self._window = window
        self._addresses = AddressWindow(window, 1 << WINDOW_BITS)
        self._mapped: dict[int, tuple[int, Any]] = {}
        """The mappings, as (size, handle), by address."""
        self._spare: dict[int, None] = {}
        self._kind, self._access = _kind_of(device)
        _, greatest = driver.call(cu.cuCtxGetStreamPriorityRange)
        self._cleaner = driver.call(cu.cuStreamCreateWithPriority, cu.CUstream_flags.CU_STREAM_NON_BLOCKING, greatest)

    def allocate(self, count: int) -> int:
        """Return the address of ``count`` bytes that are zero, or raise BackendError OUT_OF_MEMORY."""
        with self._lock:
            try:
                address, pages = self._addresses.allocate(count)
            except NoRange as error:
                raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
            try:
                if pages.whole is not None:
                    start, size = pages.whole
                    for page in [page for page in self._spare if start <= page < start + size]:
                        self._unmap(page)
                    self._map(start, size)
                for page in pages.shared:
                    if page in self._spare:
                        del self._spare[page]
                    else:
                        self._map(page, PAGE_BYTES)
            except BackendError:
                self._release(self._addresses.free(address), keep=0)
                raise
        self._driver.call(cu.cuStreamSynchronize, self._cleaner)
        return address

    def free(self, address: int) -> None:
        """Free an allocation that no work can use any more."""
        with self._lock:
            end, shared = self._addresses.end_of(address), self._addresses.pages_under(address).shared
            self._release(self._addresses.free(address), keep=_SPARE_PAGES)
            for page in shared:
                start = max(page, address)
                if page in self._mapped:
                    self._clean(start, min(page + PAGE_BYTES, end) - start)

    def close(self) -> None:
        """Unmap all memory and free the window, which no work may use any more."""
        with self._lock:
            for start in tuple(self._mapped):
                self._unmap(start)
            self._driver.call(cu.cuMemAddressFree, self._window, 1 << WINDOW_BITS)

    def _release(self, pages: Pages, keep: int) -> None:
        if pages.whole is not None:
            self._unmap(pages.whole[0])
        for page in pages.shared:
            if len(self._spare) < keep:
                self._spare[page] = None
            else:
                self._unmap(page)

    def _map(self, start: int, size: int) -> None:
        """Map new memory, filled with zeros, at an address; release the spare pages if memory is short."""
        call = self._driver.call
        try:
            handle = call(cu.cuMemCreate, size, self._kind, 0)
        except BackendError:
            # Without the spare pages there may be enough.
            for page in tuple(self._spare):
                self._unmap(page)
            handle = call(cu.cuMemCreate, size, self._kind, 0)
        try:
            call(cu.cuMemMap, start, size, 0, handle, 0)
        except BackendError:
            call(cu.cuMemRelease, handle)
            raise
        self._mapped[start] = (size, handle)
        call(cu.cuMemSetAccess, start, size, [self._access], 1)
        self._clean(start, size)

    def _unmap(self, start: int) -> None:
        self._spare.pop(start, None)
        mapped = self._mapped.pop(start, None)
        if mapped is None:  # mapping it has failed
            return
        self._driver.call(cu.cuStreamSynchronize, self._cleaner)  # it may be clearing these bytes
        size, handle = mapped
        self._driver.call(cu.cuMemUnmap, start, size)
        self._driver.call(cu.cuMemRelease, handle)

    def _clean(self, start: int, length: int) -> None:
        self._driver.call(cu.cuMemsetD8Async, start, 0, length, self._cleaner)


def _kind_of(device: int) -> tuple[Any, Any]:
    """Return the properties and the access rights of memory on a device; raise BackendError NOT_SUPPORTED."""
    kind = cu.CUmemAllocationProp()
    kind.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind.location.id = device
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    smallest = int(
        plain_call(
            cu.cuMemGetAllocationGranularity,
            kind,
            cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        )
    )
    if PAGE_BYTES % smallest:
        reason = f"the device maps memory in pieces of {smallest} bytes, and this backend in pieces of {PAGE_BYTES}"
        raise BackendError(Result.ERROR_NOT_SUPPORTED, reason)
    return kind, access
