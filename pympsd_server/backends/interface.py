"""The port between an executor and the backend that runs the work: Device, Context, Module, Stream, Event.

Addresses are in the device's own window, sizes are bytes. The executor's worker threads make calls concurrently; no
call waits for a stream. The end of asynchronous work is reported through a ``Completion``: called once, from any
thread, with the result of the context so far. Errors are ``BackendError``. Source: the CUDA driver API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Protocol

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout
from pympsd_server.backends.quota import Quota
from pympsd_server.backends.virtual_memory import MapsMemory


@frozen
class Capabilities:
    """The capabilities of a backend's device, as values: callers never ask which backend or model it is."""

    isolates_address_spaces: bool
    """Whether clients' memory is isolated from each other's kernels (from calls it always is)."""
    contains_faults: bool
    """Whether a fault can be contained to its client; if not, the device's process must be replaced."""
    stops_kernels: bool
    """Whether a running kernel can be stopped."""
    limits_multiprocessors: bool
    """Whether a context can be limited to some of the device's SMs."""
    limits_memory: bool
    """Whether a client can be limited to some of the device's memory."""
    sees_blocks: bool = True
    """Whether its traces report the start of blocks."""
    passes_waiting_kernels: bool = True
    """Whether a kernel can begin while an earlier one of another stream waits for room."""
    maps_virtual_memory: bool = False
    """Whether clients map memory at addresses that they choose (``create_memory``, ``map_memory`` ...)."""
    maps_host_memory: bool = False
    """Whether kernels can access memory given to ``register_host_memory`` by its address."""
    evaluates_conditions: bool = False
    """Whether graphs have conditional nodes (``condition``, ``call``)."""


class Limit(IntEnum):
    """The limits of a context that concern its kernels, by their numbers in CUlimit."""

    PRINT_BYTES = 1
    """The size of the buffer of what kernels print."""
    HEAP_BYTES = 2
    """The size of the heap of kernels' malloc."""


