"""Everything the mind can ask of the rim."""

from __future__ import annotations

from attrs import field, frozen

from pympsd.commands.answers import Answer
from pympsd.vocabulary.identities import Peer


@frozen
class Log:
    """Write the line of an event to control.log."""

    event: str
    fields: dict[str, str | int | float] = field(factory=dict)


@frozen
class SpawnServer:
    """Start a server process for a user; ``peer`` gives gid and groups where a client's are known."""

    server: int
    uid: int
    peer: Peer | None


@frozen
class AdmitClient:
    """Make a session between a waiting client and a server."""

    client: int
    server: int
    server_pid: int
    priority: int


@frozen
class WatchClient:
    """Tell with ClientEnded when the process of a client ends that an earlier daemon admitted."""

    client: int
    server: int
    pid: int


@frozen
class RefuseClient:
    """Tell a waiting client no: a CUresult and a sentence."""

    client: int
    code: int
    reason: str


@frozen
class LetGoWithoutMps:
    """Tell a waiting client to go on without MPS, and why."""

    client: int
    reason: str


@frozen
class TellServerToLeave:
    """Ask a server to leave when its last client has gone, or (forced) at once."""

    server: int
    forced: bool


@frozen
class TellServerItsLimits:
    """Give a server the limits of its later clients: a percentage, and bytes by device ordinal."""

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
    """Whether what cannot be stopped is to be ended with its device."""


@frozen
class KillServer:
    """A server did not leave though forced: kill it."""

    server: int


@frozen
class Reply:
    """Answer an operator's command."""

    session: int
    answer: Answer


@frozen
class Working:
    """Tell an operator that the command is understood and takes its time."""

    session: int


@frozen
class SetTimer:
    """Send TimerEnded with this token after so many seconds."""

    token: str
    seconds: float


@frozen
class CancelTimer:
    """Forget a SetTimer: its time does not matter any more."""

    token: str


@frozen
class Exit:
    """The daemon is done."""

    status: int


Instruction = (
    Log
    | SpawnServer
    | AdmitClient
    | WatchClient
    | RefuseClient
    | LetGoWithoutMps
    | TellServerToLeave
    | TellServerItsLimits
    | TerminateClient
    | KillServer
    | Reply
    | Working
    | SetTimer
    | CancelTimer
    | Exit
)
