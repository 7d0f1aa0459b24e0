"""The port between an executor and what really runs the work: Device, Context, Module, Stream, Event.

Addresses are device addresses inside the device's own window, sizes are bytes. Calls are made from the executor's
worker threads, several at once; none blocks for a stream. What happens later, in stream order, is told through a
``Completion``: called once, from any thread, with the result of the context up to that point.

Errors are ``BackendError``: a CUresult number and a sentence. Sources: the CUDA driver API, chapters Memory
Management, Module Management, Execution Control, Stream Management and Event Management.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from pympsd.vocabulary.results import Result
from pympsd.wire.executor_messages import BatchTrace, ContextTrace
from pympsd.wire.module_layout import FunctionLayout, GlobalLayout

if TYPE_CHECKING:
    from ctypes import Array

    from pympsd_server.native.states import ContextState, DriverCalls, KernelRow, StreamState


class BackendError(Exception):
    """A call failed: ``code`` is the CUresult, the message is for a person."""

    def __init__(self, code: Result, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@frozen
class Outcome:
    """How the work before a completion ended: SUCCESS, or the error that ruined the context."""

    code: Result = Result.SUCCESS
    reason: str = ""


Completion = Callable[[Outcome], None]


@frozen
class Capabilities:
    """What a device of an implementation can do, as values; nobody asks which implementation or model it is."""

    isolates_address_spaces: bool
    """Whether clients cannot reach each other's memory from kernels (never by calls)."""
    contains_faults: bool
    """Whether a fault can be kept to its client; if not the device's process must be replaced."""
    stops_kernels: bool
    """Whether a running kernel can be stopped."""
    limits_multiprocessors: bool
    """Whether a context can be kept to some of the device's SMs."""
    limits_memory: bool
    """Whether a client can be kept to some of the device's memory."""
    sees_blocks: bool = True
    """Whether it sees blocks begin, which its traces then tell."""
    passes_waiting_kernels: bool = True
    """Whether a kernel can begin while one of another stream that came before it waits for room."""
    maps_host_memory: bool = False
    """Whether kernels reach memory given to ``reach_host`` by its address."""


@frozen(eq=False)
class NativeCalls:
    """How a native worker reaches the device without Python."""

    calls: DriverCalls
    refused: Callable[[int], BackendError]
    """Returns the error for a record that the driver refused with a CUresult, and does what it calls for."""


@frozen
class Quota:
    """What a context may use; a device without the capability to limit something does not look at the limit."""

    multiprocessors: int
    """How many; 0, or as many as there are: all of them, and it counts as the user of none."""
    memory_bytes: int
    """The limit of the client process, which all its contexts share, the overhead of each included; 0: none.

    The figure of its first context counts for as long as it has any.
    """
    priority: int
    """As ClientPriority.level: 0 normal, 1 below normal."""


class Stream(Protocol):
    """Work in order. Copies and fills check their addresses at once and raise BackendError (INVALID_VALUE).

    On a ruined context work raises BackendError with the sticky error, and ``notify`` calls back with it.
    """

    def copy_to_device(self, destination: int, source: memoryview, done: Completion) -> None:
        """Copy host bytes to device memory; ``source`` must stay as it is until ``done`` is called."""

    def copy_from_device(self, target: memoryview, source: int, done: Completion) -> None:
        """Copy device memory to host bytes (writable); they are there when ``done`` is called."""

    def copy_from_host(self, destination: int, source: memoryview) -> None:
        """Copy to device memory from host memory given to ``reach_host``, read when the stream comes to it."""

    def copy_to_host(self, target: memoryview, source: int) -> None:
        """Copy device memory to host memory given to ``reach_host``, written when the stream comes to it."""

    def copy_on_device(self, destination: int, source: int, count: int) -> None:
        """Copy bytes from device memory to device memory."""

    def fill(self, destination: int, value: int, width: int, count: int) -> None:
        """Set ``count`` elements of ``width`` 1, 2 or 4 bytes to a value."""

    def launch(
        self,
        module: Module,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: bytes,
        cooperative: bool = False,
    ) -> None:
        """Run a kernel: ``function`` is its index in the module's functions, ``parameters`` the flat buffer.

        ``cooperative``: all its blocks are resident together, or it is refused: COOPERATIVE_LAUNCH_TOO_LARGE.
        """

    def record(self, event: Event) -> None:
        """The event is done when the work before it in this stream is."""

    def wait(self, event: Event) -> None:
        """Later work waits for what the event last recorded; an event never recorded holds nothing up."""

    def notify(self, done: Completion) -> None:
        """Call back when all work so far in this stream is done (at once when it is)."""

    def call_host(self, begin: Completion) -> HostCall:
        """Call ``begin`` when the stream comes to this point; later work waits until the call is finished.

        ``begin`` may come before this returns. When the context is ruined or destroyed nothing waits any more, and a
        ``begin`` that has not come comes with that outcome.
        """

    @property
    def idle(self) -> bool:
        """Whether all work so far is done."""

    @property
    def native_state(self) -> StreamState | None:
        """What a native worker needs to know of it; None where the device has no native calls."""

    def destroy(self) -> None:
        """Forget the stream; its work goes on to its end."""


