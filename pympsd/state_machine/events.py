"""These events, as values, describe everything that can happen to the daemon.

The I/O layer feeds each of them to `pympsd.state_machine.decide.handle`. An event is a fact: nothing is refused at
this point, and an event about a server or client that is gone has no effect. Events contain what the machine cannot
find out itself because it does no I/O: the time, the process behind a connection, the content of a file.
"""

from attrs import field, frozen

from pympsd.state_machine.instructions import Timer
from pympsd.state_machine.state.client import Client, ClientProcess, ReportedContext
from pympsd.takeover.state.other_devices import OtherDevices
from pympsd.takeover.state.records import PersistentState
from pympsd.vocabulary.device_properties import DeviceProperties, DeviceUse
from pympsd.vocabulary.limits import LimitsInForce
from pympsd.vocabulary.parsed_line import ParsedLine
from pympsd.vocabulary.rules import Origin


@frozen
class Event:
    """Something that has happened."""


@frozen
class OperatorLine(Event):
    """An operator gave a command.

    It is answered with one Reply to ``session``. ``uid`` is the operator's, as the kernel reports it.
    """

    session: int
    uid: int
    line: ParsedLine
    silent: tuple[int, ...] = ()
    """The PIDs of the servers that were asked for their tables before and did not answer in time."""
    file: bytes | None = None
    """The text of the file that the line names."""
    at: float = 0.0
    """The time at which the line arrived, in seconds since 1970."""
    server: str = ""
    """The server whose socket received the line (protocol 3 only); empty means the daemon's own socket."""
    namespace: str = ""
    process: Origin | None = None
    """The process that the line names; None if that process does not exist."""
    cgroups: frozenset[str] | None = None
    """The cgroups that exist, among those with limits that end with the cgroup; None if they were not checked."""
    origins: dict[int, Origin] = field(factory=dict)
    """The properties, by PID, of clients' processes that were not known before; empty if the line needs none."""


@frozen
class ClientConnected(Event):
    """A client connected.

    ``client`` is the daemon's id, which no other client of this daemon has had; ``environment`` are its CUDA
    variables. It is answered with AdmitClient, RefuseClient or ContinueWithoutMps, perhaps much later.
    """

    client: int
    process: ClientProcess
    environment: dict[str, str] = field(factory=dict)
    traced: bool = False
    """True if a debugger traces the client's process."""
    joins: bool = False
    """True if the process may have another connection, of a client that was admitted: it connects once for each
    context."""
    server: str = ""
    """The server whose socket the client used (protocol 3 only); empty means the top socket."""
    connection: int = 0
    """The id of the client's connection, which stays the same if another daemon continues the connection; 0:
    unknown."""


@frozen
class WaitingClientLeft(Event):
    """A client disconnected before it was admitted.

    ``client`` is its id. After AdmitClient the server reports its end instead.
    """

    client: int


@frozen
class ServerSpawned(Event):
    """The server's process has started.

    ``server`` is the id of the SpawnServer. The server is not ready yet: StatusPushed reports that.
    """

    server: int
    pid: int


@frozen
class SpawnFailed(Event):
    """The server's process could not be started.

    The process could not be created at all, for example for lack of memory or because its user cannot be assumed.
    """

    server: int
    reason: str


@frozen
class StatusPushed(Event):
    """A server reported its status.

    ``status`` is a text of `pympsd.vocabulary.results.ServerStatus`.
    """

    server: int
    status: str


@frozen
class ClientJoined(Event):
    """A server reported the limits in force for a client."""

    server: int
    client: int
    limits: LimitsInForce


@frozen
class ContextPushed(Event):
    """A server reported that a client made a context.

    ``context`` is unique on the server, ``number`` counts those of the process from 1, ``device`` is the daemon's
    ordinal.
    """

    server: int
    client: int
    context: int
    number: int
    device: int


@frozen
class ContextGonePushed(Event):
    """A server reported that a context is gone."""

    server: int
    client: int
    context: int


@frozen
class MemoryPushed(Event):
    """A server reported how it uses a device; ``device`` is the daemon's ordinal."""

    server: int
    device: int
    use: DeviceUse


