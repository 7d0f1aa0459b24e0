"""Sort by purpose the descriptors that the previous daemon's keeper holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import msgspec
from attrs import define, evolve, field

from pympsd.channel.descriptors import close_all
from pympsd.service.files.pipe_directory import BACKLOG
from pympsd.takeover.keeper.link import KeeperLink
from pympsd.takeover.keeper.process import Entry
from pympsd.takeover.state.entries import FIFO, ClientNote, KeptFd, id_of, link_name, offer_name


def file_note(path: str) -> bytes:
    """Return a text that identifies the file at a path by its device and inode; empty if it does not exist.

    As long as a socket is bound to a file, no other file gets that inode.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return b""
    return f"{status.st_dev} {status.st_ino}".encode()


@define
class KeptEntries:
    """The descriptors that the previous daemon left. The methods remove those that they return; ``close`` closes the
    rest.
    """

    keeper: KeeperLink | None = None
    listeners: dict[str, KeptFd[bytes]] = field(factory=dict)
    """The listening sockets by file; each note identifies the file (``file_note``)."""
    links: dict[int, int] = field(factory=dict)
    """The links to servers, by the server's id."""
    clients: dict[int, KeptFd[ClientNote]] = field(factory=dict)
    new_clients: list[KeptFd[int]] = field(factory=list)
    """The clients' ends of connections to servers; each note is the id of the server with the other end, 0: none."""
    offers: dict[int, int] = field(factory=dict)
    connections: list[KeptFd[bytes]] = field(factory=list)
    fifo: int = -1
    _unknown: list[tuple[str, int]] = field(factory=list)

    @classmethod
    def of(cls, keeper: KeeperLink | None, kept_descriptors: Mapping[str, Entry]) -> KeptEntries:
        """Sort the entries of a keeper."""
        entries = cls(keeper)
        for name, entry in kept_descriptors.items():
            try:
                entries._sort(name, entry)
            except (ValueError, msgspec.DecodeError):
                entries._unknown.append((name, entry.fd))
        return entries

    def _sort(self, name: str, entry: Entry) -> None:
        """Add an entry to those of its purpose, by its name; raise ValueError for an unknown name."""
        kind, _, argument = name.partition(" ")
        match kind:
            case "listener":
                self.listeners[argument] = KeptFd(name, entry.fd, entry.note)
            case "fifo":
                self.fifo = entry.fd
            case "server":
                self.links[int(argument)] = entry.fd
            case "client":
                note = msgspec.json.decode(entry.note, type=ClientNote)
                self.clients[int(argument)] = KeptFd(name, entry.fd, note)
            case "newcomer":
                self.new_clients.append(KeptFd(name, entry.fd, int(entry.note or b"0")))
                id_of(name)
            case "offer":
                self.offers[int(argument)] = entry.fd
            case "connection":
                id_text, _ = argument.split(" ")
                int(id_text)
                self.connections.append(KeptFd(name, entry.fd, entry.note))
            case _:
                raise ValueError(f"no daemon calls anything {name}")

    def next_connection(self) -> int:
        """Return the first id for this daemon's connections, above all ids that an earlier daemon's entries have."""
        names = [entry.name for entry in self.connections] + [entry.name for entry in self.new_clients]
        return 1 + max((*map(id_of, names), *self.offers), default=0)

    def take_connections(self, file: str) -> list[KeptFd[bytes]]:
        """Return the connections to a listening socket."""
        connections = [entry for entry in self.connections if entry.name.split(" ")[2] == file]
        self.connections = [entry for entry in self.connections if entry not in connections]
        return [evolve(entry, offered=self._take_offer(id_of(entry.name))) for entry in connections]

    def _take_offer(self, connection: int) -> tuple[int, int] | None:
        client = next((candidate for candidate in self.new_clients if id_of(candidate.name) == connection), None)
        if client is None or connection not in self.offers:
            return None
        self.new_clients.remove(client)
        return self.offers.pop(connection), client.fd

    def take_new_clients(self, server: int) -> tuple[tuple[str, int], ...]:
        """Return the entries' names and the descriptors of the new clients to which a server may be talking."""
        clients = [client for client in self.new_clients if client.note == server]
        # The server may or may not have the other end of an offered one.
        shared = [client for client in clients if id_of(client.name) in self.offers]
        self.new_clients = [client for client in self.new_clients if client not in clients or client in shared]
        return tuple((client.name, os.dup(client.fd) if client in shared else client.fd) for client in clients)

    def take_listener(self, file: str, path: str, kind: socket.SocketKind) -> socket.socket | None:
        """Return the listening socket of a file, if it is of the kind that is needed and the file is the same one."""
        entry = self.listeners.pop(file, None)
        if entry is None:
            return None
        listener = socket.socket(fileno=entry.fd)
        if listener.type is kind and entry.note and entry.note == file_note(path):
            # Again: peers then see this process, and not the previous daemon, at the other end (SO_PEERCRED).
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
        """Close the remaining descriptors, and drop them at the keeper."""
        remaining = [(link_name(server), fd) for server, fd in self.links.items()]
        remaining += [(entry.name, entry.fd) for entry in self.listeners.values()]
        remaining += [(entry.name, entry.fd) for entry in self.clients.values()]
        remaining += [(entry.name, entry.fd) for entry in self.new_clients]
        remaining += [(offer_name(connection), fd) for connection, fd in self.offers.items()]
        remaining += [(entry.name, entry.fd) for entry in self.connections]
        remaining += [(FIFO, self.fifo)] if self.fifo >= 0 else []
        remaining += self._unknown
        for name, fd in remaining:
            if self.keeper is not None:
                self.keeper.drop(name)
            close_all((fd,))
        self.listeners, self.links, self.clients, self.fifo = {}, {}, {}, -1
        self.new_clients, self.offers, self.connections, self._unknown = [], {}, [], []
