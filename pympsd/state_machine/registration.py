"""Named servers as they come and go: added with their sockets, ready or failed, closed.

These steps are shared by the commands of operators, the first client of a user, and a daemon that takes over.
"""

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import instructions as do
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.limit_table import Limits

NO_DEVICES: Final = "none of its devices exists any more: delete the server, and create it with other devices"


def set_default_socket(daemon: Daemon, on: bool) -> Iterator[do.Instruction]:
    """Set whether clients that name no server are served.

    While they are not, a client that connects to the daemon's own socket is refused with the reason, unless it names
    a server by its pipe directory.
    """
    daemon.named_servers.default_socket = on
    yield do.Log("default_socket_set", {"state": "on" if on else "off"})


def add(
    daemon: Daemon, named_server: NamedServer, limits: Limits | None = None, session: int = 0
) -> Iterator[do.Instruction]:
    """Add a server and its namespace ``default``.

    Args:
        daemon: The state, which it changes.
        named_server: The server, which replaces one of the same name.
        limits: Limits of ``default`` in place of the daemon's defaults.
        session: An operator's session that is answered when the server is ready or could not start; 0 means none.
    """
    own = daemon.defaults.limits
    named_server.namespaces[DEFAULT] = Namespace(DEFAULT, own.overlay(limits or Limits()))
    named_server.created = daemon.lifetime.now
    if session:
        named_server.creators.append(session)
    daemon.named_servers.add(named_server)
    yield do.Log("server_added", {"name": named_server.name})
    yield from open_sockets(named_server)


def open_sockets(named_server: NamedServer) -> Iterator[do.Instruction]:
    """Open the sockets of a server and its namespaces; that of ``default`` last, after which it may start.

    NamespaceOpened follows for each. The order matters: when the socket of ``default`` is open, all others are.
    """
    yield do.OpenNamespace(named_server.name, "", named_server.uid)
    for namespace in (*(name for name in named_server.namespaces if name != DEFAULT), DEFAULT):
        yield do.OpenNamespace(named_server.name, namespace, named_server.uid)


def change_user(daemon: Daemon, named_server: NamedServer, uid: int) -> Iterator[do.Instruction]:
    """Close the sockets of a server and open them again for another user.

    `named_servers.set_user` has checked that it has no clients, and ends its process.
    """
    named_server.uid, named_server.opening, named_server.failed = uid, True, ""
    daemon.named_servers.changes += 1
    yield do.Log("server_user_set", {"name": named_server.name, "uid": uid})
    yield from close_sockets(named_server)
    yield from open_sockets(named_server)


def is_for_clients(daemon: Daemon, server: str, namespace: str) -> bool:
    """Return whether operators are refused at a socket.

    ``server`` and ``namespace`` name the socket; an empty server means the daemon's own, for which ``--clients-only``
    decides.
    """
    if not server:
        return daemon.options.clients_only
    named_server = daemon.named_servers.get(server)
    target = named_server.namespaces.get(namespace) if named_server is not None else None
    return target is not None and target.clients_only


def close_sockets(named_server: NamedServer) -> Iterator[do.Instruction]:
    """Remove the sockets and directories of a server and its namespaces."""
    for namespace in named_server.namespaces:
        yield do.CloseNamespace(named_server.name, namespace)
    yield do.CloseNamespace(named_server.name, "")


def note_ready(daemon: Daemon, name: str) -> Iterator[do.Instruction]:
    """Note that a server is ready, and answer the command that made it.

    The reason why its last process could not start is dropped. Names that are not registered are ignored.
    """
    named_server = daemon.named_servers.get(name)
    if named_server is None:
        return
    if named_server.failed:
        named_server.failed = ""
        daemon.named_servers.changes += 1
    for session in named_server.creators:
        yield from do.reply(session, Answer())
    named_server.creators.clear()


def could_not_start(daemon: Daemon, name: str, reason: str, cause: str = "") -> Iterator[do.Instruction]:
    """Note why a server cannot start, and answer the command that made it; it stays, and the next client retries.

    ``cause``: the reason as the end of "... could not be started: ", if it differs from ``reason``.
    """
    named_server = daemon.named_servers.get(name)
    if named_server is None:
        return
    if named_server.failed != reason:
        named_server.failed = reason
        daemon.named_servers.changes += 1
    for session in named_server.creators:
        yield from do.reply(session, refusal(f"Server '{name}' could not be started: {cause or reason}"))
    named_server.creators.clear()
