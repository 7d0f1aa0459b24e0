"""Define the messages between the daemon and a server, over the registration socket that the server inherits.

Messages are MessagePack maps with the names of fields as keys. A daemon takes over servers that an earlier version
started, and communicates with them as long as they run, so a field keeps its name even if the product uses another
word today: ``namespace`` is the inode of a client's PID namespace and ``mps_namespace`` its MPS namespace. A new
field has a default for when an older sender omits the field; an older receiver ignores the field. Fields of a base
class are encoded like the message's own.
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
    """The limit of each client of this server, in bytes by device ordinal."""
    machine: str = ""
    """PYMPSD_EMULATED_DEVICES with an absolute path; the machine's state is next to the file."""
    used: tuple[int, ...] | None = None
    """The ordinals of the devices that the server's clients may use; None for all."""
    static: bool = False
    """Whether the server's clients run in static SM partitions only (protocol 2 with -S)."""


@message(34)
class StatusChanged:
    """The server's status; sent without a request whenever it changes."""

    status: str


@frozen
class ClientIdentity:
    """A client's identity as the daemon determined it; the server reports it to the next daemon."""

    client: int
    pid: int
    uid: int
    command: str
    namespace: int
    """The inode of the client's PID namespace."""
    mps_namespace: str = field(default="", kw_only=True)
    since: float = field(default=0.0, kw_only=True)
    """The time when the client connected, in seconds since 1970."""


@frozen(kw_only=True, slots=False)
class AdmittedLimits:
    """The fields of `ClientLimits` without its namespace; ``own`` is None in protocol 2."""

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
    """The percentage on every device; None for the server's percentage."""
    memory_limits: dict[int, int] | None = None
    """The limits in bytes by device ordinal; None for the server's limits."""
    least_priority: int = 0
    """The priority level that the client's environment cannot exceed."""


@register(35)
@frozen
class AdmitClient(ClientIdentity, AdmittedLimits, LimitsOfOlderServers):
    """With 2 fds: the server's end of the session and a pidfd of the client (1 fd if no pidfd is available)."""

    gid: int
    priority: int
    environment: dict[str, str]


@message(62)
class ClientJoined:
    """A client was accepted. The message states the limits that apply to the client until it leaves."""

    client: int
    limits: LimitsInForce


@message(36)
class ContextReported:
    """A client has created a context."""

    client: int
    serial: int
    number: int
    """The number of the context in its process, counted from 1."""
    device: int


@message(37)
class ContextGone:
    """A context is destroyed and its resources are freed."""

    client: int
    serial: int


@message(38)
class ClientGone:
    """A client process has left the server; after the last one, the daemon may give the turn to another user."""

    client: int


@message(39)
class ShutDown:
    """Shut down when the last client has gone or, if ``forced``, immediately."""

    forced: bool
    is_deletion: bool = False
    """True if the clients whose work ends get the reason that the server was deleted."""


@message(40)
class LogRecord:
    """A line for server.log: an event of the catalogue with its fields, at a time in seconds since the epoch."""

    event: str
    fields: dict[str, str | int | float]
    time: float
    namespace: str = ""
    """The namespace of the client that the line is about (protocol 3 only)."""


@message(41)
class LogDropped:
    """The link was full and ``count`` records were dropped."""

    count: int


@message(42)
class LimitsChanged:
    """New limits for the server's next clients: a percentage, and bytes by device ordinal."""

    thread_percentage: float
    memory_limits: dict[int, int]


@message(43)
class TerminateClient:
    """Terminate all contexts of the client process with this PID. Terminated, with the same token, is the answer."""

    token: int
    pid: int
    by_reset: bool = False
    """True if the device may be reset, as after a fatal fault, to end kernels that cannot be stopped."""
    expelled: tuple[int, ...] = ()
    """The ids of clients that cannot create contexts from now on: their namespace or SM partition was deleted."""


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
    """The bytes that clients of other servers hold on a device, in total and by group of clients."""

    device: int
    count: int
    groups: dict[str, int]


@message(58)
class StartTrace:
    """With 1 fd: the executors write their work to this trace."""


@message(59)
class StopTrace:
    """The executors stop writing to the trace; answered by TraceStopped."""


@message(60)
class TraceStopped:
    """Everything has been written to the trace."""


# --- takeover of a server by the next daemon, with the link that the keeper held. Other builds must be able to read
# these.


@message(45)
class StartRefused:
    """The reason why the server cannot start; the server ends after this message."""

    reason: str


@message(46)
class ReportRequest:
    """The first message of a daemon that takes the link over; the server answers with ServerReturn.

    A server that has not received ServerSetup yet repeats its ServerHello instead.
    """

    versions: Versions
    token: int = 0
    """A number that the answer repeats. It distinguishes the answer from one that a killed daemon did not read."""


@message(52)
class ServerReturn:
    """A server's report to the next daemon, which replaces earlier reports; ``clients`` ReturningClient messages
    follow.
    """

    versions: Versions
    pid: int
    status: str
    leaving: bool
    """Whether the server was asked to shut down, so that it ends with its last client."""
    clients: int
    token: int = 0
    """The token of the ReportRequest."""


@register(53)
@frozen
class ReturningClient(ClientIdentity):
    """A client of a returning server, as the earlier daemon described it."""

    contexts: tuple[tuple[int, int, int], ...]
    """The client's contexts, each as (id, number, device), as in ContextReported."""
    partitions: dict[int, str] = field(factory=dict)
    """The client's SM partitions by device ordinal."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """Limits of memory that the client shares with other clients, by device ordinal."""
    limits: LimitsInForce | None = None
    """The limits that apply to the client; None if the client was not accepted yet."""


@message(54)
class ServerAdopted:
    """The new daemon adopts the server."""


@message(55)
class ServerDismissed:
    """The new daemon does not adopt the server, which ends with its last client and cannot be adopted later."""

    reason: str


@message(57)
class EndIfAlone:
    """End with the last client unless a daemon comes earlier.

    The keeper sends it when no daemon has come for a long time.
    """
