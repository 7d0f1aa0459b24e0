"""Define the messages on the link between a server (or a client without a daemon) and an executor.

    server                          executor
    ExecutorSetup ----------------> opens the device
                  <---------------- ExecutorReady, or ExecutorFailed and the end
    Attach -----------------------> creates a context, and with new_stream the client's command stream
                  <---------------- Attached (with descriptors for the client), or ExecutorRefused
    Detach, DropClient, Terminate > destroys contexts
                  <---------------- ExecutorDone
                  <---------------- ContextFaulted, MemoryUsed, MemoryShort, ... whenever they happen

A request has a number, which its reply repeats; replies may come in any order. Clients' work is not sent over this
link, but in the command streams (`records`). Each class has a number on the wire (``@message``). A server refuses an
executor of another build, so fields may change from build to build.
"""

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd.wire.messages import message, register


@message(64)
class ExecutorSetup:
    """Open a device; an executor of another build refuses."""

    build: str
    ordinal: int
    generation: int
    backend: str
    device: DeviceProperties
    reports_memory: bool = False
    """True if the executor must send MemoryUsed."""


@message(65)
class ExecutorReady:
    """The device is open."""

    pid: int
    workers: str = ""
    """The reader of clients' records: ``native``, or ``python`` and the reason; empty if the backend has no native
    reader.
    """


@message(66)
class ExecutorFailed:
    """The device could not be opened; the executor ends."""

    code: int
    reason: str


@message(67)
class Attach:
    """Create a context for a client process; with ``new_stream`` also its command stream."""

    request: int
    client: int
    context: int
    new_stream: bool
    quota: Quota
    pid: int = 0
    """The client's PID, for traces."""


@message(68)
class Attached:
    """The context was created.

    If ``new_stream`` was set, 2 fds are sent: the client's end of the stream and the shared memory.
    """

    request: int
    shared_bytes: int
    """The size in bytes of the area for bulk data, which begins the shared memory."""
    memory_bytes: int
    stream_priorities: tuple[int, int]
    ring_bytes: int = 0
    """The size of the ring behind the bulk data, AREA_BYTES of ring_layout; 0 if records are sent over the socket."""


@message(69)
class Detach:
    """Destroy a context and free its resources."""

    request: int
    context: int


@message(74)
class Terminate:
    """Stop a context's work permanently and free its memory; every later call in it fails with this CUresult."""

    request: int
    context: int
    code: int = Result.ERROR_MPS_CLIENT_TERMINATED
    reason: str = ""


@message(70)
class DropClient:
    """A client process has gone: destroy its contexts, stop its kernels, close its stream."""

    request: int
    client: int


@message(71)
class ExecutorDone:
    """The answer to Detach, Terminate, DropClient and Ping."""

    request: int
    unfinished: int = 0
    """In replies to Detach and DropClient: the number of destroyed contexts, of any client, whose kernels still run.

    They keep their resources until the kernels end or the executor is replaced.
    """


@message(72)
class ExecutorRefused:
    """Attach, Detach, Terminate or AskTrace failed."""

    request: int
    code: int
    reason: str
    short: int = 0
    """The bytes of device memory that were missing for the context of a client within its soft limit; otherwise 0."""


@message(81)
class MemoryShort:
    """The device is full, and a client within its soft limit lacks memory; answered by RoomMade.

    A MemoryUsed is sent before it, and also before answers to Terminate.
    """

    request: int
    client: int
    short: int
    """The number of bytes that are missing."""


@message(82)
class RoomMade:
    """The answer to MemoryShort: whether memory was freed, so that trying again may succeed."""

    request: int
    freed: bool


@message(84)
class OthersMemory:
    """The bytes that clients of other executors hold on the device, in total and by group of clients."""

    count: int
    groups: dict[str, int]


@message(83)
class MemoryAudited:
    """An audited client has allocated device memory, or (negative) freed it."""

    client: int
    change: int
    used: int
    """The bytes that the client holds after the allocation or release."""
    limit: int
    """The smallest of the client's limits in bytes, or the device's memory."""


@message(73)
class ContextFaulted:
    """A kernel or a copy of a context failed, and the error is sticky: later calls in the context return it."""

    context: int
    code: int
    reason: str


@register(78)
@frozen
class MemoryUsed:
    """Device memory in bytes by client; sent after changes, at most a few times per second.

    If only other fields have changed, it is sent at most once a second.
    """

    clients: dict[int, int]
    launches: int = 0
    """The number of kernels that were started since the last report."""
    utilization: int | None = None
    """The percentage of the last sample period in which kernels ran; None if the backend does not count it."""


@message(77)
class Ping:
    """A health check, answered by a thread that never waits for a kernel."""

    request: int


@message(79)
class StartTimeline:
    """With 1 fd: write the device's work to this trace from now on; refused if the work cannot be timed."""

    request: int


@message(80)
class StopTimeline:
    """Stop writing to the trace; answered when everything has been written."""

    request: int


@message(75)
class AskTrace:
    """Request a Trace of the device."""

    request: int


@frozen
class ContextTrace:
    """A context's share of the multiprocessors; ``context`` is its id, as in Attach."""

    context: int
    multiprocessors: tuple[int, ...]
    """The ids of the multiprocessors that the context may use, as its kernels read them in %smid."""
    slots: int
    """The number of blocks of the smallest size that can be resident on these multiprocessors at the same time."""
    resident_high_water: int
    """The largest number of blocks that were resident at the same time."""


@frozen
class BatchTrace:
    """Blocks of one kernel that started together; ``sequence`` numbers the batches of the device."""

    sequence: int
    context: int
    kernel: str
    """The kernel's name, cut to ``MAX_KERNEL_NAME`` characters."""
    first_block: int
    blocks: int
    priority: int
    """The client's priority, as in Attach."""


MAX_BATCH_TRACES: Final = 4096
MAX_KERNEL_NAME: Final = 100
"""The maximum length of a kernel's name in characters, so that the longest trace fits in a frame."""


@message(76)
class Trace:
    """The answer to AskTrace: counters, contexts, and the latest batches in the order of time."""

    request: int
    counters: dict[str, int]
    contexts: tuple[ContextTrace, ...]
    batches: tuple[BatchTrace, ...]
