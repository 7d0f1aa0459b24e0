"""Define the state of a batch of whole CTAs: its threads and the memory that they access.

The compiled tier uses it, too, for the instructions that it leaves to NumPy. The batch then consists of the blocks in
progress, which `place_blocks` sets.
"""

import time
from math import prod
from threading import Event
from typing import Final, Protocol

import numpy as np
from attrs import define, frozen

from pympsd_server.backends.emulated.memory.address_space import AddressSpace
from pympsd_server.ptx.isa.datatypes import Array, DType, Value
from pympsd_server.ptx.isa.faults import Cancelled
from pympsd_server.ptx.isa.machine import WARP
from pympsd_server.ptx.runtime.facilities import Facilities
from pympsd_server.ptx.runtime.threads import Threads, geometry

_FRAME_ALIGNMENT = 16
_CACHE_LINE, _TWO_CACHE_LINES, _SPREAD_FROM = 64, 128, 1024
_MIN_SLEEP_SECONDS = 1e-4


def align_frame(size: int) -> int:
    """Return the distance in bytes between the frames of two blocks or threads, for frames of `size` bytes."""
    return -(-size // _FRAME_ALIGNMENT) * _FRAME_ALIGNMENT


def align_shared_frame(size: int) -> int:
    """Return the distance in bytes between the shared memory of two blocks, which two CPU threads may write."""
    return -(-size // _TWO_CACHE_LINES) * _TWO_CACHE_LINES


def align_local_frame(size: int) -> int:
    """Return the distance in bytes between the local memory of two threads.

    From 1 KiB on it is an odd number of cache lines. The threads of a warp access the same offset at the same time,
    and a distance of a power of two would put all 32 addresses into a few sets of the processor's cache.
    """
    return (-(-size // _CACHE_LINE) | 1) * _CACHE_LINE if size >= _SPREAD_FROM else align_frame(size)


def place_in(number: int, extent: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the place (x, y, z) of an element in a box whose elements are numbered along x, then y, then z."""
    rows, x = divmod(number, extent[0])
    z, y = divmod(rows, extent[1])
    return x, y, z


def place_of_block(number: int, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a block's place (x, y, z) in the grid; blocks are numbered cluster by cluster."""
    corner, rank = divmod(number, prod(cluster))
    x, y, z = (extent // size for extent, size in zip(grid, cluster, strict=True))
    places = zip(place_in(corner, (x, y, z)), cluster, place_in(rank, cluster), strict=True)
    first, second, third = (place * size + inside for place, size, inside in places)
    return first, second, third


class CancelFlag(Protocol):
    """The part of threading.Event that kernels poll."""

    def is_set(self) -> bool:
        """Return whether the kernel must stop."""


_NEVER: Final[CancelFlag] = Event()
"""The cancel flag of a batch before its first step."""


@frozen(eq=False)
class LaunchSetup:
    """The properties that all batches of a launch share; extents are (x, y, z)."""

    grid: tuple[int, int, int]
    """The extents of the grid, in blocks."""
    block: tuple[int, int, int]
    """The extents of a block, in threads."""
    parameters: bytes
    """The flat parameter buffer (CU_LAUNCH_PARAM_BUFFER_POINTER)."""
    dynamic_shared: int = 0
    """The bytes of dynamic shared memory, which follows the kernel's static shared memory."""
    workspace: int = 0
    """The address of a cooperative launch's workspace, which %envreg1 and %envreg2 contain."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """The extents of a cluster, in blocks; they divide the extents of the grid."""


@define(eq=False, slots=False)
class BatchState:
    """The threads of a batch (see Geometry) and the memory that they access, except global memory.

    Shared memory is an array with a frame for each block, local memory an array with a frame for each thread. Blocks
    are numbered cluster by cluster; the batch begins with ``first_block``.
    """

    space: AddressSpace
    multiprocessors: int
    resident_warps: int
    """The maximum number of warps on a multiprocessor."""
    facilities: Facilities
    setup: LaunchSetup
    static_shared: int
    """The bytes of static shared memory, including the reserved memory before it if the kernel uses that."""
    local_bytes: int
    first_block: int
    sm_of_block: Array
    reserved_shared: int = 0
    """The bytes of reserved memory in `static_shared`."""
    cancel: CancelFlag = _NEVER
    """The flag that instructions which may take long poll."""
    memory: tuple[Array, Array] | None = None
    """The arrays of shared and local memory if another tier owns them; otherwise the batch creates its own."""

    def __attrs_post_init__(self) -> None:
        self.grid, self.block, self.cluster = self.setup.grid, self.setup.block, self.setup.cluster
        self.workspace, self.dynamic_shared = self.setup.workspace, self.setup.dynamic_shared
        self.blocks = len(self.sm_of_block)
        self.threads_per_block = prod(self.block)
        self.geometry = shape = geometry(self.blocks, self.threads_per_block)
        self.count, self.warps, self.warps_per_block = shape.count, shape.warps, shape.warps_per_block
        self.whole_warps = shape.whole_warps
        self.thread, self.cta, self.warp = shape.thread, shape.cta, shape.warp
        self.lane, self.slot = shape.lane, shape.slot
        self.cluster_blocks = prod(self.cluster)
        self.clusters = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        self.all = Threads(None, self.count)
        self.dynamic_offset = align_frame(self.static_shared)
        static = self.dynamic_offset if self.dynamic_shared else self.static_shared
        self.shared_bytes = static + self.dynamic_shared
        self.reached_shared_bytes = self.space.bounds.end_of_shared(self.shared_bytes)
        self.shared_frame, self.local_frame = (
            align_shared_frame(self.reached_shared_bytes),
            align_local_frame(self.local_bytes),
        )
        if self.memory is None:
            shared, local = self.blocks * self.shared_frame, self.count * self.local_frame
            self.memory = np.zeros(shared, np.uint8), np.zeros(local, np.uint8)
        self._shared, self._local = self.memory
        self.parameter_bytes = len(self.setup.parameters)
        padding = bytes(-self.parameter_bytes % 8 + 8)
        self._parameters = np.frombuffer(self.setup.parameters + padding, np.uint8)
        self._views: dict[tuple[str, DType], Array] = {}
        self.block_numbers = np.arange(self.first_block, self.first_block + self.blocks)
        self.alive = np.ones(self.count, np.bool_)
        self._living: Array | None = None
        self._sleep = self._wake = 0.0

    def poll(self) -> None:
        """Raise Cancelled if the batch was cancelled."""
        if self.cancel.is_set():
            raise Cancelled

    @property
    def asleep(self) -> bool:
        """Whether threads sleep: they have executed nanosleep, and its time has not passed."""
        return self._sleep > 0

    def sleep(self, threads: Threads, nanoseconds: Value) -> None:
        """Record that these threads executed nanosleep; each call adds at most a millisecond."""
        if threads.count:
            self._sleep += min(int(nanoseconds.max()), 1_000_000) * 1e-9

    def rest(self, deadline: float, *, alone: bool) -> None:
        """Sleep until the time of nanosleep has passed, or until the deadline (in seconds of `time.perf_counter`).

        Return immediately if other groups can run (not `alone`), or if the time is below _MIN_SLEEP_SECONDS: PTX
        allows any duration from 0 to twice the time that the instruction requests.
        """
        now = time.perf_counter()
        if not self._wake:
            self._wake = now + (self._sleep if alone and self._sleep >= _MIN_SLEEP_SECONDS else 0)
        if (pause := min(self._wake, deadline) - now) > 0:
            time.sleep(pause)
        if time.perf_counter() >= self._wake:
            self._sleep = self._wake = 0.0

    def view(self, space: str, dtype: DType) -> Array:
        """Return the memory of a space as elements of `dtype`."""
        if space == "global":
            return self.space.views[dtype]
        view = self._views.get((space, dtype))
        if view is None:
            memory = {"shared": self._shared, "local": self._local, "param": self._parameters}[space]
            view = self._views[space, dtype] = memory.view(dtype)
        return view

    def frame_bases(self, threads: Threads, space: str, shift: int) -> Array:
        """Return the index at which each thread's frame begins, in elements of 2**shift bytes."""
        return threads.remember((space, shift), lambda: self._bases(threads, space, shift))  # type: ignore[no-any-return]

    def _bases(self, threads: Threads, space: str, shift: int) -> Array:
        if space == "shared":
            return threads.pick(self.cta) * (self.shared_frame >> shift)  # type: ignore[no-any-return]
        return threads.indices() * (self.local_frame >> shift)

    def place_blocks(self, numbers: Array, sm_of_block: Array) -> None:
        """Set which blocks of the grid the batch consists of now, and the SM of each."""
        self.block_numbers, self.sm_of_block = numbers, sm_of_block
        self.all = Threads(None, self.count)

    def frame_size(self, space: str) -> int:
        """Return how many bytes of a space a thread may address."""
        return {"shared": self.reached_shared_bytes, "local": self.local_bytes, "param": self.parameter_bytes}[space]

    def place_of(self, thread: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the place of a thread's block in the grid and the thread's place in the block, each as (x, y, z)."""
        number = int(self.block_numbers[self.cta[thread]])
        return place_of_block(number, self.grid, self.cluster), place_in(int(self.thread[thread]), self.block)

    def find_living_lanes(self) -> Array:
        """Return the lanes of each warp that have not exited, as a mask (uint32)."""
        if self._living is None:
            flags = np.zeros(self.warps * WARP, np.bool_)
            flags[self.slot] = self.alive
            self._living = np.packbits(flags, bitorder="little").view(np.uint32)
        return self._living

    def exit(self, threads: Threads) -> None:
        """Record that these threads have exited."""
        self.alive[threads.ids if threads.ids is not None else slice(None)] = False
        self._living = None
