"""Messages on the link between a server (or a client without a daemon) and an executor."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd.wire.messages import message


@message(64)
@frozen
class ExecutorSetup:
    """What the executor is to own; an executor of another build refuses."""

    build: str
    ordinal: int
    generation: int
    backend: str
    device: DeviceFacts
    reports_memory: bool = False
    """Whether it is to say MemoryUsed."""


@message(65)
@frozen
class ExecutorReady:
    """The device is open."""

    pid: int
    workers: str = ""
    """Who takes clients' records, ``native``, or ``python`` and why; empty where only Python can."""


@message(66)
@frozen
class ExecutorFailed:
    """The device could not be opened; the executor leaves."""

    code: int
    reason: str


@message(67)
@frozen
class Attach:
    """Make a context for a client process; ``new_stream`` says that its command stream must be made too."""

    request: int
    client: int
    context: int
    new_stream: bool
    multiprocessors: int
    memory_bytes: int
    """The most the client's contexts may hold together, the overhead of each included; 0: no limit but the device's.

    The figure that came with the client's first context counts for as long as it has any.
    """
    priority: int


@message(68)
@frozen
class Attached:
    """Comes with 2 fds, the client's end of the stream and the shared memory, when ``new_stream`` was asked."""

    request: int
    shared_bytes: int
    """Bulk data, at the start of the memory that comes along."""
    memory_bytes: int
    stream_priorities: tuple[int, int]
    ring_bytes: int = 0
    """The ring of records behind the bulk data, AREA_BYTES of ring_layout; 0: records come by the socket."""


@message(69)
@frozen
class Detach:
    """Destroy a context and free what it held."""

    request: int
    context: int


@message(74)
@frozen
class Terminate:
    """Stop a context's work for good: every later call in it answers this CUresult, for this reason."""

    request: int
    context: int
    code: int = Result.ERROR_MPS_CLIENT_TERMINATED
    reason: str = "an operator ended this context with terminate_client; destroy it and make another"


@message(70)
@frozen
class DropClient:
    """A client process is gone: destroy its contexts, stop its kernels, close its stream."""

    request: int
    client: int


@message(71)
@frozen
class ExecutorDone:
    """Answers Detach, Terminate, DropClient and Ping."""

    request: int
    unfinished: int = 0
    """To Detach and DropClient: how many contexts, of whomever, are destroyed and have kernels that still run.

    They keep what they hold until those have ended, or until the executor is replaced.
    """


@message(72)
@frozen
class ExecutorRefused:
    """Attach, Detach, Terminate or AskTrace failed."""

    request: int
    code: int
    reason: str


@message(73)
@frozen
class ContextFaulted:
    """A kernel or copy ruined its context; sticky from now on."""

    context: int
    code: int
    reason: str


@message(78)
@frozen
class MemoryUsed:
    """What clients hold on the device, in bytes by client; said when it has changed, at most a few times a second."""

    clients: dict[int, int]


@message(77)
@frozen
class Ping:
    """Are you well? Answered by a thread that never waits for a kernel."""

    request: int


@message(75)
@frozen
class AskTrace:
    """What did the device do?"""

    request: int


@frozen
class ContextTrace:
    """A living context's part of the multiprocessors; ``context`` is the serial it was attached by."""

    context: int
    multiprocessors: tuple[int, ...]
    """The ids of those it may use, as its kernels read them in %smid."""
    slots: int
    """Blocks that can be resident on them at once, however small."""
    resident_high_water: int
    """The most that were."""


@frozen
class BatchTrace:
    """Blocks of one kernel that began together; ``sequence`` counts all such beginnings on the device."""

    sequence: int
    context: int
    kernel: str
    """Its name, cut to ``KERNEL_NAME_LIMIT`` characters."""
    first_block: int
    blocks: int
    priority: int
    """The client's, as in Attach."""


BATCH_TRACE_LIMIT: Final = 4096
KERNEL_NAME_LIMIT: Final = 100
"""So that the longest trace is well within a frame."""


@message(76)
@frozen
class Trace:
    """Answers AskTrace: counters, living contexts, and the latest batches, oldest first."""

    request: int
    counters: dict[str, int]
    contexts: tuple[ContextTrace, ...]
    batches: tuple[BatchTrace, ...]
