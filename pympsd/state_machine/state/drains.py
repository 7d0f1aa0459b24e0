"""Drains: the targets whose new clients are held, and their clients that still run.

A drain is in force from `drain` to `undrain`, and longer than the daemon that began it: it is part of the state file.
The decisions of a drain are in `pympsd.state_machine.drains`.
"""

from collections.abc import Iterator
from enum import StrEnum

from attrs import define, field, frozen

from pympsd.state_machine.state.client import ClientProcess
from pympsd.vocabulary.identities import DEFAULT, Ids
from pympsd.vocabulary.rules import expand_cgroups


class TargetKind(StrEnum):
    """The kind of a drain's target. The values are the names of the command's options."""

    ALL = "all"
    DEVICE = "device"
    USER = "user"
    SERVER = "server"
    NAMESPACE = "namespace"
    CGROUP = "cgroup"
    CLIENT = "client"


@frozen
class DrainTarget:
    """The clients that a drain concerns, such as those of a server, a user or a device.

    >>> str(DrainTarget(TargetKind.SERVER, "serve").kind)
    'server'
    """

    kind: TargetKind
    name: str = ""
    """The name of the target, which depends on its kind: the UUID of a device, the number of a user, the name of a
    server, ``server/namespace``, the path of a cgroup or the PID of a client. Empty if the target is everything."""

    def __str__(self) -> str:
        """Return the target as it is typed after ``undrain``."""
        if self.kind is TargetKind.CLIENT:
            return self.name
        return f"--{self.kind}={self.name}" if self.name else f"--{self.kind}"

    def has_process(self, process: ClientProcess, server: str) -> bool:
        """Return whether this target, which is not a device or a client, includes a client process of a server."""
        match self.kind:
            case TargetKind.ALL:
                return True
            case TargetKind.USER:
                return str(process.peer.uid) == self.name
            case TargetKind.SERVER:
                return server == self.name
            case TargetKind.NAMESPACE:
                return f"{server}/{process.namespace or DEFAULT}" == self.name
            case TargetKind.CGROUP:
                return self.name in expand_cgroups(process.cgroups)
        return False


@frozen
class RunningClient:
    """A client that a drain waits for, with the values to report when it has ended."""

    pid: int
    uid: int = 0
    server: str = ""
    server_id: int = 0


@frozen
class Waiter:
    """An operator who waits for a drain's end."""

    session: int
    is_json: bool = False


@define
class Drain:
    """A drain in force: its target, its options and the clients that it waits for.

    Operators who wait for its end are answered when no clients remain, or when its time is over.
    """

    target: DrainTarget
    id: int = 0
    """The drain's id, which is the key of its timer."""
    refuses: bool = False
    """True if new clients are refused; otherwise they wait."""
    timeout: float | None = None
    """The seconds from the command to the time limit; None if the drain waits for running clients without a limit."""
    terminates: bool = True
    """True if running clients are terminated when the time limit is over; otherwise the drain has failed then."""
    releases: bool = False
    """True if servers are ended, and none is started (``--release``)."""
    since: float = 0.0
    """The time at which the drain began, in seconds since 1970."""
    clients: dict[int, RunningClient] = field(factory=dict)
    """The clients that are still running, by id, in the order in which they are terminated."""
    terminated: set[int] = field(factory=set)
    """The ids of the clients that the drain has terminated and that are still connected."""
    failures: dict[int, int] = field(factory=dict)
    """The CUresult numbers of the terminations that failed, by client id."""
    is_expired: bool = False
    """True if the time limit is over."""
    is_over: bool = False
    """True if the drain's result was reported: from then on the drain only holds new clients."""
    token: int = 0
    """The id of the drain's pending termination; 0 if none is pending."""
    terminating: tuple[int, ...] = ()
    """The ids of the clients that the pending termination ends."""
    waiters: list[Waiter] = field(factory=list)

    @property
    def state(self) -> str:
        """The state that operators see: draining, terminating, drained or not drained."""
        if not self.is_over:
            return "terminating" if self.is_expired and self.terminates else "draining"
        return "not drained" if self.clients else "drained"


@define
class Drains:
    """All drains in force, in the order in which they began. Iterating yields them."""

    by_target: dict[DrainTarget, Drain] = field(factory=dict)
    ids: Ids = field(factory=Ids)

    def __iter__(self) -> Iterator[Drain]:
        return iter(tuple(self.by_target.values()))

    def __len__(self) -> int:
        return len(self.by_target)

    @property
    def releasing(self) -> Drain | None:
        """The drain that ends every server (``--release``) and lets none start; None if there is none."""
        return next((drain for drain in self if drain.releases), None)

    def find_by_client(self, client: int) -> Drain | None:
        """Return the first drain that waits for a client, or None.

        Args:
            client: The daemon's id of the client.
        """
        return next((drain for drain in self if client in drain.clients), None)

    def has_terminated(self, client: int) -> bool:
        """Return whether a drain has terminated a client that is still connected.

        Args:
            client: The daemon's id of the client.
        """
        return any(client in drain.terminated for drain in self)
