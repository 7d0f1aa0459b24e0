"""Servers by name (protocol 3), each with namespaces, whether or not they have a process.

A named server outlives its processes: it has a user, devices, namespaces with limits, and static SM partitions, and
gets a process when a client comes. Its sockets are opened by the I/O layer; ``opening`` and ``unopened`` record how
far that is. A namespace has a socket of its own in the server's directory; a client gets the limits of the
namespace by whose socket it comes. Every server has the namespace ``default``, which cannot be deleted.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from attrs import define, field

from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.partitions import SmPartition

MAX_NAMESPACES: Final = 256
"""The maximum number of namespaces in one server, because each takes descriptors of the daemon and its keeper."""


class Source(StrEnum):
    """The origin of a server."""

    COMMAND = "command"
    CONFIG = "config"
    AUTO = "auto"
    """The server was created for clients that name no server; its process starts with its first client."""


class NamedStatus(StrEnum):
    """The status of a named server."""

    CONFIGURED = "Configured"
    """The server has no process; the next client starts one."""
    STARTING = "Starting"
    READY = "Ready"
    FAULT = "Fault"
    STOPPING = "Stopping"
    FAILED = "Failed"


@define
class Namespace:
    """A namespace of a server: a socket, and limits for each of the clients that connect through it."""

    name: str
    limits: Limits = field(factory=Limits)
    """The limits that were set for each client."""
    creators: list[int] = field(factory=list, eq=False)
    """The operator sessions to answer when the namespace's socket is open."""
    clients_only: bool = False
    """True if operators are refused at the namespace's socket."""
    unopened: str = field(default="", eq=False)
    """The reason why the namespace's socket does not exist; empty if there is none."""


@define
class NamedServer:
    """A server with a name, whether or not it has a process.

    Its process is the `Server` with the same name (``Daemon.server_named``).
    """

    name: str
    uid: int
    """The user that the server runs as, and whose clients it accepts."""
    namespaces: dict[str, Namespace] = field(factory=lambda: {DEFAULT: Namespace(DEFAULT)})
    allowed_devices: tuple[int, ...] | None = None
    """The ordinals of the server's devices, in the order in which its clients see them; None means all devices."""
    source: Source = Source.COMMAND
    failed: str = ""
    """The reason why the server could not start; empty if it has not failed."""
    creators: list[int] = field(factory=list, eq=False)
    """The operator sessions to answer when the server is ready, or cannot start."""
    deleters: list[int] = field(factory=list, eq=False)
    """The operator sessions to answer when the server is gone."""
    opening: bool = field(default=True, eq=False)
    """True if the server's sockets are not open yet."""
    unopened: str = field(default="", eq=False)
    """The reason why the server's sockets do not exist; empty if there is none."""
    former_uid: int | None = field(default=None, eq=False)
    """The user to restore if the sockets cannot be made for the new one."""
    deleted: bool = field(default=False, eq=False)
    """True if the server is deleted; it is removed when its process has ended."""
    partitions: list[SmPartition] = field(factory=list)
    """The server's static SM partitions, in order of creation."""
    maximum: Limits = field(factory=Limits)
    """The maxima of the server: no client exceeds them, whatever its namespace allows."""
    created: float = 0.0
    """The time at which the server was created, in seconds since 1970."""
    contains_partitions: bool = False
    """True if each SM partition has executors of its own, on devices where a fault would otherwise affect the other
    partitions."""

    @property
    def unreachable(self) -> str:
        """The reason why no client can connect to the server, because its sockets could not be created; empty if
        clients can."""
        default = self.namespaces.get(DEFAULT)
        return self.unopened or (default.unopened if default is not None else "")

    def namespace(self, name: str) -> Namespace:
        """Return the namespace with a name; ``default`` if the name is empty or the namespace is gone.

        A namespace may be deleted after a client was admitted, whose further connections have limits too.
        """
        return self.namespaces.get(name or DEFAULT) or self.namespaces[DEFAULT]

    def ordinals(self, count: int) -> tuple[int, ...]:
        """Return the daemon's ordinals of its devices, in the order in which its clients see them.

        Args:
            count: How many devices the daemon has.
        """
        return tuple(range(count)) if self.allowed_devices is None else self.allowed_devices


@define(eq=False)
class NamedServers(Mapping[str, NamedServer]):
    """All named servers, by name, and settings that apply to all of them."""

    _by_name: dict[str, NamedServer] = field(factory=dict, alias="by_name")
    changes: int = 0
    """The number of changes so far: when it grows, the state is saved again for the next daemon."""
    default_socket: bool = True
    """Whether clients that name no server are served."""
    occupied: dict[int, SmPartition] = field(factory=dict)
    """The deleted SM partitions in which clients still have work, by client id."""

    def __getitem__(self, name: str) -> NamedServer:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, named_server: NamedServer) -> None:
        """Add a server; a server with the same name is replaced."""
        self._by_name[named_server.name] = named_server
        self.changes += 1

    def remove(self, name: str) -> None:
        """Remove a server.

        Raises:
            KeyError: There is no server with this name.
        """
        del self._by_name[name]
        self.changes += 1
