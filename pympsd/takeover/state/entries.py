"""The entries that a daemon has with its keeper: their names, and the notes of clients.

The names and the notes (JSON) stay as they are: the next daemon may be of another build.
"""

from typing import Final, Generic, TypeVar

from attrs import frozen

from pympsd.vocabulary.limits import LimitsInForce

T = TypeVar("T")
FIFO: Final = "fifo"


def listener_name(file: str) -> str:
    """Return the name of a listening socket."""
    return f"listener {file}"


def link_name(server: int) -> str:
    """Return the name of the daemon's end of a server's link. The keeper stays while a link has a living peer.

    The entry's note is a message that asks the server to end with its last client (the driver's server refuses if it
    has clients). The keeper sends it to the server after a long time without a daemon.
    """
    return f"server {server}"


def connection_name(connection_id: int, file: str) -> str:
    """Return the name of a connection to a listening socket whose peer waits, or has not identified itself yet."""
    return f"connection {connection_id} {file}"


def client_name(client: int) -> str:
    """Return the name of the pidfd of an admitted client that its server reports only on request."""
    return f"client {client}"


def new_client_name(connection: int) -> str:
    """Return the name of a copy of a client's end of its connection to a server.

    The keeper has the copy until the client has answered the server. ``connection``: the id of the client's
    connection to this daemon.
    """
    return f"newcomer {connection}"


def offer_name(connection: int) -> str:
    """Return the name of the server's end of a connection that was offered to the server, until the server has it."""
    return f"offer {connection}"


def id_of(name: str) -> int:
    """Return the id in the name of a connection, of a new client or of an offer."""
    return int(name.split(" ")[1])


@frozen
class ClientNote:
    """An admitted client, as its daemon knew it."""

    server: int
    pid: int
    uid: int
    command: str
    namespace: int
    mps_namespace: str = ""
    since: float = 0.0
    terminated: tuple[int, ...] = ()
    """The ids of the client's contexts that an operator has terminated."""
    limits: LimitsInForce | None = None
    """The client's limits; None if its daemon did not note them."""


@frozen
class KeptFd(Generic[T]):
    """A descriptor with its note and its name at the keeper."""

    name: str
    fd: int
    note: T
    is_new: bool = False
    """True if the descriptor is this daemon's own, not an earlier daemon's."""
    offered: tuple[int, int] | None = None
    """The server's end and the client's end of a connection to a server that the client was offered; None if no
    offer."""
