"""Messages on the link between a server (or a client without a daemon) and an executor."""

from __future__ import annotations

from attrs import frozen

from pympsd.vocabulary.device_facts import DeviceFacts
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


@message(65)
@frozen
class ExecutorReady:
    """The device is open."""

    pid: int


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
    """The most the context may hold, its own overhead included; 0: no limit but the device's."""
    priority: int


@message(68)
@frozen
class Attached:
    """Comes with 2 fds, the client's end of the stream and the shared memory, when ``new_stream`` was asked."""

    request: int
    shared_bytes: int
    memory_bytes: int
    stream_priorities: tuple[int, int]


@message(69)
@frozen
class Detach:
    """Destroy a context and free what it held."""

    request: int
    context: int


@message(74)
@frozen
class Terminate:
    """Stop a context's work for good: every later call in it answers CUDA_ERROR_MPS_CLIENT_TERMINATED."""

    request: int
    context: int


@message(70)
@frozen
class DropClient:
    """A client process is gone: destroy its contexts, stop its kernels, close its stream."""

    request: int
    client: int


@message(71)
@frozen
class ExecutorDone:
    """Answers Detach, Terminate and DropClient."""

    request: int


@message(72)
@frozen
class ExecutorRefused:
    """Attach, Detach or Terminate failed."""

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
