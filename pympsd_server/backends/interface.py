"""The port between an executor and the backend that runs the work: Context, Module, Stream, Event.

`backends.device_interface` has the part for the whole device, `backends.virtual_memory` the part for mapped memory.

An executor owns one device. It depends neither on a GPU model nor on a driver, because it makes only the calls of
this module. Two backends implement them, the emulated device (`backends.emulated`) and a real GPU (`backends.cuda`).
One contract suite, tests/backends/contract, tests both against this description. `Capabilities` lists the abilities
that a backend may lack; callers test these values, and never ask which backend it is.

Rules for all calls:

- **Units.** Addresses are device addresses in the device's own window, sizes are bytes, times are seconds unless a
  name says otherwise.
- **Threads.** The workers of all clients make calls concurrently, and no call waits for a stream. Only the calls that
  end work (``terminate``, ``destroy``) wait, and at most two seconds.
- **Asynchronous work** is queued by methods of a stream. Its end is reported through a ``Completion``, which is
  called once, from any thread, with the status of the context at that time: SUCCESS, or the sticky error.
- **Errors.** A refused call raises ``BackendError`` with a CUresult and a sentence for the user; it has no effect. A
  *fault* is an error of running work. It makes the context faulted: its status becomes a sticky error, waiting work
  is dropped, all pending completions get the error, and later work is refused with it.

One copy and one launch, as an executor makes them::

    context = device.create_context(client_id, quota, on_fault, context_id)
    module = context.load_module(ptx)
    address = context.allocate(4096)
    stream = context.create_stream(non_blocking=True, priority=0)
    stream.copy(Copy(Region(Space.DEVICE, address), Region(Space.STAGING, host=view), Extent(4096)), done)
    stream.launch(Launch(module, 0, (8, 1, 1), (128, 1, 1), 0, parameters))
    stream.notify(lambda status: answer(status))

Source: the CUDA driver API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, Protocol

from attrs import frozen

from pympsd.errors import DeviceError
from pympsd.vocabulary.results import Result
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout
from pympsd_server.backends.virtual_memory import MapsMemory


class BackendError(DeviceError):
    """A call was refused and had no effect.

    Attributes:
        code: The CUresult that the client's call returns.
        reason: A sentence for the user: the error, and the allowed values. It is also the exception's message.
    """

    def __init__(self, code: Result, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@frozen
class Status:
    """The result of the work before a completion: SUCCESS, or the sticky error of its context, with its reason.

    >>> Status()
    Status(code=<Result.SUCCESS: 0>, reason='')
    >>> Status(Result.ERROR_ILLEGAL_ADDRESS, "thread 3 of block 0 wrote to 0x10").code.name
    'ERROR_ILLEGAL_ADDRESS'
    """

    code: Result = Result.SUCCESS
    reason: str = ""


Completion = Callable[[Status], None]
"""A function that is called once when work is done, from any thread.

The function must not wait, and must not raise.
"""


@frozen
class Capabilities:
    """The abilities of a backend's device. Callers test these values, never the backend or the model.

    A new difference between backends becomes a field here.
    """

    isolates_address_spaces: bool
    """Whether a client's memory is isolated from other clients' kernels. (From their calls it always is.)"""
    contains_faults: bool
    """Whether a fault can be contained to its client. If not, the device's process must be replaced."""
    stops_kernels: bool
    """Whether a running kernel can be stopped."""
    limits_multiprocessors: bool
    """Whether a context can be limited to some of the device's SMs."""
    limits_memory: bool
    """Whether a client can be limited to some of the device's memory."""
    sees_blocks: bool = True
    """Whether the device's traces report the start of blocks."""
    passes_waiting_kernels: bool = True
    """Whether a kernel can begin while an earlier kernel of another stream waits for free SMs."""
    maps_virtual_memory: bool = False
    """Whether clients map memory at addresses that they choose (``Context.mapped``)."""
    maps_host_memory: bool = False
    """Whether kernels can access memory passed to ``register_host_memory`` by its address."""
    evaluates_conditions: bool = False
    """Whether graphs can have conditional nodes (``condition``, ``call``)."""


