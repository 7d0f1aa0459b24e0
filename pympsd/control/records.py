"""A daemon's devices, servers and clients as values; ``--json`` prints the same."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from attrs import frozen

from pympsd.control.connection import CannotAsk
from pympsd.vocabulary.untrusted import ESCAPED

T = TypeVar("T")
MAX_COUNT: Final = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of things or bytes. A larger one is not a daemon's, and could not be formatted."""


def convert(kind: type[T], found: Any) -> T:
    """Return an answer of the daemon as records; raise CannotAsk with an explanation if it is something else."""
    try:
        # Keys of JSON are texts, which stand for ordinals here.
        return msgspec.convert(found, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        reason = f"the MPS control daemon's answer is not one that a daemon gives: {error}"
        raise CannotAsk(reason.translate(ESCAPED)) from None


@frozen
class Device:
    """A device of the daemon."""

    ordinal: Count
    uuid: str
    pci: str
    name: str
    multiprocessors: Count
    memory_bytes: Count


@frozen
class Machine:
    """The answer to ``device_query``."""

    devices: tuple[Device, ...]


@frozen
class Context:
    """A context of a client: ``id`` is unique on its server, ``number`` counts those of the process from 1."""

    id: Count
    number: Count
    device: Count
    """The daemon's ordinal."""


@frozen
class Client:
    """A client process of a server."""

    pid: Count
    uid: Count
    command: str
    pid_namespace: Count
    namespace: str | None
    """The namespace of its server that it came to, in protocol 3."""
    active_thread_percentage: float | dict[int, float] | None
    """The percentage in force for it, by the daemon's ordinal if those of its devices differ; on the driver's own
    server what the daemon has set.
    """
    memory_bytes: dict[int, Count]
    """The bytes that it holds, by the daemon's ordinal; on the driver's own server as NVML reports them."""
    contexts: tuple[Context, ...]
    draining: str | None = None
    """The target of the drain that waits for its end, as ``undrain`` takes it; None: there is none."""


@frozen
class Server:
    """A server process."""

    pid: Count
    uid: Count
    name: str
    status: str
    active_thread_percentage: float
    """In protocol 2 the percentage of the next client; the limits likewise."""
    pinned_memory_limits: dict[int, Count]
    """Bytes by the daemon's ordinal."""
    launches: dict[int, Count]
    """Kernels started on each device; the driver's own server does not report it."""
    clients: tuple[Client, ...]
    draining: str | None = None
    """The target of a drain of this server, or of all; None: there is none."""


@frozen
class Waiting:
    """A client that waits for a server, or (``pid`` 0) an operator's request to start one."""

    pid: Count
    uid: Count
    server: str
    command: str
    held_by: str | None = None
    """The target of the drain that holds it; None: it waits for its turn."""


@frozen
class Drain:
    """A drain in force."""

    target: str
    """The target, as ``undrain`` takes it."""
    state: str
    """``draining``, ``terminating``, ``drained`` or ``not drained``."""
    clients: tuple[Count, ...]
    """The PIDs of the clients that still run."""
    held: Count
    """The number of new clients that it holds."""


@frozen
class DrainedClient:
    """A client that a drain has waited for, or that is left."""

    pid: Count
    uid: Count
    server: str
    how: str = ""
    """``finished``, ``terminated`` or ``server ended``; empty: it is left."""


@frozen
class Drained:
    """The result of a drain."""

    drained: bool
    """Whether nothing is left."""
    ends: tuple[DrainedClient, ...]
    """The clients that have ended meanwhile, in that order."""
    left: tuple[DrainedClient, ...]