class BackendError(Exception):
    """A call failed: ``code`` is the CUresult, the message is for users."""

    def __init__(self, code: Result, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@frozen
class Outcome:
    """How the work before a completion ended: SUCCESS, or the error that poisoned the context."""

    code: Result = Result.SUCCESS
    reason: str = ""


Completion = Callable[[Outcome], None]


class Space(Enum):
    """The location of a region's bytes, and when they may be accessed."""

    DEVICE = "device"
    """Device memory."""
    STAGING = "staging"
    """Host memory shared with the client; unchanged until the copy's completion."""
    PINNED = "pinned"
    """Host memory given to ``register_host_memory``; accessed when the stream reaches the copy."""


@frozen
class Extent:
    """The size of a copy or fill: ``width`` bytes a row, ``height`` rows a slice, ``depth`` slices."""

    width: int
    height: int = 1
    depth: int = 1

    @property
    def bytes(self) -> int:
        """The number of bytes in it."""
        return self.width * self.height * self.depth

    @property
    def is_linear(self) -> bool:
        """Whether it is a single row."""
        return self.height == 1 and self.depth == 1


@frozen(eq=False)
class Region:
    """One side of a copy, or the target of a fill: rows ``pitch`` bytes apart, slices ``slice_pitch`` bytes apart."""

    space: Space
    base: int = 0
    """The device address of the first byte; 0 for host memory."""
    pitch: int = 0
    slice_pitch: int = 0
    host: memoryview | None = None
    """Host memory, from the first byte to the last; None for device memory."""

    def span(self, extent: Extent) -> int:
        """Return the number of bytes from the first to the last one of an extent; 0 if it is empty."""
        if not extent.bytes:
            return 0
        return (extent.depth - 1) * self.slice_pitch + (extent.height - 1) * self.pitch + extent.width

    def check_pitches(self, extent: Extent, max_pitch: int | None = None) -> None:
        """Raise BackendError INVALID_VALUE if rows or slices overlap, or the pitch is more than ``max_pitch``."""
        if extent.height > 1 and (self.pitch < extent.width or (max_pitch is not None and self.pitch > max_pitch)):
            limit = "" if max_pitch is None else f" and at most {max_pitch}"
            reason = f"a pitch of {self.pitch} bytes: it must be at least the width of {extent.width}{limit}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        if extent.depth > 1 and self.slice_pitch < (minimum := self.span(Extent(extent.width, extent.height))):
            reason = f"a slice pitch of {self.slice_pitch} bytes: it must be at least {minimum}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)


@frozen(eq=False)
class Copy:
    """A copy of ``extent`` bytes between two regions, at least one of them in device memory."""

    destination: Region
    source: Region
    extent: Extent


@frozen(eq=False)
class Fill:
    """Set elements of 1, 2 or 4 bytes in device memory to ``value``; base and pitch are aligned to the element."""

    destination: Region
    value: int
    element_bytes: int
    extent: Extent
    """``width`` is in bytes, a multiple of ``element_bytes``."""

    def check_elements(self) -> None:
        """Raise BackendError INVALID_VALUE unless elements have 1, 2 or 4 bytes, and all of them are aligned."""
        region, extent = self.destination, self.extent
        offsets = region.base | extent.width
        if not extent.is_linear:
            offsets |= region.pitch | region.slice_pitch
        if self.element_bytes not in (1, 2, 4) or offsets % self.element_bytes:
            reason = f"a fill of {self.element_bytes}-byte elements, rows of {extent.width} bytes at {region.base:#x}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)


@frozen(eq=False)
class Launch:
    """A kernel launch: ``function`` is its index in the module's functions, ``parameters`` the flat buffer."""

    module: Module
    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    cooperative: bool = False
    """All blocks must be resident at once, or the launch is refused: COOPERATIVE_LAUNCH_TOO_LARGE."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """The blocks of a cluster, if not those that the kernel was compiled for; NOT_SUPPORTED, INVALID_CLUSTER_SIZE."""


Audit = Callable[[int, int, int, int], None]
"""Called with what a client has taken of the device, or (negative) returned, if it is more than 1 MiB: address space,
the bytes, those that the client holds then, and its least limit.
"""


class Stream(Protocol):
    """Work in order. Copies and fills check their addresses at once and raise BackendError (INVALID_VALUE).

    On a poisoned context work raises BackendError with the sticky error, and ``notify`` calls back with it.
    """

    def copy(self, copy: Copy, done: Completion | None = None) -> None:
        """Copy bytes, then call ``done``.

        A copy from or to ``Space.STAGING`` always has one, and those of a client that are not done take no more bytes
        than its staging memory has: a backend may refuse what is beyond twice that.
        """

    def fill(self, fill: Fill) -> None:
        """Set elements of device memory to a value."""

    def launch(self, launch: Launch) -> None:
        """Run a kernel."""

    def record(self, event: Event) -> None:
        """Record an event: it is done when the earlier work in this stream is."""

    def wait(self, event: Event) -> None:
        """Make later work wait for the event's last recording; an event never recorded delays nothing."""

    def notify(self, done: Completion) -> None:
        """Call back when all work so far in this stream is done (at once when it is)."""

    def launch_host_function(self, begin: Completion) -> PendingHostFunction:
        """Call ``begin`` when the stream reaches this point; later work waits until the function is finished.

        ``begin`` may be called before this returns. If the context is poisoned or destroyed the wait ends, and a
        ``begin`` that was not called yet is called with that outcome.
        """

    @property
    def idle(self) -> bool:
        """Whether all work so far is done."""

    def destroy(self) -> None:
        """Destroy the stream; its work runs to its end."""


class PendingHostFunction(Protocol):
    """A stream's wait for a host function of the client."""

    def finish(self) -> None:
        """Resume the stream; no effect a second time. BackendError INVALID_VALUE before ``begin`` was called."""


class Event(Protocol):
    """A point in a stream."""

    @property
    def done(self) -> bool:
        """Whether its last recording is done; true if never recorded."""

    def notify(self, done: Completion) -> None:
        """Call back when its last recording is done."""

    def milliseconds_since(self, start: Event) -> float:
        """Return the time between two recorded events; BackendError INVALID_HANDLE or NOT_READY as in CUDA."""


class Module(Protocol):
    """Loaded code, and the layouts that the client launches with."""

    @property
    def functions(self) -> Sequence[FunctionLayout]:
        """Its kernels, in the order of LAUNCH's indices."""

    @property
    def globals(self) -> Sequence[GlobalLayout]:
        """Its variables with their addresses."""

    @property
    def managed_bytes(self) -> int:
        """The memory that `place_managed` needs, in bytes; 0: there are no managed variables."""

    def place_managed(self, address: int) -> None:
        """Move the managed variables to so much zeroed memory, before the first launch. BackendError."""

    def unload(self) -> None:
        """Free it once its running kernels have ended."""


class Condition(Protocol):
    """What kernels set by cudaGraphSetConditional."""

    value: int


class EvaluatesConditions(Protocol):
    """What a context does for conditional nodes."""

    def condition(self, handle: int) -> Condition:
        """Return the condition that kernels name by a handle: the same for all graphs while one holds it."""

    def call(self, stream: Any, pieces: Iterator[None]) -> None:
        """Take the pieces one by one, on the device's time, when its stream comes to them; later work waits.

        They may put work in streams. A BackendError of theirs is a fault of the context, which is lost.
        """


class Context(MapsMemory, EvaluatesConditions, Protocol):
    """One client context: its memory, modules and streams. Destroying it frees all of them."""

    def allocate(self, count: int) -> int:
        """Return the address of new memory; BackendError OUT_OF_MEMORY, INVALID_VALUE for 0."""

    def free(self, address: int, done: Completion) -> None:
        """Free memory once the context's work so far is done, as cuMemFree does, then call ``done``. BackendError
        INVALID_VALUE at once if it is not an allocation's start. No effect on a poisoned context.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes; total is the limit if there is one."""

    def load_module(self, image: bytes) -> Module:
        """Load code; BackendError INVALID_PTX, INVALID_IMAGE ... with a reason that names line and instruction."""

    @property
    def default_stream(self) -> Stream:
        """The legacy default stream, which synchronizes with the context's blocking streams in both directions."""

    def create_stream(self, non_blocking: bool, priority: int) -> Stream:
        """Return a new stream; priority is clamped to the range of ``stream_priorities``."""

    def create_event(self, timing: bool) -> Event:
        """Return a new event."""

    def open_event(self, event: Event) -> Event:
        """Return an event that another context of the device has, as one of this context; NOT_SUPPORTED.

        Recording one of them records both.
        """

    def notify(self, done: Completion) -> None:
        """Call back when all work so far in all streams is done."""

    def set_limit(self, limit: Limit, count: int) -> None:
        """Set a limit in bytes. BackendError NOT_SUPPORTED, INVALID_VALUE if it is too late."""

    def take_output(self) -> tuple[bytes, bytes]:
        """Return, once, what kernels have printed and not been asked for: for standard output, and standard error."""

    @property
    def outcome(self) -> Outcome:
        """SUCCESS, or the sticky error that poisoned the context."""

    def terminate(self, outcome: Outcome) -> None:
        """Poison the context: stop what runs, drop what waits, free its memory; ``outcome`` is its sticky error.

        BackendError LAUNCH_TIMEOUT, after two seconds, if kernels still run that the device cannot stop; a further
        call waits again.
        """

    def abandon(self) -> None:
        """Accept no more work, without waiting; start the two seconds of ``destroy``, which must follow."""

    def destroy(self) -> None:
        """Stop or finish what runs and free everything; later completions get CONTEXT_IS_DESTROYED.

        Return after two seconds even if kernels still run that the device cannot stop: the context keeps its
        resources, counted, until they have ended, and the device counts it as ``unfinished``.
        """


class Timeline(Protocol):
    """Notified of each device's work and its context; times are in ns of CLOCK_MONOTONIC. Called from any thread."""

    def ran(self, context: int, name: str, began: int, ended: int) -> None:
        """The device worked for a context: a slice of a kernel, a copy or a fill."""

    def finished(self, context: int, stream: int, name: str, submitted: int, began: int, ended: int) -> None:
        """Work in a stream is finished, or was stopped; the stream is numbered in its context, 0: the default."""


class SupportsTimeline(Protocol):
    """A device that can report when it works, or refuses to."""

    def set_timeline(self, timeline: Timeline | None) -> None:
        """Report all work from now on to a timeline, or none; BackendError NOT_SUPPORTED if it cannot be timed."""


class Device(SupportsTimeline, Protocol):
    """One device, opened by its executor."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this implementation."""

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """Least and greatest stream priority (numerically the least is the larger)."""

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters for tests and operators: kernels started and finished, batches, bytes allocated ..."""

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """The multiprocessors of each live context, and the most of them it used."""

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """The latest batches of blocks that began, oldest first."""

    @property
    def memory_used(self) -> Mapping[int, int]:
        """Bytes of device memory by address space: its allocations and its contexts themselves."""

    @property
    def unfinished(self) -> int:
        """The number of destroyed contexts that keep their resources because their kernels still run."""

    @property
    def host_memory_base(self) -> int:
        """The first address of the 256 GiB in which host memory must lie for kernels to access it; 0: anywhere."""

    def register_host_memory(self, address_space: int, address: int, memory: memoryview) -> Callable[[], None]:
        """Register pinned host memory for direct access, also by kernels of one client if the device maps it.

        ``memory`` is its bytes at ``address``, whole shared pages, which stay mapped while referenced. Return a
        callback that unregisters it, to be called once after its last use. The reference is dropped when no work can
        access it any more. BackendError OUT_OF_MEMORY or the driver's refusal.
        """

    def watch_memory(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after every change of ``memory_used``, from any thread; it must not wait."""

    def account_others(self, count: int, groups: Mapping[str, int]) -> None:
        """Count the bytes that clients of other executors hold on the device, in all and by group of clients."""

    def audit_memory(self, audited: Audit) -> None:
        """Call ``audited`` for what clients with an audited quota take and return, from any thread."""

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Outcome], None], serial: int = 0
    ) -> Context:
        """Create a context; contexts of one ``address_space`` (one client process) share memory.

        ``on_fault`` is called once, from any thread, when the context is poisoned. ``serial`` names it in traces.
        BackendError OUT_OF_MEMORY if there is no room for the context itself; the reason names the bytes it needs.
        """

    def close(self) -> None:
        """Stop everything and release the device."""
