"""Everything that can happen to the daemon, as values."""

from __future__ import annotations

from attrs import field, frozen

from pympsd.state_machine.persistent_state import Remembered
from pympsd.vocabulary.identities import Peer


@frozen
class OperatorLine:
    """An operator gave a command."""

    session: int
    uid: int
    line: bytes


@frozen
class ClientKnocked:
    """A client said hello; ``namespace`` is the inode of its PID namespace, ``traced``: it is under a debugger."""

    client: int
    peer: Peer
    command: str
    namespace: int
    environment: dict[str, str] = field(factory=dict)
    traced: bool = False


@frozen
class ClientLeftTheLine:
    """A client that was not admitted yet is gone."""

    client: int


@frozen
class ServerSpawned:
    """The server's process is there."""

    server: int
    pid: int


@frozen
class SpawnFailed:
    """The server's process could not be started."""

    server: int
    reason: str


@frozen
class StatusPushed:
    """A server says its status."""

    server: int
    status: str


@frozen
class ContextPushed:
    """A server says that a client made a context."""

    server: int
    client: int
    serial: int
    number: int
    device: int


@frozen
class ContextGonePushed:
    """A server says that a context is gone."""

    server: int
    client: int
    serial: int


@frozen
class ClientGonePushed:
    """A server says that a client process is gone."""

    server: int
    client: int


@frozen
class ClientEnded:
    """The kernel says that an admitted client's process has ended; its server has not said so yet."""

    server: int
    client: int


@frozen
class TerminationAnswered:
    """A server is done with a TerminateClient, the one of this token: a CUresult number."""

    server: int
    token: int
    code: int


@frozen
class ServerExited:
    """A server's process has ended; ``status`` as waitpid gives it: an exit status, or minus a signal.

    None: it was no child of this daemon, and nobody can say.
    """

    server: int
    status: int | None
    last_words: str = ""
    """The last line it wrote to its standard error."""


@frozen
class StartRefused:
    """A server says why it cannot start; its end follows."""

    server: int
    reason: str


@frozen
class PredecessorDied:
    """The daemon begins in the pipe directory of another one that did not end in order."""

    remembered: Remembered


@frozen
class ReturnedContext:
    """A context as the server that returns reports it."""

    serial: int
    number: int
    device: int


@frozen
class ReturnedClient:
    """A client of a server that returns."""

    client: int
    pid: int
    command: str
    namespace: int
    contexts: tuple[ReturnedContext, ...] = ()


@frozen
class ServerReturned:
    """A server that was awaited is back; ``leaving``: it was told to go before."""

    server: int
    status: str
    leaving: bool
    clients: tuple[ReturnedClient, ...]


@frozen
class ServerLeftAlone:
    """A server that was awaited cannot be taken in: it goes with its last client, and is none of this daemon's."""

    server: int
    reason: str


@frozen
class TimerEnded:
    """The time of a SetTimer is over."""

    token: str


@frozen
class StopSignal:
    """SIGTERM or SIGINT: shut down within a short bound."""


Event = (
    OperatorLine
    | ClientKnocked
    | ClientLeftTheLine
    | ServerSpawned
    | SpawnFailed
    | StatusPushed
    | ContextPushed
    | ContextGonePushed
    | ClientGonePushed
    | ClientEnded
    | TerminationAnswered
    | ServerExited
    | StartRefused
    | PredecessorDied
    | ServerReturned
    | ServerLeftAlone
    | TimerEnded
    | StopSignal
)
