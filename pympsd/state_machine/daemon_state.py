"""What the daemon knows: its servers with their clients and contexts, the waiting line, a pending quit."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.state_machine import server_lifecycle
from pympsd.state_machine.server_lifecycle import Phase
from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.identities import Peer, Serials
from pympsd.vocabulary.limits import ClientPriority, PinnedMemory, ThreadPercentage


@frozen
class Context:
    """A client context as its server reported it."""

    serial: int
    number: int
    device: int


@define
class Client:
    """A client process on a server."""

    serial: int
    pid: int
    uid: int
    command: str
    namespace: int
    contexts: dict[int, Context] = field(factory=dict)
    ended: bool = False
    """Its process has ended, and the server has yet to say that it is gone."""


@define
class Server:
    """A server process; ``pid`` is 0 until it is spawned."""

    serial: int
    uid: int
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """By device ordinal; its clients' on that device."""
    pid: int = 0
    phase: Phase = Phase.SPAWNING
    forced: bool = False
    starters: list[int] = field(factory=list)
    """Operator sessions that are answered when it is spawned."""
    clients: dict[int, Client] = field(factory=dict)
    closed: bool = False
    """Its user's newcomers wait: somebody of another user has waited long enough. For the log."""
    awaited: bool = False
    """The daemon before had it, and it has not returned yet: who its clients are is not known."""
    start_refusal: str = ""
    """Why it cannot start, where that is known: it would be no use to try again."""
    proven: bool = False
    """A client of its has made a context or left in order, or it has lived for a while."""

    leave_timed: bool = False
    """The timer of its leaving runs."""
    silence_timed: bool = False
    """The timer of its silence about clients that have ended runs."""

    def become(self, phase: Phase) -> None:
        """Move to a phase; raise IllegalMove when the table does not allow it."""
        self.phase = server_lifecycle.move(self.phase, phase)

    @property
    def workers(self) -> int:
        """How many worker threads the vendor's server would have: one a client process and one a context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())

    @property
    def is_forsaken(self) -> bool:
        """Whether it has clients, and none of their processes lives, as far as is known."""
        return bool(self.clients) and all(client.ended for client in self.clients.values())

    @property
    def status(self) -> str:
        """The status an operator sees."""
        return server_lifecycle.STATUS[self.phase]


@define
class Waiting:
    """A place in the line: a client that knocked, or (client 0) an operator's wish for a server."""

    ticket: int
    uid: int
    client: int = 0
    peer: Peer | None = None
    command: str = ""
    namespace: int = 0
    patient_until: int | None = None
    """The last ticket that may still overtake this one; None: its patience is not over."""


@define
class Debugged:
    """A client under a debugger: it waits until the clients that were there before it (``others``) have left."""

    client: int
    pid: int
    uid: int
    others: set[int]


@frozen
class FailedStarts:
    """A user's servers that ended before they had served anybody, one after the other."""

    count: int
    pausing_after: int
    """The serial of the last one while the pause before the next try lasts, else 0."""
    unserved: int = 0
    """The serial of the last one if its clients went with it: they may come again, so it is remembered a while."""
    refusal: str = ""
    """It was given up: why, until the pause is over, nobody of this user is let in."""


@frozen
class Termination:
    """A terminate_client under way: the operator session that waits for it, and the server that works on it."""

    session: int
    server: int
    patience: float
    """Seconds the server has to answer."""


@define
class Quit:
    """A quit under way; the operators who asked for it are answered by the daemon's end."""

    forced: bool = False
    over: bool = False
    """Exit was given; it is given once."""


@define
class Daemon:
    """The whole state. ``uid`` is the user the daemon runs as; root serves every user, in turn."""

    uid: int
    devices: tuple[DeviceFacts, ...]
    thread_percentage: ThreadPercentage = field(factory=ThreadPercentage)
    client_priority: ClientPriority = field(factory=ClientPriority)
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """By device ordinal; what the next server starts with."""
    multiuser: bool = False
    """One server, root's, for the clients of all users."""
    terminate_by_reset: bool = False
    """Whether terminate_client may reset a device to end what cannot be stopped."""
    turn_patience: float = 30.0
    """Seconds after which newcomers of the active user overtake a waiting one no more; 0: they never do."""
    terminations: dict[int, Termination] = field(factory=dict)
    """By a serial of their own: an answer that comes too late is not taken for a later one's."""
    servers: dict[int, Server] = field(factory=dict)
    line: list[Waiting] = field(factory=list)
    patience_timers: set[int] = field(factory=set)
    """The tickets of the line whose timers run."""
    debugged: dict[int, Debugged] = field(factory=dict)
    failed_starts: dict[int, FailedStarts] = field(factory=dict)
    """By uid, while it is tried again."""
    quitting: Quit | None = None
    generation: int = 0
    """How many daemons there were before this one from whom servers came down to it."""
    server_serials: Serials = field(factory=Serials)
    termination_serials: Serials = field(factory=Serials)
    tickets: Serials = field(factory=Serials)

    def serving_uid(self, uid: int) -> int:
        """Return the uid whose server serves a user: in multi-user mode everybody counts as root."""
        return 0 if self.multiuser else uid

    def server_by_pid(self, pid: int) -> Server | None:
        """Return the server of a PID."""
        return next((server for server in self.running_servers() if server.pid == pid), None)

    def running_servers(self) -> list[Server]:
        """Return the servers that have a process, oldest first."""
        return [server for server in self.servers.values() if server.pid]

    @property
    def current(self) -> Server | None:
        """The one server there is, if any."""
        return next(iter(self.servers.values()), None)
