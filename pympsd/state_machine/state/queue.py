"""The queue of clients that wait for a server, and of operators' requests to start one.

The problem: users take turns, so a client may wait long, and nobody may be passed over forever; but a running server
should continue to serve new clients of its own user, because ending and starting it costs seconds. So new clients of
the active user may overtake a waiting user for a limited time.

The idea: tickets are the only clock. Each entry draws a ticket when it joins. When the time for which others may
overtake it is over, it draws one more, its *barrier* (``last_to_overtake``): an entry of another user with a later
ticket than the barrier stays behind. Nothing has to be sorted or compared by time, and the order survives a daemon
that is killed: its successor reserves tickets for the clients that should connect again, in the old order.

Example: user 1 is being served. A client of user 2 draws ticket 5 and waits. Clients of user 1 with tickets 6 and 7
are admitted. The time of ticket 5 is over: it draws 8 as its barrier. The next client of user 1 has ticket 9, and
waits until user 2 has had its turn.

Invariants:

- `entries` is in the order of its tickets; a ticket is given out once.
- An entry is in the queue, or held, from its arrival until it is admitted, refused or gone, and only once.
- `timed` contains only tickets whose TURN timers are running; the timers of entries that have left are cancelled at
  the end of each event, because thousands may come and go before one ends.
- A client under a debugger (`debugged`) never takes a turn: no server is started or kept for it.
- An entry that a drain holds (`held`) takes no turn either, and nobody waits behind it. It keeps its
  ticket, and so its place.
"""

from bisect import insort
from collections.abc import Callable, Iterator

from attrs import Factory, define, field

from pympsd.state_machine.state.client import ClientProcess
from pympsd.vocabulary.identities import Ids, server_of_user
from pympsd.vocabulary.limit_table import Limits


@define
class QueueEntry:
    """An entry of the queue: a waiting client, or if ``client`` is 0 an operator's request to start a server.

    ``ticket`` decides its place; a client keeps its ticket when the daemon is replaced.
    """

    ticket: int
    uid: int
    client: int = 0
    process: ClientProcess | None = None
    joins: bool = False
    last_to_overtake: int | None = None
    """The last ticket that may still overtake this entry; None if all tickets may, until the entry's timer ends."""
    has_turn: bool = False
    """True if the server that the entry waits for was started for this entry."""
    server: str = field(default=Factory(lambda self: server_of_user(self.uid), takes_self=True))
    """The name of the server that the entry waits for."""
    rule: Limits | None = None
    """The limits that rules set for the client; None without rules."""
    sm_partition: str = ""
    """The value of the client's CUDA_MPS_SM_PARTITION."""
    connection: int = 0
    """The id of the client's connection, which stays the same if another daemon continues the connection; 0:
    unknown."""
    visible_devices: str | None = None
    """The value of the client's CUDA_VISIBLE_DEVICES; None if it sees all devices, or the daemon cannot see which."""


@define
class Debugged:
    """A client under a debugger, which waits until ``others``, the clients before it, have left.

    ``client`` is its id. It is not an entry of the queue and takes no turn.
    """

    client: int
    pid: int
    uid: int
    others: set[int]


