"""A daemon's devices, servers and clients as values; ``--json`` prints the same."""

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
    """Return an answer of the daemon, as json.loads returns it, as records of a type.

    Args:
        kind: A record of this module, or a tuple of one: ``tuple[Server, ...]``.
        found: The value. Keys that the record does not have are ignored, so a newer daemon can be asked.

    Raises:
        CannotAsk: The value does not fit the type, for example because a program of another kind answered. The
            message names the field.
    """
    try:
        # Keys of JSON are texts, which stand for ordinals here.
        return msgspec.convert(found, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        reason = f"the MPS control daemon's answer is not one that a daemon gives: {error}"
        raise CannotAsk(reason.translate(ESCAPED)) from None


@frozen
class Device:
    """A device of the daemon.

    ``ordinal`` is the daemon's index, by which limits and contexts name the device. ``uuid`` is "GPU-..." or, for a
    MIG instance, "MIG-..."; ``pci`` is the PCI address; ``memory_bytes`` is the memory of the device, whoever holds
    it.
    """

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
    """A context of a client: ``id`` is unique on its server, ``number`` counts those of the process from 1.

    A context is created by cuCtxCreate, or by the first cuDevicePrimaryCtxRetain of a device in the process.
    """

    id: Count
    number: Count
    device: Count
    """The daemon's ordinal."""


@frozen
class Client:
    """A client process of a server.

    ``pid`` is its PID as the daemon sees it, 0 if its PID namespace is not visible there; ``pid_namespace`` is the
    inode number of that namespace. ``contexts`` is empty for a client that has only called cuInit.
    """

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


@frozen
class Server:
    """A server process.

    ``name`` is ``uid_N`` for the server that a user gets without naming one. ``status`` is INITIALIZING, ACTIVE or
    FAULT (MPS documents, Provisioning Sequence); in FAULT the server contains a fatal fault of a client.
    """

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


@frozen
class Waiting:
    """A client that waits for a server, or (``pid`` 0) an operator's request to start one.

    The entries of ``get_waiting_list``, in the order of the queue; ``server`` is the name of the server that the
    entry waits for.
    """

    pid: Count
    uid: Count
    server: str
    command: str
