"""Everything that can happen to the daemon, as values."""

from __future__ import annotations

from attrs import field, frozen

from pympsd.vocabulary.identities import Peer


@frozen
class OperatorLine:
    """An operator gave a command."""

    session: int
    uid: int
    line: bytes


@frozen
class ClientKnocked:
    """A client said hello; ``namespace`` is the inode of its PID namespace."""

    client: int
    peer: Peer
    command: str
    namespace: int
    environment: dict[str, str] = field(factory=dict)


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
class TerminationAnswered:
    """A server is done with a TerminateClient: a CUresult number."""

    server: int
    session: int
    code: int


@frozen
class ServerExited:
    """A server's process has ended; ``status`` as waitpid gives it: an exit status, or minus a signal."""

    server: int
    status: int


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
    | TerminationAnswered
    | ServerExited
    | TimerEnded
    | StopSignal
)