class ContextLimit(IntEnum):
    """The limits of a context that concern its kernels, by their numbers in CUlimit. Values are in bytes.

    >>> ContextLimit(2)
    <ContextLimit.HEAP_BYTES: 2>
    """

    PRINT_BYTES = 1
    """The size of the buffer for the output of kernels' printf."""
    HEAP_BYTES = 2
    """The size of the heap of kernels' malloc."""


# --- values: regions, copies, fills, launches


class Space(Enum):
    """The location of a region's bytes, and when they may be accessed.

    It decides how the backend carries out a copy.
    """

    DEVICE = "device"
    """Device memory."""
    STAGING = "staging"
    """Host memory shared with the client. The client leaves it unchanged until the copy's completion."""
    PINNED = "pinned"
    """Host memory passed to ``register_host_memory``. The memory is accessed when the stream reaches the copy."""


@frozen
class Extent:
    """The size of a copy or fill: ``width`` bytes per row, ``height`` rows per slice, ``depth`` slices.

    >>> Extent(width=4, height=3, depth=2).bytes
    24
    """

    width: int
    height: int = 1
    depth: int = 1

    @property
    def bytes(self) -> int:
        """The number of bytes in the extent; 0 if one of the three sizes is 0.

        >>> Extent(16, 3).bytes, Extent(16, 0).bytes
        (48, 0)
        """
        return self.width * self.height * self.depth

    @property
    def is_linear(self) -> bool:
        """Whether the copy is of a single row, for which pitches do not matter.

        >>> Extent(16).is_linear, Extent(16, 3).is_linear
        (True, False)
        """
        return self.height == 1 and self.depth == 1


@frozen(eq=False)
class Region:
    """One side of a copy, or the target of a fill: rows ``pitch`` bytes apart, slices ``slice_pitch`` bytes apart.

    Device memory has a ``base``, host memory a ``host``. Both pitches may be 0 for a single row:

    >>> Region(Space.DEVICE, 0x7000_0000_0000, pitch=512).base
    123145302310912
    >>> Region(Space.STAGING, host=memoryview(bytes(64))).host.nbytes
    64
    """

    space: Space
    base: int = 0
    """The device address of the first byte; 0 for host memory."""
    pitch: int = 0
    slice_pitch: int = 0
    host: memoryview | None = None
    """The host memory, from the first byte to the last; None for device memory."""

    def span(self, extent: Extent) -> int:
        """Return the number of bytes from the first to the last one of an extent; 0 if it is empty.

        >>> Region(Space.DEVICE, pitch=512).span(Extent(width=16, height=3))
        1040
        """
        if not extent.bytes:
            return 0
        return (extent.depth - 1) * self.slice_pitch + (extent.height - 1) * self.pitch + extent.width

    def check_pitches(self, extent: Extent, max_pitch: int | None = None) -> None:
        """Raise BackendError INVALID_VALUE if rows or slices overlap, or the pitch is more than ``max_pitch`` bytes.

        A pitch counts only if there is more than one row, a slice pitch only if there is more than one slice.
        """
        if extent.height > 1 and (self.pitch < extent.width or (max_pitch is not None and self.pitch > max_pitch)):
            limit = "" if max_pitch is None else f" and at most {max_pitch}"
            reason = f"a pitch of {self.pitch} bytes: it must be at least the width of {extent.width}{limit}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)
        if extent.depth > 1 and self.slice_pitch < (minimum := self.span(Extent(extent.width, extent.height))):
            reason = f"a slice pitch of {self.slice_pitch} bytes: it must be at least {minimum}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)


@frozen(eq=False)
class Copy:
    """A copy of the bytes in ``extent`` between two regions, at least one of them in device memory.

    The regions must not overlap. Each has its own pitches, so a copy can pack or unpack rows:

    >>> padded = Region(Space.DEVICE, 0x10000, pitch=512)
    >>> packed = Region(Space.STAGING, pitch=16, host=memoryview(bytes(48)))
    >>> Copy(padded, packed, Extent(width=16, height=3)).extent.bytes
    48
    """

    destination: Region
    source: Region
    extent: Extent


