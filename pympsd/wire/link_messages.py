"""Messages between the daemon and a server, over the registration socket that the server inherits.

The fields' names are the encoding (MessagePack maps): a name stays even if the product calls the thing otherwise by
now, because a daemon takes over servers that an earlier version started, and speaks with them as long as they run. So
``namespace`` is the inode of a client's PID namespace and ``mps_namespace`` its MPS namespace; a new field has a
default, which applies if an older sender does not send the field, and an older receiver ignores it. The fields of a
base class are encoded with those of the message itself.
"""

from attrs import field, frozen

from pympsd.vocabulary.device_properties import DeviceProperties, DeviceUse
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import LimitsInForce, MemoryGroup
from pympsd.vocabulary.partitions import ChosenPartition
from pympsd.wire.messages import Versions, message, register


@message(32)
class ServerHello:
    """The server's first message."""

    versions: Versions
    pid: int


@register(33)
@frozen
class ServerSetup:
    """A server's configuration: its user, its devices and its initial limits."""

    uid: int
    control_socket: str
    backend: str
    devices: tuple[DeviceProperties, ...]
    thread_percentage: float
    client_priority: int
    memory_limits: dict[int, int]
    """Bytes by device ordinal: the limit of each client of this server there."""
    machine: str = ""
    """PYMPSD_EMULATED_DEVICES with an absolute path; the machine's state is next to that file."""
    used: tuple[int, ...] | None = None
    """The ordinals of the devices that its clients may use; None: all."""
    static: bool = False
    """Whether its clients run in static SM partitions only (protocol 2 with -S)."""


@message(34)
class StatusChanged:
    """The server's status, sent whenever it changes; the daemon never asks for it."""

    status: str


@frozen
class ClientIdentity:
    """A client as the daemon saw it, which a server reports to the next daemon."""

    client: int
    pid: int
    uid: int
    command: str
    namespace: int
    """The inode of its PID namespace."""
    mps_namespace: str = field(default="", kw_only=True)
    since: float = field(default=0.0, kw_only=True)
    """The time when the client connected, in seconds since 1970."""


@frozen(kw_only=True, slots=False)
class AdmittedLimits:
    """The fields of `ClientLimits`, as they are, except for its namespace; ``own``: None in protocol 2."""

    own: Limits | None = None
    bounds: tuple[Limits, ...] = ()
    devices: tuple[int, ...] | None = None
    partitions: dict[int, ChosenPartition] = field(factory=dict)
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    audited: bool = False
    static: bool = False


@frozen(kw_only=True, slots=False)
class LimitsOfOlderServers:
    """The limits for servers of pympsd before 27 November 2026, which do not read `AdmittedLimits`."""

    thread_percentage: float | None = None
    """The percentage on every device; None: the server's."""
    memory_limits: dict[int, int] | None = None
    """Bytes by device ordinal."""
    least_priority: int = 0
    """The level that its environment cannot go beyond."""


@register(35)
@frozen
class AdmitClient(ClientIdentity, AdmittedLimits, LimitsOfOlderServers):
    """With 2 fds: the server's end of the session and a pidfd of the client (1 fd if no pidfd is available)."""

    gid: int
    priority: int
    environment: dict[str, str]


@message(62)
class ClientJoined:
    """A client was accepted; the limits in force for it as long as it stays."""

    client: int
    limits: LimitsInForce


@message(36)
class ContextReported:
    """A client has created a context."""

    client: int
    serial: int
    number: int
    """Counts the process's contexts from 1."""
    device: int


@message(37)
class ContextGone:
    """A context is destroyed and its resources are freed."""

    client: int
    serial: int


@message(38)
class ClientGone:
    """A client process is gone from the server; when none is left the daemon may pass the turn on."""

    client: int


@message(39)
class ShutDown:
    """Shut down when the last client has gone, or (forced) immediately."""

    forced: bool
    is_deletion: bool = False
    """True if the clients that the server ends are sent the reason."""


@message(40)
class LogRecord:
    """A line for server.log: an event of the catalogue with its fields, at a time in seconds since the epoch."""

    event: str
    fields: dict[str, str | int | float]
    time: float
    namespace: str = ""
    """The namespace of the client that it is about (protocol 3 only)."""


@message(41)
class LogDropped:
    """The link was full and ``count`` records were dropped."""

    count: int


@message(42)
class LimitsChanged:
    """New limits for the server's later clients: a percentage, and bytes by device ordinal."""

    thread_percentage: float
    memory_limits: dict[int, int]


@message(43)
class TerminateClient:
    """Terminate all contexts of the client process with this PID; answered by Terminated with the same token."""

    token: int
    pid: int
    by_reset: bool = False
    """End kernels that cannot be stopped by resetting the device, as after a fatal fault."""
    expelled: tuple[int, ...] = ()
    """Clients, by id, that get no context any more: their namespace or SM partition was deleted."""


@message(44)
class Terminated:
    """The result of a termination: a CUresult number."""

    token: int
    code: int


@register(56)
@frozen
class MemoryReported(DeviceUse):
    """The use of a device by this server; sent after changes, a few times per second."""

    device: int = field(kw_only=True)


@message(61)
class MemoryElsewhere:
    """The bytes that clients of other servers hold on a device, in all and by group of clients."""

    device: int
    count: int
    groups: dict[str, int]


@message(58)
class StartTrace:
    """With 1 fd: the executors write their work to this trace."""


@message(59)
class StopTrace:
    """They write no more; answered by TraceStopped."""


@message(60)
class TraceStopped:
    """All is written."""


# --- the next daemon takes a server over with the link, which the keeper held. Other builds have to read these.


@message(45)
class StartRefused:
    """The reason why the server cannot start; the server ends after this message."""

    reason: str


@message(46)
class ReportRequest:
    """The first message of a daemon that takes the link over: the server answers with ServerReturn.

    A server that has had no ServerSetup yet then repeats its ServerHello.
    """

    versions: Versions
    token: int = 0
    """Distinguishes the answer from that to a daemon that was killed before it had read it."""


@message(52)
class ServerReturn:
    """A server's report to the next daemon; ``clients`` ReturningClient follow. Earlier reports are void."""

    versions: Versions
    pid: int
    status: str
    leaving: bool
    """It was asked to shut down, and ends with its last client."""
    clients: int
    token: int = 0
    """The token of the request."""


@register(53)
@frozen
class ReturningClient(ClientIdentity):
    """A client of a returning server, as the earlier daemon described it."""

    contexts: tuple[tuple[int, int, int], ...]
    """(id, number, device) of each, as in ContextReported."""
    partitions: dict[int, str] = field(factory=dict)
    """The client's SM partitions by device ordinal."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """Limits of memory that it shares with other clients, by device index."""
    limits: LimitsInForce | None = None
    """The limits in force for it, if it was accepted."""


@message(54)
class ServerAdopted:
    """The new daemon adopts the server."""


@message(55)
class ServerDismissed:
    """The new daemon does not adopt the server: it ends with its last client, and no daemon after the link's end."""

    reason: str


@message(57)
class EndIfAlone:
    """End with the last client unless a daemon comes before; from the keeper, when none has come for a long time."""
