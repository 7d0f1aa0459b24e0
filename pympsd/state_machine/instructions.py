"""These instructions, as values, are everything that the state machine requests of the I/O layer.

`pympsd.service.dispatcher` carries them out in order, without waiting; a later event reports work that takes time.
The recipient of an instruction may be gone by then: the dispatcher drops answers to operators and clients that have
hung up.

A `Timer` has a purpose and an owner. The state machine sets and cancels timers by instructions and receives their
ends as events (TimerEnded); it never reads a clock. A timer that has no meaning any more is ignored when it ends, so
most are not cancelled.
"""

from collections.abc import Iterator
from enum import Enum, auto

from attrs import field, frozen

from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limit_table import ClientLimits


class TimerKind(Enum):
    """The purpose of a timer; its key is the id of a server unless noted."""

    START = auto()
    """The time limit for a server to become ready."""
    LEAVE = auto()
    """The time limit for the end of a server that has no clients, or is being forced to end."""
    SILENCE = auto()
    """The time limit for a server to report that its clients, whose processes have ended, are gone."""
    RETURN = auto()
    """The time limit for a server of the previous daemon to return."""
    PLACES = auto()
    """The time for which the queue has places for the clients that waited when the previous daemon died; no key."""
    RETRY = auto()
    """The pause before a user's next server; the key is the id of the server that ended before."""
    TRIAL = auto()
    """The trial period after which a ready server counts as working."""
    FAILURE_EXPIRY = auto()
    """The period after which a server that ended with its clients no longer counts as a failed start."""
    TURN = auto()
    """The time for which others may overtake a queue entry; the key is the entry's ticket."""
    TERMINATION = auto()
    """The time limit for a server to answer terminate_client; the key is the termination's id."""
    DRAIN = auto()
    """The time limit of a drain; the key is the drain's id."""
    FORCE = auto()
    """The time limit of a quit, after which force is used; no key."""


@frozen
class Timer:
    """One timer; timers of the same kind and key are the same timer."""

    kind: TimerKind
    key: int = 0


@frozen
class Instruction:
    """Something for the I/O layer to carry out; each subclass is one kind."""


@frozen
class Log(Instruction):
    """Write the line of an event to control.log.

    ``event`` is a name of `pympsd.journal.catalogue`, which words the line; ``fields`` are the values that its
    sentence needs.
    """

    event: str
    fields: dict[str, str | int | float] = field(factory=dict)


@frozen
class SpawnServer(Instruction):
    """Start a server process for a user; ``peer`` gives the gid and groups if a client's are known.

    ServerSpawned or SpawnFailed follows with the same id ``server``, and ServerExited when a process that was started
    has ended.
    """

    server: int
    uid: int
    peer: Peer | None
    name: str = ""
    """The server's name (protocol 3 only)."""


@frozen
class AdmitClient(Instruction):
    """Make a session between a waiting client and a server.

    ``client`` and ``server`` are the daemon's ids; ``priority`` is 0 (normal) or 1 (below normal); a variable of the
    client may lower the priority.
    """

    client: int
    server: int
    server_pid: int
    priority: int
    limits: ClientLimits | None = None
    """The limits of the client; None if the limits of the client's server hold."""


@frozen
class WatchClient(Instruction):
    """Watch the process of a client that an earlier daemon admitted; ClientEnded follows when it ends.

    Used with servers that an earlier daemon started: its watches ended with it.
    """

    client: int
    server: int
    pid: int


@frozen
class RefuseClient(Instruction):
    """Refuse a waiting client, with a CUresult number and a reason.

    The client's cuInit returns ``code``, such as ERROR_MPS_CONNECTION_FAILED; ``reason`` is for the user.
    """

    client: int
    code: int
    reason: str


@frozen
class ContinueWithoutMps(Instruction):
    """Let a waiting client continue without MPS, and give it the reason."""

    client: int
    reason: str