@frozen(eq=False)
class Fill:
    """Set elements of 1, 2 or 4 bytes in device memory to ``value``; base and pitch are aligned to the element.

    Only the low ``element_bytes`` bytes of the value count, as in cuMemsetD8, D16 and D32.

    >>> Fill(Region(Space.DEVICE, 0x10000), 0xFF, 1, Extent(4096)).check_elements()
    """

    destination: Region
    value: int
    element_bytes: int
    extent: Extent
    """The size of the copied area. ``width`` is in bytes, a multiple of ``element_bytes``."""

    def check_elements(self) -> None:
        """Raise BackendError INVALID_VALUE unless elements have 1, 2 or 4 bytes, and all of them are aligned.

        >>> Fill(Region(Space.DEVICE, 0x10002), 0, 4, Extent(4096)).check_elements()
        Traceback (most recent call last):
            ...
        pympsd_server.backends.interface.BackendError: a fill of 4-byte elements, rows of 4096 bytes at 0x10002
        """
        region, extent = self.destination, self.extent
        offsets = region.base | extent.width
        if not extent.is_linear:
            offsets |= region.pitch | region.slice_pitch
        if self.element_bytes not in (1, 2, 4) or offsets % self.element_bytes:
            reason = f"a fill of {self.element_bytes}-byte elements, rows of {extent.width} bytes at {region.base:#x}"
            raise BackendError(Result.ERROR_INVALID_VALUE, reason)