@define
class ClientQueue:
    """The waiting clients and start requests. Iterating yields the entries in order.

    Its own methods are the only ones that change `entries`. A ticket is drawn when a client comes and never again, so
    an entry's place never changes.
    """

    entries: list[QueueEntry] = field(factory=list)
    tickets: Ids = field(factory=Ids)
    reserved: dict[int, int] = field(factory=dict)
    """The tickets of clients that waited when the previous daemon died and have not returned, by connection id."""
    timed: set[int] = field(factory=set)
    """The tickets whose TURN timers are running."""
    debugged: dict[int, Debugged] = field(factory=dict)
    """The clients under a debugger, which take no turn."""
    held: list[QueueEntry] = field(factory=list)
    """The entries that a drain holds, in the order of their tickets: they take no turn either."""

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def insert(self, entry: QueueEntry) -> None:
        """Insert an entry at the place that its ticket has: at the end, unless the ticket was reserved for it."""
        insort(self.entries, entry, key=lambda other: other.ticket)

    def hold(self, entry: QueueEntry) -> None:
        """Keep an entry out of the queue as long as a drain holds it. It keeps its ticket."""
        insort(self.held, entry, key=lambda other: other.ticket)

    @property
    def all_entries(self) -> list[QueueEntry]:
        """All entries in the order of their tickets, including those that a drain holds."""
        return sorted((*self.entries, *self.held), key=lambda entry: entry.ticket) if self.held else self.entries

    def take(self, is_taken: Callable[[QueueEntry], bool]) -> list[QueueEntry]:
        """Remove the entries for which a predicate is true, including held ones, and return them in order."""
        entries = [entry for entry in self.all_entries if is_taken(entry)]
        if entries:
            self.entries = [entry for entry in self.entries if not is_taken(entry)]
            self.held = [entry for entry in self.held if not is_taken(entry)]
        return entries

    def take_admissible(self, server: str) -> list[QueueEntry]:
        """Remove the entries for a server, except those behind another user's barrier; return them in order.

        A barrier is the first ticket that was drawn after the time in which others may overtake an entry. The lowest
        barrier holds. Start requests, and the entry whose turn it is, pass it.
        """
        barrier: float = float("inf")
        admissible = set()
        for entry in self.entries:
            if entry.server != server:
                if entry.last_to_overtake is not None:
                    barrier = min(barrier, entry.last_to_overtake)
            elif not entry.client or entry.has_turn or entry.ticket < barrier:
                admissible.add(entry.ticket)
        return self.take(lambda entry: entry.ticket in admissible)

    def take_all(self) -> list[int]:
        """Empty the queue, and return the clients that waited; those that are being debugged come last."""
        clients = [*(entry.client for entry in self.all_entries if entry.client), *self.debugged]
        self.entries.clear()
        self.held.clear()
        self.debugged.clear()
        return clients

    def remove(self, client: int) -> None:
        """Remove a client that disconnected before it was admitted.

        An unknown id is ignored: the client was admitted, or refused, just before.
        """
        self.debugged.pop(client, None)
        self.take(lambda entry: entry.client == client)

    def waits_for(self, server: str) -> bool:
        """Return whether a client or a start request waits for the server with a name."""
        return any(entry.server == server for entry in self.entries)

    def clients(self, uid: int | None = None) -> set[int]:
        """Return the clients that wait: all of them, or those of one user."""
        return {entry.client for entry in self.all_entries if entry.client and uid in (None, entry.uid)}

    def reserve(self, connection: int) -> None:
        """Reserve the next ticket for a client that is expected to connect again.

        ``connection`` is the keeper's id of the client's connection. The ticket is used when the client comes back,
        and dropped by `admission.forget_reservations`.
        """
        self.reserved[connection] = self.tickets.take()

    def is_behind_a_reservation(self, entry: QueueEntry) -> bool:
        """Return whether a client with an earlier ticket has not connected again yet.

        Such a client waited in the queue of the previous daemon.
        """
        return any(ticket < entry.ticket for ticket in self.reserved.values())

    def raise_barrier(self, ticket: int) -> None:
        """End the time for which others may overtake an entry: tickets drawn from now on stay behind it.

        Nothing happens if no entry has this ticket any more.
        """
        self.timed.discard(ticket)
        for entry in self.entries:
            if entry.ticket == ticket:
                entry.last_to_overtake = self.tickets.take()

    def barrier_for(self, uid: int) -> QueueEntry | None:
        """Return the first entry that new clients of a user may not overtake, or None."""
        return next(
            (entry for entry in self.entries if entry.uid != uid and entry.last_to_overtake is not None), None
        )

    def take_stale_timers(self) -> list[int]:
        """Return the tickets whose timers are running although their entries have left, and forget them.

        The caller cancels these timers.
        """
        if not self.timed:
            return []
        stale = self.timed - {entry.ticket for entry in self.entries}
        self.timed -= stale
        return sorted(stale)