class HostCall(Protocol):
    """A stream's wait for something outside of the device."""

    def finish(self) -> None:
        """The stream goes on. A second time nothing happens; BackendError INVALID_VALUE before ``begin`` has come."""


class Event(Protocol):
    """A point in a stream."""

    @property
    def done(self) -> bool:
        """Whether what it last recorded is done; true when never recorded."""

    def notify(self, done: Completion) -> None:
        """Call back when what it last recorded is done."""

    def milliseconds_since(self, start: Event) -> float:
        """Time between two recorded events; BackendError INVALID_HANDLE or NOT_READY as in CUDA."""


class Module(Protocol):
    """Loaded code; its layouts are what the client launches by."""

    @property
    def functions(self) -> Sequence[FunctionLayout]:
        """Its kernels, in the order LAUNCH counts them."""

    @property
    def globals(self) -> Sequence[GlobalLayout]:
        """Its variables with their addresses."""

    @property
    def native_kernels(self) -> Array[KernelRow] | None:
        """What a native worker needs to know of its functions, in their order."""

    def unload(self) -> None:
        """Free it once its running kernels have ended."""


class Context(Protocol):
    """One client context: its memory, modules and streams. Destroying it frees all of them."""

    def allocate(self, count: int) -> int:
        """Return the address of new memory; BackendError OUT_OF_MEMORY, INVALID_VALUE for 0."""

    def free(self, address: int, done: Completion) -> None:
        """Give memory back once the context's work so far is done, as cuMemFree does; ``done`` is called then.

        BackendError INVALID_VALUE at once when it is not an allocation's start. A no-op on a ruined context.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes; total is the limit where there is one."""

    def load_module(self, image: bytes) -> Module:
        """Load code; BackendError INVALID_PTX, INVALID_IMAGE ... with a reason that names line and instruction."""

    @property
    def default_stream(self) -> Stream:
        """The legacy default stream: waits for and is waited for by the context's blocking streams."""

    def create_stream(self, non_blocking: bool, priority: int) -> Stream:
        """Return a new stream; priority is clamped to the range of ``stream_priorities``."""

    def create_event(self, timing: bool) -> Event:
        """Return a new event."""

    def notify(self, done: Completion) -> None:
        """Call back when all work so far in all streams is done."""

    @property
    def outcome(self) -> Outcome:
        """SUCCESS, or the sticky error that ruined the context."""

    @property
    def native_state(self) -> ContextState | None:
        """What a native worker needs to know of it; it is to end soon after the context does."""

    def terminate(self, outcome: Outcome) -> None:
        """Ruin the context: stop what runs, drop what waits; ``outcome`` is its sticky error from now on.

        BackendError LAUNCH_TIMEOUT, after two seconds, when kernels still run that the device cannot stop; called
        again it waits again.
        """

    def abandon(self) -> None:
        """Take no more work, and wait for nothing; the two seconds of ``destroy``, which is to follow, begin here."""

    def destroy(self) -> None:
        """Stop or finish what runs, free everything; later completions get CONTEXT_IS_DESTROYED.

        After two seconds it returns although kernels still run that the device cannot stop: the context keeps what it
        holds, counted, until they have ended, and the device counts it as ``unfinished``.
        """


class Device(Protocol):
    """One device, opened by its executor."""

    @property
    def capabilities(self) -> Capabilities:
        """What this implementation can do."""

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """Least and greatest stream priority (numerically the least is the larger)."""

    @property
    def native_calls(self) -> NativeCalls | None:
        """How a native worker executes records; None: it leaves all of them to Python."""

    @property
    def trace(self) -> Mapping[str, int]:
        """Counters for tests and operators: kernels started and finished, batches, bytes allocated ..."""

    @property
    def context_traces(self) -> Sequence[ContextTrace]:
        """What living contexts have of the multiprocessors, and how much of it they used at most."""

    @property
    def batch_traces(self) -> Sequence[BatchTrace]:
        """The latest batches of blocks that began, oldest first."""

    @property
    def memory_used(self) -> Mapping[int, int]:
        """Bytes of device memory by address space: what its allocations take, and its contexts themselves."""

    @property
    def unfinished(self) -> int:
        """How many contexts were destroyed and hold what they held, for kernels of theirs still run."""

    def reach_host(self, address: int, memory: memoryview) -> Callable[[], None]:
        """Have copies reach host memory by themselves, and kernels too at its address where the device maps it.

        ``memory`` are its bytes, whole pages, which stay while it is referred to. Return what gives it up: to be
        called once, after the work that uses it. The reference is dropped when nothing can be at work on it any more.
        BackendError OUT_OF_MEMORY or the driver's refusal.
        """

    def watch_memory(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called after every change of ``memory_used``, from any thread; it must not wait."""

    def create_context(
        self, address_space: int, quota: Quota, on_fault: Callable[[Outcome], None], serial: int = 0
    ) -> Context:
        """Make a context; contexts of one ``address_space`` (one client process) share memory.

        ``on_fault`` is called once, from any thread, when the context is ruined. ``serial`` is what the traces
        call it. BackendError OUT_OF_MEMORY when there is no room for the context itself, with what it takes.
        """

    def close(self) -> None:
        """Stop everything and let the device go."""
