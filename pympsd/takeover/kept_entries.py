"""What an earlier daemon left with its keeper, by the names that daemons give it.

The notes of clients are JSON: the next daemon may be of another build.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import msgspec
from attrs import define, evolve, field, frozen

from pympsd.channel.descriptors import close_all
from pympsd.service.files.pipe_directory import BACKLOG
from pympsd.takeover.keeper_link import Keeper
from pympsd.takeover.keeper_process import Held
from pympsd.vocabulary.limits import LimitsInForce

T = TypeVar("T")
FIFO: Final = "fifo"


def listener_name(file: str) -> str:
    """Return the name of a listening socket."""
    return f"listener {file}"


def file_note(path: str) -> bytes:
    """Return which file has a path; empty if there is none. The number of a bound socket's file is not used again."""
    try:
        status = os.lstat(path)
    except OSError:
        return b""
    return f"{status.st_dev} {status.st_ino}".encode()


def link_name(server: int) -> str:
    """Return the name of the daemon's end of a server's link. The keeper stays while one has a living peer.

    The note asks the server to end if it has no clients: the keeper sends it after a long time without a daemon.
    """
    return f"server {server}"


def connection_name(serial: int, file: str) -> str:
    """Return the name of a connection to a listening socket whose peer waits, or has not identified itself yet."""
    return f"connection {serial} {file}"


def client_name(client: int) -> str:
    """Return the name of the pidfd of an admitted client that its server does not report by itself."""
    return f"client {client}"


def newcomer_name(connection: int) -> str:
    """Return the name of a copy of a client's end of its connection to its server, until it has answered that.

    ``connection``: the serial of its connection to this daemon.
    """
    return f"newcomer {connection}"


def offer_name(connection: int) -> str:
    """Return the name of the other end, until the server has it."""
    return f"offer {connection}"


def serial_of(name: str) -> int:
    """Return the serial in the name of a connection, of a newcomer or of an offer."""
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
    """Its contexts that an operator has terminated (vendor.terminations)."""
    limits: LimitsInForce | None = None
    """What was set for it; None: its daemon did not note it."""


@frozen
class Noted(Generic[T]):
    """A descriptor with its note and its name at the keeper."""

    name: str
    fd: int
    note: T
    is_new: bool = False
    """It is this daemon's own, and not an earlier one's."""
    offered: tuple[int, int] | None = None
    """The server's and the client's end of a connection to a server that the client was offered."""


@define
class Inherited:
    """The descriptors an earlier daemon left; each that is used is taken out, the rest is closed by ``close``."""

    keeper: Keeper | None = None
    listeners: dict[str, Noted[bytes]] = field(factory=dict)
    """By file; noted is which file that was (``file_note``)."""
    links: dict[int, int] = field(factory=dict)
    """By the server's serial."""
    clients: dict[int, Noted[ClientNote]] = field(factory=dict)
    newcomers: list[Noted[int]] = field(factory=list)
    """Noted is the serial of the server that has been given the other end, 0 if none has."""
    offers: dict[int, int] = field(factory=dict)
    connections: list[Noted[bytes]] = field(factory=list)
    fifo: int = -1
    _unknown: list[tuple[str, int]] = field(factory=list)

    @classmethod
    def of(cls, keeper: Keeper | None, held: Mapping[str, Held]) -> Inherited:
        """Sort what a keeper held."""
        left = cls(keeper)
        for name, entry in held.items():
            try:
                left._sort(name, entry)
            except (ValueError, msgspec.DecodeError):
                left._unknown.append((name, entry.fd))
        return left

    def _sort(self, name: str, entry: Held) -> None:
        kind, _, rest = name.partition(" ")
        match kind:
            case "listener":
                self.listeners[rest] = Noted(name, entry.fd, entry.note)
            case "fifo":
                self.fifo = entry.fd
            case "server":
                self.links[int(rest)] = entry.fd
            case "client":
                note = msgspec.json.decode(entry.note, type=ClientNote)
                self.clients[int(rest)] = Noted(name, entry.fd, note)
            case "newcomer":
                self.newcomers.append(Noted(name, entry.fd, int(entry.note or b"0")))
                serial_of(name)
            case "offer":
                self.offers[int(rest)] = entry.fd
            case "connection":
                serial, _ = rest.split(" ")
                int(serial)
                self.connections.append(Noted(name, entry.fd, entry.note))
            case _:
                raise ValueError(f"no daemon calls anything {name}")

    def next_connection(self) -> int:
        """Return the first serial of this daemon's connections: no earlier daemon's has its name."""
        names = [one.name for one in self.connections] + [one.name for one in self.newcomers]
        return 1 + max((*map(serial_of, names), *self.offers), default=0)

    def take_connections(self, file: str) -> list[Noted[bytes]]:
        """Return the connections to a listening socket."""
        found = [one for one in self.connections if one.name.split(" ")[2] == file]
        self.connections = [one for one in self.connections if one not in found]
        return [evolve(one, offered=self._take_offer(serial_of(one.name))) for one in found]

    def _take_offer(self, connection: int) -> tuple[int, int] | None:
        client = next((one for one in self.newcomers if serial_of(one.name) == connection), None)
        if client is None or connection not in self.offers:
            return None
        self.newcomers.remove(client)
        return self.offers.pop(connection), client.fd

    def take_newcomers(self, server: int) -> tuple[tuple[str, int], ...]:
        """Return the names and ends of the clients that a server may be talking with."""
        found = [one for one in self.newcomers if one.note == server]
        # It is not known whether the server has the other end of one that is still on offer.
        shared = [one for one in found if serial_of(one.name) in self.offers]
        self.newcomers = [one for one in self.newcomers if one not in found or one in shared]
        return tuple((one.name, os.dup(one.fd) if one in shared else one.fd) for one in found)

    def take_listener(self, file: str, path: str, kind: socket.SocketKind) -> socket.socket | None:
        """Return the listening socket of a file, if it is of the kind that is needed and the file is the same one."""
        entry = self.listeners.pop(file, None)
        if entry is None:
            return None
        listener = socket.socket(fileno=entry.fd)
        if listener.type is kind and entry.note and entry.note == file_note(path):
            # Again: peers then see this process, and not the earlier daemon, at the other end (SO_PEERCRED).
            listener.listen(BACKLOG)
            return listener
        listener.close()
        return None

    def take_fifo(self, path: str) -> int:
        """Return the descriptor of the log FIFO if the file is still the same one, else -1."""
        fd, self.fifo = self.fifo, -1
        if fd < 0:
            return -1
        try:
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                os.set_blocking(fd, False)
                return fd
        except OSError:
            pass
        os.close(fd)
        return -1

    def close(self) -> None:
        """Close what was not taken, and have it dropped."""
        left = [(link_name(server), fd) for server, fd in self.links.items()]
        left += [(one.name, one.fd) for one in self.listeners.values()]
        left += [(one.name, one.fd) for one in self.clients.values()]
        left += [(one.name, one.fd) for one in self.newcomers]
        left += [(offer_name(connection), fd) for connection, fd in self.offers.items()]
        left += [(one.name, one.fd) for one in self.connections]
        left += [(FIFO, self.fifo)] if self.fifo >= 0 else []
        left += self._unknown
        for name, fd in left:
            if self.keeper is not None:
                self.keeper.drop(name)
            close_all((fd,))
        self.listeners, self.links, self.clients, self.fifo = {}, {}, {}, -1
        self.newcomers, self.offers, self.connections, self._unknown = [], {}, [], []
