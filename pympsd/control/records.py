"""A daemon's devices, servers and clients as values; ``--json`` prints the same.

`RunningDaemon` returns them. They are frozen, and equal if the daemon reported the same. Units are in the names of
the fields or in their descriptions.
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec
from attrs import field, frozen

from pympsd.control.connection import CannotAsk
from pympsd.vocabulary.untrusted import ESCAPED

T = TypeVar("T")
MAX_COUNT: Final = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of things or bytes. A larger number cannot come from a daemon, and could not be formatted."""


def convert(kind: type[T], value: Any) -> T:
    """Convert an answer of the daemon to records of a type.

    Args:
        kind: A record of this module, or a tuple of one: ``tuple[Server, ...]``.
        value: The answer, as json.loads returns it. Keys that the record does not have are ignored, so a newer daemon
            can be asked.

    Raises:
        CannotAsk: The value does not fit the type, for example because a program of another kind answered. The
            message names the field.
    """
    try:
        # Keys of JSON are texts, which stand for ordinals here.
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        reason = f"the MPS control daemon's answer is not one that a daemon gives: {error}"
        raise CannotAsk(reason.translate(ESCAPED)) from None


@frozen
class Device:
    """A device of the daemon, as ``device_query`` reports it.

    It is one of ``RunningDaemon.devices()``; other records name it by ``ordinal``.
    """

    ordinal: Count
    """The daemon's number of the device, from 0."""
    uuid: str
    """``GPU-`` and 32 hexadecimal digits in groups."""
    pci: str
    """The address on the PCI bus in the form of ``device_query``, such as ``0000:00.06.00``."""
    name: str
    """The product's name, such as ``NVIDIA H200``."""
    multiprocessors: Count
    """The number of SMs."""
    memory_bytes: Count
    """The device's whole memory, in bytes."""


@frozen
class Machine:
    """The answer to ``device_query``: the devices that the daemon manages, in the order of their ordinals.

    ``RunningDaemon.devices()`` returns its contents.
    """

    devices: tuple[Device, ...]


@frozen
class Context:
    """A context of a client: a row of ``ps``.

    A process has several if it makes contexts on several devices, or more than one on a device.
    """

    id: Count
    """Unique on the client's server."""
    number: Count
    """Counts the contexts of the process, from 1."""
    device: Count
    """The daemon's ordinal."""


@frozen
class Client:
    """A client process of a server; ``contexts`` is empty if it has only called cuInit.

    Clients are in ``Server.clients``, and in ``RunningDaemon.ps()`` if they have a context. The limits are those in
    force, combined from its namespace, rules and its own environment.
    """

    pid: Count
    """Its PID as the daemon sees it; 0 if it is outside the daemon's PID namespace."""
    uid: Count
    """The number of its user."""
    command: str
    """Its command line."""
    pid_namespace: Count
    """The inode of its PID namespace, as ``ls -l /proc/PID/ns/pid`` shows it."""
    namespace: str | None
    """The namespace of its server that it connected to, in protocol 3."""
    active_thread_percentage: float | dict[int, float] | None
    """The percentage in force for it, by the daemon's ordinal if its devices differ; on the driver's own server, the
    one that the daemon has set."""
    memory_bytes: dict[int, Count]
    """The bytes that it holds, by the daemon's ordinal; on the driver's own server as NVML reports them."""
    contexts: tuple[Context, ...]
    """Its contexts, in the order in which it made them."""
    multiprocessors: dict[int, Count] = field(factory=dict)
    """The SMs that it may use, by the daemon's ordinal."""
    memory_limits: dict[int, Count] = field(factory=dict)
    """The bytes that it may hold at most, by the daemon's ordinal; a device that is absent has no limit."""
    priority: int | None = None
    """0: normal, 1: below normal."""
    draining: str | None = None
    """The target of the drain that waits for the client's end, as ``undrain`` takes it; None without such a drain."""


@frozen
class Server:
    """A server process, one of ``RunningDaemon.servers()``.

    In protocol 2 a user has one at most, in protocol 3 each named server is one.
    """

    pid: Count
    """Its PID."""
    uid: Count
    """The number of the user whose clients it serves; 0 with ``-multiuser-server``."""
    name: str
    """``uid_N`` for a user's own server; others exist in protocol 3 only."""
    status: str
    """``INITIALIZING``, ``ACTIVE`` or ``FAULT``, as ``get_server_status`` prints it."""
    active_thread_percentage: float
    """The percentage that the next client gets; it applies in protocol 2 only."""
    pinned_memory_limits: dict[int, Count]
    """In protocol 2, the memory limits of the next client: bytes by the daemon's ordinal."""
    launches: dict[int, Count]
    """Kernels started on each device; the driver's own server does not report it."""
    clients: tuple[Client, ...]
    """Its clients, those without a context too."""
    draining: str | None = None
    """The target of a drain of this server, or of all; None without one."""


@frozen
class Waiting:
    """A client that waits for a server, or an operator's request to start one.

    ``RunningDaemon.waiting()`` returns them in the order of the queue.
    """

    pid: Count
    """The client's PID; 0 for a request."""
    uid: Count
    """The number of the user who waits."""
    server: str
    """The name of that server."""
    command: str
    """The client's command line."""
    held_by: str | None = None
    """The target of the drain that holds it; None if it waits for its turn."""


@frozen
class Drain:
    """A drain in force: it holds new clients of its target and waits for the running ones.

    ``RunningDaemon.drains()`` returns them, the oldest first; ``RunningDaemon.undrain`` ends one.
    """

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
    """A client that a drain has waited for, or that remains.

    ``pid`` is as the daemon sees it, ``uid`` the number of its user, ``server`` the name of its server.
    """

    pid: Count
    uid: Count
    server: str
    how: str = ""
    """``finished``, ``terminated`` or ``server ended``; empty if it remains."""


@frozen
class Drained:
    """The result of a drain, as ``RunningDaemon.drain`` returns it when all clients have ended, or its time is over.

    >>> Drained(drained=True, ends=(), left=()).drained
    True
    """

    drained: bool
    """Whether no clients remain."""
    ends: tuple[DrainedClient, ...]
    """The clients that ended during the drain, in that order."""
    left: tuple[DrainedClient, ...]
