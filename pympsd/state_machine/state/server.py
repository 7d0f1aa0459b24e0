"""A server process as the daemon sees it, and the table of its phases.

A server is spawned (SPAWNING, no process yet), initializes (INITIALIZING), and is then ACTIVE or in FAULT until the
daemon requests its end (LEAVING) and its process has ended (GONE). A server of an earlier daemon begins as RETURNING
instead. The table `MOVES` is the only place that allows a change of phase: an illegal one raises IllegalMove and
changes nothing, so a server that reports an impossible status cannot bring the daemon into an impossible state.
"""

from enum import Enum
from typing import Final

from attrs import Factory, define, field

from pympsd.state_machine.state.client import Client
from pympsd.vocabulary.device_properties import DeviceUse
from pympsd.vocabulary.identities import server_of_user
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.limits import ALL_DEVICES, MemoryGroup, PinnedMemory, ThreadPercentage
from pympsd.vocabulary.phases import move
from pympsd.vocabulary.results import ServerStatus


class Phase(Enum):
    """The phase of a server's life, as the daemon sees it. `MOVES` has the allowed transitions."""

    RETURNING = "returning"
    """The server of a daemon that died is expected to return."""
    SPAWNING = "spawning"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAULT = "fault"
    LEAVING = "leaving"
    """The server was asked to end, when its clients have gone or immediately."""
    GONE = "gone"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.RETURNING: frozenset({Phase.INITIALIZING, Phase.ACTIVE, Phase.FAULT, Phase.LEAVING, Phase.GONE}),
    Phase.SPAWNING: frozenset({Phase.INITIALIZING, Phase.GONE}),
    Phase.INITIALIZING: frozenset({Phase.ACTIVE, Phase.LEAVING, Phase.GONE}),
    Phase.ACTIVE: frozenset({Phase.FAULT, Phase.LEAVING, Phase.GONE}),
    Phase.FAULT: frozenset({Phase.ACTIVE, Phase.LEAVING, Phase.GONE}),
    Phase.LEAVING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""The phases that each phase may move to."""


STATUS: Final = {
    Phase.RETURNING: ServerStatus.INITIALIZING,
    Phase.SPAWNING: ServerStatus.INITIALIZING,
    Phase.INITIALIZING: ServerStatus.INITIALIZING,
    Phase.ACTIVE: ServerStatus.ACTIVE,
    Phase.FAULT: ServerStatus.FAULT,
    Phase.LEAVING: ServerStatus.ACTIVE,
}
"""The status that get_server_status prints for a phase."""


@define
class Server:
    """A server process, with its clients and the time limits that run for it.

    ``id`` is the daemon's and is never used again; ``pid`` is 0 until the process exists; ``uid`` is the user that it
    serves.
    """

    id: int
    uid: int
    thread_percentage: ThreadPercentage
    memory_limits: dict[int, PinnedMemory] = field(factory=dict)
    """The limit of memory for each client, by device ordinal."""
    pid: int = 0
    phase: Phase = Phase.SPAWNING
    forced: bool = False
    starters: list[int] = field(factory=list)
    """The operator sessions to answer when the server is spawned."""
    clients: dict[int, Client] = field(factory=dict)
    groups: dict[tuple[int, str], tuple[int, MemoryGroup]] = field(factory=dict)
    """The limits of memory that clients share, by device ordinal and group name: the id of the latest client with
    a context there, and the limits that this client brought."""
    use: dict[int, DeviceUse] = field(factory=dict)
    """The server's latest report for each device, by ordinal; empty for the driver's own server, which does not
    report."""
    closed: bool = False
    """True if new clients of its user wait because another user has waited long enough; kept for the log."""
    pending: bool = False
    """True if the server ran under the previous daemon and has not returned yet, so its clients are unknown."""
    start_refusal: str = ""
    """The reason why the server cannot start, for which another try would be useless; empty if none is known."""
    violation: str = ""
    """The unknown message that the driver's server sent; empty if it has sent none."""
    verified: bool = False
    """True if a client of the server has made a context or disconnected cleanly, or the server's trial period is
    over."""
    leave_timed: bool = False
    """True if the server's LEAVE timer is running."""
    silence_timed: bool = False
    """True if the server's SILENCE timer is running."""
    name: str = field(default=Factory(lambda self: server_of_user(self.uid), takes_self=True))

    @property
    def title(self) -> str:
        """The words by which sentences refer to the server (`title`)."""
        return title(self.name, self.uid)

    def become(self, phase: Phase) -> None:
        """Move to another phase.

        Raises:
            IllegalMove: `MOVES` does not allow it. Nothing is changed.
        """
        self.phase = move(MOVES, self.phase, phase)

    @property
    def limits(self) -> Limits:
        """The limits of the server's later clients (protocol 2 only)."""
        return Limits({ALL_DEVICES: self.thread_percentage}, self.memory_limits)

    @property
    def launches(self) -> dict[int, int]:
        """The number of kernels that the server has started, by device ordinal, from its last report."""
        return {device: use.launches for device, use in self.use.items()}

    @property
    def utilization(self) -> dict[int, int]:
        """The percentage of the last second in which its kernels ran, by device ordinal. Real GPUs are left out."""
        return {device: use.utilization for device, use in self.use.items() if use.utilization is not None}

    @property
    def workers(self) -> int:
        """The number of worker threads of the vendor's server: one for each client process and each context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())

    @property
    def is_abandoned(self) -> bool:
        """Whether the server has clients, and the processes of all of them are known to have ended."""
        return bool(self.clients) and all(client.ended for client in self.clients.values())

    @property
    def is_empty(self) -> bool:
        """Whether the server is known to have no clients."""
        return not self.clients and not self.pending

    @property
    def status(self) -> str:
        """The status that operators see, as get_server_status prints it."""
        return STATUS[self.phase]


def title(name: str, uid: int) -> str:
    """Return the words by which sentences refer to a server: its user, or its name if an operator gave it one."""
    return f"the MPS server of user {uid}" if name == server_of_user(uid) else f"the MPS server '{name}'"