@frozen(eq=False)
class Launch:
    """A kernel launch: ``function`` is its index in the module's functions, ``parameters`` the flat buffer.

    The buffer has each parameter at the offset of the function's layout, as the param space of PTX has them.
    """

    module: Module
    function: int
    grid: tuple[int, int, int]
    """The number of blocks in x, y and z."""
    block: tuple[int, int, int]
    """The number of threads of a block in x, y and z."""
    shared_bytes: int
    """The bytes of dynamic shared memory of a block."""
    parameters: bytes
    cooperative: bool = False
    """Whether all blocks must be resident at the same time; COOPERATIVE_LAUNCH_TOO_LARGE if they do not fit."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """The number of blocks of a cluster in x, y and z. Launch errors: NOT_SUPPORTED, INVALID_CLUSTER_SIZE."""


# --- streams and events


class Stream(Protocol):
    """Work in order: each operation begins after the earlier ones of its stream are done.

    Copies and fills check their addresses immediately and raise BackendError INVALID_VALUE. In a faulted context
    every operation raises BackendError with the sticky error, and ``notify`` calls back with it.
    """

    def copy(self, copy: Copy, done: Completion | None = None) -> None:
        """Copy bytes, then call ``done``.

        A copy from or to ``Space.STAGING`` must have a ``done``. The unfinished copies of this kind must not take
        more bytes together than the client's staging memory has; a backend may refuse (OUT_OF_MEMORY) more than
        twice as many.
        """

    def fill(self, fill: Fill) -> None:
        """Set elements of device memory to a value.

        Raises:
            BackendError: INVALID_VALUE as from ``Fill.check_elements``, or for addresses outside an allocation.
        """

    def launch(self, launch: Launch) -> None:
        """Run a kernel.

        Raises:
            BackendError: INVALID_VALUE for a grid, block or parameters that the device or the kernel does not allow;
                INVALID_HANDLE for a module of another context or an unknown function; see also ``Launch``.
        """

    def record(self, event: Event) -> None:
        """Record an event: it is done when the earlier work in this stream is.

        A further recording replaces this one.
        """

    def wait(self, event: Event) -> None:
        """Make later work wait for the event's last recording; an event that was never recorded delays nothing.

        The call does not wait for records made after it.
        """

    def notify(self, done: Completion) -> None:
        """Call ``done`` when all work queued in this stream before the call is done; immediately if it is done now.

        ``done`` gets SUCCESS. In a faulted context it gets the sticky error immediately.
        """

    def launch_host_function(self, begin: Completion) -> PendingHostFunction:
        """Call ``begin`` when the stream reaches this point; later work waits until the function is finished.

        ``begin`` may be called before this returns. If the context faults or is destroyed, the wait ends. ``begin``
        is then called with that status, unless it was called before.
        """

    @property
    def idle(self) -> bool:
        """Whether all work queued in the stream is done, and all work of other streams that it would wait for.

        As cuStreamQuery reports it; true for a stream that was never used.
        """

    def destroy(self) -> None:
        """Destroy the stream without waiting; its work runs to its end, and its completions are called.

        Nothing may be queued in it afterwards.
        """


class PendingHostFunction(Protocol):
    """A stream's wait for a host function of the client.

    The executor calls the client, and ``finish`` when the client has answered::

        pending = stream.launch_host_function(lambda status: ask_client(token, status))
        pending.finish()
    """

    def finish(self) -> None:
        """Resume the stream; a second call has no effect.

        Raises:
            BackendError: INVALID_VALUE if ``begin`` was not called yet.
        """


class Event(Protocol):
    """A point in a stream, set by ``Stream.record`` (cuEventRecord).

    It can be recorded again, which moves it. Any number of streams, also of other contexts, may wait for it
    (``Stream.wait``); work that already waits keeps waiting for the earlier recording.
    """

    @property
    def done(self) -> bool:
        """Whether the work before its last recording is done; true if it was never recorded (cuEventQuery).

        The result does not state whether that work succeeded; ``notify`` reports that.
        """

    def notify(self, done: Completion) -> None:
        """Call ``done`` when its last recording is done; immediately if no work is left.

        ``done`` gets SUCCESS, or the sticky error of the context that the event belongs to.
        """

    def milliseconds_since(self, start: Event) -> float:
        """Return the time between two recorded events, in milliseconds.

        Raises:
            BackendError: INVALID_HANDLE if one was not recorded or is without timing, NOT_READY if one is not done.
        """


# --- modules and contexts


class Module(Protocol):
    """Loaded code, and the layouts that the client launches with.

    A module belongs to the context that loaded it. Destroying the context also frees the module.
    """

    @property
    def functions(self) -> Sequence[FunctionLayout]:
        """The module's kernels; ``Launch.function`` is an index into them.

        The kernels of a large module are loaded when they are needed. Until then only the name in a layout is valid;
        ``function`` returns the complete layout.
        """

    def function(self, index: int) -> FunctionLayout:
        """Return the complete layout of a kernel; load the kernel first if that has not happened.

        Raises:
            BackendError: INVALID_HANDLE for an index that does not exist, or what ``load_module`` raises.
        """

    @property
    def globals(self) -> Sequence[GlobalLayout]:
        """The module's variables with their device addresses and sizes in bytes, as cuModuleGetGlobal returns them.

        ``place_managed`` changes the addresses of managed variables.
        """

    @property
    def managed_bytes(self) -> int:
        """The bytes that ``place_managed`` needs; 0 if there are none, or if the driver places them itself."""

    def place_managed(self, address: int, *, is_in_use: bool) -> None:
        """Move the managed variables to ``managed_bytes`` of zeroed memory at an address, before the first launch.

        With ``is_in_use`` the memory has the variables of another module with the same code, whose values stay.

        Raises:
            BackendError: NOT_SUPPORTED, or INVALID_VALUE if it is too late.
        """

    def unload(self) -> None:
        """Free the module once the work that is queued in its context is done.

        In a faulted context it is freed with the context.
        """


class Condition(Protocol):
    """The condition of a conditional node; kernels set it with cudaGraphSetConditional.

    The executor sets the default value when a graph starts, and reads ``value`` when the stream reaches the node.
    """

    value: int


class EvaluatesConditions(Protocol):
    """The part of a context for conditional nodes (CUDA driver API, Graph Management).

    Without ``Capabilities.evaluates_conditions`` all calls raise BackendError NOT_SUPPORTED.
    """

    def condition(self, handle: int) -> Condition:
        """Return the condition that kernels name by a handle (CUgraphConditionalHandle).

        All graphs get the same condition, as long as one of them uses it.
        """

    def call(self, stream: Any, pieces: Iterator[None]) -> None:
        """Step through ``pieces`` when the stream reaches this point, as device work; later work waits for the end.

        A step may queue work in streams. A BackendError that it raises is a fault of the context.
        """


class Context(MapsMemory, EvaluatesConditions, Protocol):
    """One client context: its memory, modules and streams. Destroying it frees all of them.

    Contexts of one client share its address space and its memory limit (``Device.create_context``).
    """

    def allocate(self, count: int) -> int:
        """Return the address of ``count`` bytes of new memory.

        Raises:
            BackendError: INVALID_VALUE for 0 bytes; OUT_OF_MEMORY names the limit that is reached. It is a
                `backends.budget.Shortage` if the device lacks bytes that the client is guaranteed.
        """

    def free(self, address: int, done: Completion) -> None:
        """Free memory, as cuMemFree does, when the work queued in the context before is done; then call ``done``.

        No effect in a faulted context.

        Raises:
            BackendError: INVALID_VALUE, immediately, unless an allocation starts at the address.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes; total is the client's limit if it has one.

        As cuMemGetInfo reports them: other clients' memory counts as used.
        """

    def load_module(self, image: bytes) -> Module:
        """Load PTX text, a cubin or a fatbin.

        Raises:
            BackendError: INVALID_PTX, INVALID_IMAGE, NO_BINARY_FOR_GPU ..., with a reason that names line and
                instruction if the image is PTX; OUT_OF_MEMORY.
        """

    @property
    def default_stream(self) -> Stream:
        """The legacy default stream, which synchronizes with the context's blocking streams in both directions.

        It exists as long as the context (CUDA driver API, Stream synchronization behavior).
        """

    def create_stream(self, non_blocking: bool, priority: int) -> Stream:
        """Return a new stream; ``priority`` is clamped to the range of ``Device.stream_priorities``.

        A stream that is not ``non_blocking`` and ``default_stream`` wait for each other.

        Raises:
            BackendError: The sticky error of a faulted context.
        """

    def create_event(self, timing: bool) -> Event:
        """Return a new event, which counts as done until it is recorded; only events with ``timing`` have times.

        Raises:
            BackendError: The sticky error of a faulted context.
        """

    def open_event(self, event: Event) -> Event:
        """Return an event of this context that stands for an event of another context of the device.

        Recording one of them records both.

        Raises:
            BackendError: NOT_SUPPORTED.
        """

    def notify(self, done: Completion) -> None:
        """Call ``done`` when all work queued in all streams before this call is done.

        In a faulted context it is called immediately, with the sticky error.
        """

    def set_limit(self, limit: ContextLimit, count: int) -> None:
        """Set a limit to ``count`` bytes.

        Raises:
            BackendError: NOT_SUPPORTED; INVALID_VALUE if it is too late.
        """

    def take_output(self) -> tuple[bytes, bytes]:
        """Return the text that kernels have printed since the last call: to standard output, and to standard error.

        Every text is returned once; both are empty if there is none.
        """

    @property
    def status(self) -> Status:
        """SUCCESS, or the sticky error of a faulted, terminated or destroyed context.

        May be read from any thread; it does not wait for work.
        """

    def terminate(self, status: Status) -> None:
        """Make ``status`` the sticky error: stop running work, drop waiting work, free the context's memory.

        Raises:
            BackendError: LAUNCH_TIMEOUT, after two seconds, if kernels still run that the device cannot stop. A
                further call waits again.
        """

    def abandon(self) -> None:
        """Accept no more work, without waiting. ``destroy`` must follow; its two seconds begin here.

        Work that runs is stopped if the device can stop it; pending completions get CONTEXT_IS_DESTROYED.
        """

    def destroy(self) -> None:
        """Stop or finish running work and free everything; later completions get CONTEXT_IS_DESTROYED.

        Return after two seconds, even if kernels that the device cannot stop still run. Then the context keeps its
        resources, which stay counted, until they have ended, and the device counts it as ``unfinished``.
        """