@frozen
class ClientMemoryRead(Event):
    """The bytes that clients of the driver's server hold: by PID, then by device ordinal; unknown clients are left
    out.
    """

    server: int
    clients: dict[int, dict[int, int]]


@frozen
class ClientGonePushed(Event):
    """A server reported that a client process is gone.

    Its contexts are gone too. The process may still run, after closing its connection.
    """

    server: int
    client: int


@frozen
class ClientEnded(Event):
    """The kernel reported that an admitted client's process has ended; its server has yet to report it.

    A healthy server reports the same soon (ClientGonePushed). One that does not is stopped or stuck, see `admission`.
    """

    server: int
    client: int


@frozen
class TerminationAnswered(Event):
    """A server answered the TerminateClient of this token with a CUresult number.

    ``code`` is 0 for success. A token that is not pending any more is ignored.
    """

    server: int
    token: int
    code: int


@frozen
class ServerExited(Event):
    """A server's process has ended; ``status`` as waitpid gives it: an exit status, or minus a signal.

    None: it was not a child of this daemon, so its status is unknown.
    """

    server: int
    status: int | None
    last_stderr_line: str = ""
    """The last line that the server wrote to its standard error."""


@frozen
class StartRefused(Event):
    """A server stated why it cannot start; its end follows.

    ``reason`` is a sentence for clients and operators, such as that a device is in use. The server is not
    started again for the clients that wait.
    """

    server: int
    reason: str


@frozen
class PredecessorDied(Event):
    """The daemon starts in the pipe directory of another one that did not exit properly."""

    state: PersistentState
    devices: OtherDevices | None = None
    """The devices of the earlier daemon; None if this daemon has the same ones."""
    connections: frozenset[int] = frozenset()
    """The ids of the clients' connections that this daemon continues for the earlier one."""


@frozen
class ServerTakenOver(Event):
    """A server of the previous daemon is back; ``leaving``: it was asked to end before.

    ``server`` is the id under which the earlier daemon remembered it; ``clients`` are those that it still has.
    """

    server: int
    status: str
    leaving: bool
    clients: tuple[Client, ...]


@frozen
class ServerNotTakenOver(Event):
    """A server of the previous daemon cannot be adopted: it ends with its last client, without this daemon.

    ``reason`` is logged.
    """

    server: int
    reason: str


@frozen
class DevicesReported(Event):
    """A server reported the devices, which this daemon could not find out.

    ``devices`` are all that the daemon's clients may use, in the order of their ordinals.
    """

    devices: tuple[DeviceProperties, ...]


@frozen
class ServerReported(Event):
    """The answer of a server that reports only on request: its status, and contexts by PID in its order.

    The session of the driver's server sends it in answer to a refresh.
    """

    server: int
    status: str
    contexts: dict[int, tuple[ReportedContext, ...]]


@frozen
class ServerEnds(Event):
    """An idle server that was asked to end is ending; ``unaccepted``: clients that it never accepted."""

    server: int
    unaccepted: tuple[int, ...] = ()


@frozen
class ServerUnknown(Event):
    """The driver's server sent a message that no known driver sends."""

    server: int
    reason: str


@frozen
class NamespaceOpened(Event):
    """The socket of a namespace, or (``namespace`` empty) of a server is open, or it could not be: ``problem``.

    Follows each OpenNamespace. ``problem`` is a sentence for the operator; empty if the socket is open.
    """

    server: str
    namespace: str
    problem: str = ""


@frozen
class NamespaceLost(Event):
    """The socket of a namespace, or (``namespace`` empty) of a server is missing: it was removed, or could not be
    created.
    """

    server: str
    namespace: str


@frozen
class TimerEnded(Event):
    """A timer that was set has run out.

    Follows a SetTimer after its seconds, unless the timer was cancelled.
    """

    timer: Timer


@frozen
class StopSignal(Event):
    """SIGTERM or SIGINT came: shut down within a short time limit.

    The limit is `shutdown.SIGNAL_TIMEOUT` seconds, after which servers are forced to end.
    """