@frozen
class ShutDownServer(Instruction):
    """Ask a server to end when its last client has gone, or (forced) immediately.

    ServerExited follows. A server is sent the request twice at most: once without force, and once with it.
    """

    server: int
    forced: bool
    is_deletion: bool = False
    """True if the server is deleted: the clients that are terminated are informed of that."""


@frozen
class UpdateServerLimits(Instruction):
    """Send a server the limits of its later clients: a percentage, and bytes by device ordinal.

    Protocol 2 only; in protocol 3 the limits of a client travel in AdmitClient. ``thread_percentage`` is above 0 and
    at most 100; ``memory_limits`` are bytes by the daemon's device ordinal, and a device without an entry has no
    limit.
    """

    server: int
    thread_percentage: float
    memory_limits: dict[int, int]


@frozen
class TerminateClient(Instruction):
    """Request a server to end the contexts of a client process; TerminationAnswered follows, with the same token.

    ``token`` names the termination, so that a late answer is not mistaken for another's.
    """

    server: int
    token: int
    pid: int
    by_reset: bool
    """Whether the server may reset a device if a kernel on the device cannot be stopped."""
    evicted: tuple[int, ...] = ()
    """The ids of the clients that may not create contexts any more."""


@frozen
class KillServer(Instruction):
    """Kill a server that did not end when asked to.

    SIGKILL; ServerExited follows.
    """

    server: int


@frozen
class Reply(Instruction):
    """Answer an operator's command.

    There is exactly one for each OperatorLine, in the same event or a later one. A session that has left gets none.
    """

    session: int
    answer: Answer


@frozen
class Working(Instruction):
    """Notify an operator that the command is accepted and takes some time.

    The operator's program then waits without a time limit.
    """

    session: int


@frozen
class Note(Instruction):
    """Send an operator a line for standard error, or (``is_output``) for standard output, before the answer."""

    session: int
    text: str
    is_output: bool = False


@frozen
class SetTimer(Instruction):
    """Start a timer; TimerEnded follows after this number of seconds.

    ``seconds`` count from the moment at which the instruction is carried out.
    """

    timer: Timer
    seconds: float


@frozen
class CancelTimer(Instruction):
    """Cancel a timer that was started.

    TimerEnded does not follow any more. A timer that is not running is ignored.
    """

    timer: Timer


@frozen
class OpenNamespace(Instruction):
    """Make the directory and the socket of a namespace, or (``namespace`` empty) of a server.

    Existing directories are used again, and so is a socket that is open. NamespaceOpened follows.
    """

    server: str
    namespace: str
    uid: int


@frozen
class StartTrace(Instruction):
    """Begin a trace in a file, and answer the session that requested it.

    ``file`` is the path as the operator gave it; one that is relative, exists or cannot be created is refused in the
    answer.
    """

    session: int
    file: str


@frozen
class StopTrace(Instruction):
    """Complete the trace, and answer the session that requested this.

    The answer comes when every server has sent the rest of its trace.
    """

    session: int


@frozen
class ReopenLogs(Instruction):
    """Open the log files again by their names, and answer the session that requested this."""

    session: int


@frozen
class ReleaseDriver(Instruction):
    """Stop everything other than servers that keeps the driver in use, then answer the operators."""

    answers: tuple[Reply, ...]


@frozen
class CloseNamespace(Instruction):
    """Remove the socket and the directory of a namespace, or (``namespace`` empty) of a server.

    Connections that were made by the socket stay open. A socket that does not exist is ignored.
    """

    server: str
    namespace: str


@frozen
class Exit(Instruction):
    """End the daemon.

    ``status`` is the daemon's exit status. It is the last instruction that is carried out.
    """

    status: int


@frozen
class ChangeBackend(Instruction):
    """Start again with the other backend.

    It is the last instruction that is carried out; see `shutdown.server_unknown`.
    """


def reply(session: int, answer: Answer) -> Iterator[Instruction]:
    """Log the answer of an operator's command, and send it.

    A part of an answer may be printed, logged, or both: the vendor logs some refusals and prints others (recorded).
    """
    for part in answer.parts:
        if part.logged:
            yield Log("answer", {"text": part.text})
    yield Reply(session, answer)
