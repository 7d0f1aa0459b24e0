"""Everything that the state machine requests of the I/O layer, as values.

`pympsd.service.dispatcher` carries them out in order, without waiting; what takes time is reported by a later
event. Whoever an instruction is for may be gone by then: the dispatcher leaves out answers to operators and clients
that have hung up.
"""

from collections.abc import Iterator

from attrs import field, frozen

from pympsd.state_machine.timers import Timer
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limit_table import ClientLimits


@frozen
class Log:
    """Write the line of an event to control.log."""

    event: str
    fields: dict[str, str | int | float] = field(factory=dict)


@frozen
class SpawnServer:
    """Start a server process for a user; ``peer`` gives the gid and groups if a client's are known."""

    server: int
    uid: int
    peer: Peer | None
    name: str = ""
    """In protocol 3."""


@frozen
class AdmitClient:
    """Make a session between a waiting client and a server."""

    client: int
    server: int
    server_pid: int
    priority: int
    limits: ClientLimits | None = None
    """None: its server's."""


@frozen
class WatchClient:
    """Watch the process of a client that an earlier daemon admitted; ClientEnded follows when it ends."""

    client: int
    server: int
    pid: int


@frozen
class RefuseClient:
    """Refuse a waiting client, with a CUresult number and a reason."""

    client: int
    code: int
    reason: str


@frozen
class ContinueWithoutMps:
    """Let a waiting client continue without MPS, and give it the reason."""

    client: int
    reason: str


@frozen
class ShutDownServer:
    """Ask a server to end when its last client has gone, or (forced) immediately."""

    server: int
    forced: bool
    is_deletion: bool = False
    """Whether the clients that it ends are sent the reason."""


@frozen
class UpdateServerLimits:
    """Send a server the limits of its later clients: a percentage, and bytes by device ordinal."""

    server: int
    thread_percentage: float
    memory_limits: dict[int, int]


@frozen
class TerminateClient:
    """Have a server end the contexts of a client process; TerminationAnswered follows, with its token."""

    server: int
    token: int
    pid: int
    by_reset: bool
    """Whether to reset a device if a kernel on it cannot be stopped."""
    evicted: tuple[int, ...] = ()
    """Clients that get no context any more."""


@frozen
class KillServer:
    """Kill a server that did not end when asked to."""

    server: int


@frozen
class Reply:
    """Answer an operator's command."""

    session: int
    answer: Answer


@frozen
class Working:
    """Notify an operator that the command is accepted and takes some time."""

    session: int


@frozen
class Note:
    """Send an operator a line for standard error, or (``is_output``) for standard output, before the answer."""

    session: int
    text: str
    is_output: bool = False


@frozen
class SetTimer:
    """Start a timer; TimerEnded follows after this number of seconds."""

    timer: Timer
    seconds: float


@frozen
class CancelTimer:
    """Cancel a timer that was started."""

    timer: Timer


@frozen
class OpenNamespace:
    """Make the directory and the socket of a namespace, or (``namespace`` empty) of a server.

    Existing directories are used again, and so is a socket that is open. NamespaceOpened follows.
    """

    server: str
    namespace: str
    uid: int


@frozen
class StartTrace:
    """Begin a trace in a file, and answer the session that asked for it."""

    session: int
    file: str


@frozen
class StopTrace:
    """Complete the trace, and answer the session that asked for that."""

    session: int


@frozen
class ReopenLogs:
    """Open the log files again by their names, and answer the session that asked for that."""

    session: int


@frozen
class ReleaseDriver:
    """End what else than servers keeps the driver in use, then send operators their answers."""

    answers: tuple[Reply, ...]


@frozen
class CloseNamespace:
    """Remove the socket and the directory of a namespace, or (``namespace`` empty) of a server."""

    server: str
    namespace: str


@frozen
class Exit:
    """End the daemon."""

    status: int


@frozen
class ChangeBackend:
    """Start again with the other backend."""


Instruction = (
    Log
    | SpawnServer
    | AdmitClient
    | WatchClient
    | RefuseClient
    | ContinueWithoutMps
    | ShutDownServer
    | UpdateServerLimits
    | TerminateClient
    | KillServer
    | Reply
    | Working
    | Note
    | SetTimer
    | CancelTimer
    | OpenNamespace
    | CloseNamespace
    | StartTrace
    | StopTrace
    | ReopenLogs
    | ReleaseDriver
    | Exit
    | ChangeBackend
)


def reply(session: int, answer: Answer) -> Iterator[Instruction]:
    """Log the answer of an operator's command, and send it."""
    for part in answer.parts:
        if part.logged:
            yield Log("answer", {"text": part.text})
    yield Reply(session, answer)
