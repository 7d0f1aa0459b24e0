"""Where a client goes in protocol 3: to the namespace whose socket it comes by; from the top one, by its user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import shares
from pympsd.state_machine.events import ClientConnected
from pympsd.state_machine.instructions import (
    ClientLimits,
    CloseNamespace,
    Instruction,
    Log,
    OpenNamespace,
    RefuseClient,
)
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.vocabulary.namespaces import DEFAULT, NamespaceLimits, server_of_user, socket_problem
from pympsd.vocabulary.results import Result

NO_DEVICES: Final = "none of its devices is there any more: delete it, and create it with others"


def server_for(daemon: Daemon, event: ClientConnected) -> str:
    """Return the name of the server that a client comes to."""
    return event.server or server_of_user(daemon.options.serving_uid(event.peer.uid))


def refusal(daemon: Daemon, event: ClientConnected) -> RefuseClient | None:
    """Return why a client cannot come where it comes to, or None."""
    name, namespace = server_for(daemon, event), event.mps_namespace or DEFAULT
    if not event.server and not daemon.named_servers.default_socket:
        reason = "default_socket is off: CUDA_MPS_PIPE_DIRECTORY is to name the directory of a server or a namespace"
        return RefuseClient(event.client, Result.ERROR_NOT_PERMITTED, reason)
    named = daemon.named_servers.get(name)
    if named is None:
        return _missing(daemon, event, name)
    if named.deleted:
        return RefuseClient(event.client, Result.ERROR_MPS_SERVER_NOT_READY, f"server '{name}' is being deleted")
    if not daemon.options.multiuser and event.peer.uid != named.uid:
        reason = (
            f"server '{name}' serves user {named.uid} only, not {event.peer.uid}; a daemon that root starts with -m "
            "serves all users"
        )
        return RefuseClient(event.client, Result.ERROR_NOT_PERMITTED, reason)
    if named.allowed_devices == ():
        return RefuseClient(
            event.client, Result.ERROR_MPS_SERVER_NOT_READY, f"server '{name}' has failed: {NO_DEVICES}"
        )
    # As those that wait for it are; one with a process goes on serving.
    if named.unreachable and (named.opening or daemon.server_named(name) is None):
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, named.unreachable)
    if namespace not in named.namespaces:
        reason = f"no namespace '{namespace}' on server '{name}'; there are: {', '.join(named.namespaces)}"
        return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason)
    return None


def _missing(daemon: Daemon, event: ClientConnected, name: str) -> RefuseClient | None:
    reason = ""
    if event.server:
        reason = f"no server named '{name}'"
    elif daemon.options.uid not in (0, event.peer.uid):
        reason = daemon.options.refusal_of_other_user(event.peer.uid)
        return RefuseClient(event.client, Result.ERROR_NOT_PERMITTED, reason)
    else:
        reason = socket_problem(
            daemon.options.pipe_directory, name, DEFAULT, for_libcuda=not daemon.options.has_own_servers
        ) or shares.problem_of_own_server(daemon, daemon.options.serving_uid(event.peer.uid))
    return RefuseClient(event.client, Result.ERROR_MPS_CONNECTION_FAILED, reason) if reason else None


def set_default_socket(daemon: Daemon, on: bool) -> Iterator[Instruction]:
    """Set whether clients that name no server are served."""
    daemon.named_servers.default_socket = on
    yield Log("default_socket_set", {"state": "on" if on else "off"})


def make_missing(daemon: Daemon, event: ClientConnected) -> Iterator[Instruction]:
    """Make the server of a client that names none, if there is none."""
    name = server_for(daemon, event)
    if name not in daemon.named_servers:
        yield from add(daemon, NamedServer(name, daemon.options.serving_uid(event.peer.uid), source=Source.AUTO))


def add(
    daemon: Daemon, named: NamedServer, limits: NamespaceLimits | None = None, session: int = 0
) -> Iterator[Instruction]:
    """Add a server; ``limits``: those of its namespace ``default``, where they differ from the daemon's own."""
    own = NamespaceLimits(
        daemon.defaults.thread_percentage, dict(daemon.defaults.memory_limits), daemon.defaults.client_priority
    )
    named.namespaces[DEFAULT] = Namespace(DEFAULT, own.changed_by(limits or NamespaceLimits()))
    named.created = daemon.lifetime.now
    if session:
        named.creators.append(session)
    daemon.named_servers.add(named)
    yield Log("server_added", {"name": named.name})
    yield from open_sockets(named)


def open_sockets(named: NamedServer) -> Iterator[Instruction]:
    """Have the sockets of a server and its namespaces opened; that of ``default`` last, after which it may start."""
    yield OpenNamespace(named.name, "", named.uid)
    for namespace in (*(one for one in named.namespaces if one != DEFAULT), DEFAULT):
        yield OpenNamespace(named.name, namespace, named.uid)


def change_user(daemon: Daemon, named: NamedServer, uid: int) -> Iterator[Instruction]:
    """Have the sockets and directories of a server made anew for a user."""
    named.uid, named.opening, named.failed = uid, True, ""
    daemon.named_servers.changes += 1
    yield Log("server_user_set", {"name": named.name, "uid": uid})
    yield from close_sockets(named)
    yield from open_sockets(named)


def is_for_clients(daemon: Daemon, server: str, namespace: str) -> bool:
    """Whether operators are refused at a socket."""
    if not server:
        return daemon.options.clients_only
    named = daemon.named_servers.get(server)
    found = named.namespaces.get(namespace) if named is not None else None
    return found is not None and found.clients_only


def close_sockets(named: NamedServer) -> Iterator[Instruction]:
    """Have the sockets and directories of a server and its namespaces removed."""
    for namespace in named.namespaces:
        yield CloseNamespace(named.name, namespace)
    yield CloseNamespace(named.name, "")


def client_limits(daemon: Daemon, server: str, namespace: str) -> ClientLimits | None:
    """Return the limits of a client of a namespace; None in protocol 2, in which they are its server's."""
    named = daemon.named_servers.get(server)
    if named is None:
        return None
    # It may be gone since this client was admitted: the connections of its further contexts are limited too.
    found = named.namespaces.get(namespace or DEFAULT) or named.namespaces[DEFAULT]
    memory = {ordinal: limit.value for ordinal, limit in found.pinned_memory.items()}
    return ClientLimits(found.thread_percentage.value, memory, named.allowed_devices, server, found.name)


def priority(daemon: Daemon, server: str, namespace: str) -> int:
    """Return the priority of a client that sets none itself."""
    named = daemon.named_servers.get(server)
    if named is None:
        return daemon.defaults.client_priority.level
    return (named.namespaces.get(namespace or DEFAULT) or named.namespaces[DEFAULT]).client_priority.level
