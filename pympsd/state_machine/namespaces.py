"""Create, change and delete the namespaces of a server; see `named_servers` for the rules of refusals."""

from collections.abc import Iterator

from pympsd.state_machine import named_servers, queueing, shares, terminations
from pympsd.state_machine.instructions import CloseNamespace, Instruction, Log, OpenNamespace
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import MAX_NAMESPACES, NamedServer, Namespace
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import DEFAULT, name_problem
from pympsd.vocabulary.limit_table import Limits
from pympsd.vocabulary.results import Result


def create_namespace(
    daemon: Daemon,
    server_name: str,
    name: str,
    limits: Limits | None = None,
    session: int = 0,
    clients_only: bool = False,
    asker: int = 0,
) -> Iterator[Instruction]:
    """Make a namespace; its ``session`` is answered when its socket is open.

    Args:
        daemon: The state, which it changes.
        server_name: The server.
        name: 1 to 64 lowercase letters, digits and underscores, and not a reserved name.
        limits: Limits of its clients; None if it sets none.
        session: An operator's session to answer; 0 means none.
        clients_only: Whether operators are refused at its socket.
        asker: The user who requests it, and in whose share of namespaces it counts.

    Raises:
        NotPossible: The server does not exist or is being deleted, the name is invalid or in use, the socket's path
            would be too long, or the server or the user has as many namespaces as are allowed.
    """
    named_server = _server(daemon, server_name)
    if problem := name_problem(name) or daemon.options.socket_problem(server_name, name):
        raise named_servers.NotPossible(problem)
    if name in named_server.namespaces:
        raise named_servers.NotPossible(f"Namespace '{name}' exists already on server '{server_name}'.")
    if len(named_server.namespaces) >= MAX_NAMESPACES:
        raise named_servers.NotPossible(
            f"Server '{server_name}' has {MAX_NAMESPACES} namespaces, and no more are possible."
        )
    named_servers.check_share(shares.problem(daemon, asker, shares.cost_of_namespace()))
    named_server.namespaces[name] = Namespace(name, limits or Limits(), [session] if session else [], clients_only)
    daemon.named_servers.changes += 1
    yield Log("namespace_added", {"name": f"{server_name}/{name}"})
    yield OpenNamespace(server_name, name, named_server.uid)


def set_namespace(daemon: Daemon, server_name: str, name: str, limits: Limits) -> Iterator[Instruction]:
    """Set limits of a namespace for later clients.

    A limit that is None in ``limits`` stays as it is. Raises NotPossible for an unknown server or namespace.
    """
    named_server = _server(daemon, server_name, name)
    yield from named_servers.change_limits(daemon, named_server, name, limits)


def delete_namespace(
    daemon: Daemon, server_name: str, name: str, forced: bool, session: int = 0
) -> Iterator[Instruction]:
    """Delete a namespace; its ``session`` is answered when its clients have been terminated.

    ``forced`` terminates its clients first; without it NotPossible is raised if there are any. Clients that wait for
    it are refused. The namespace ``default`` cannot be deleted.
    """
    named_server = _server(daemon, server_name, name)
    if name == DEFAULT:
        raise named_servers.NotPossible("Namespace 'default' belongs to its server.")
    present = named_servers.clients(daemon, server_name, name)
    if present and not forced:
        raise named_servers.NotPossible(f"Namespace '{name}' has {named_servers.end_of_refusal(len(present))}")
    del named_server.namespaces[name]
    daemon.named_servers.changes += 1
    yield Log("namespace_removed", {"name": f"{server_name}/{name}"})
    yield CloseNamespace(server_name, name)
    reason = f"namespace '{name}' of server '{server_name}' was deleted"
    yield from queueing.refuse(daemon, server_name, Result.ERROR_MPS_SERVER_NOT_READY, reason, name)
    yield from terminations.evict(daemon, session, present, Answer())


def _server(daemon: Daemon, server_name: str, namespace: str = DEFAULT) -> NamedServer:
    """Return a server that is not being deleted, and has a namespace; raise NotPossible."""
    named_server = named_servers.server(daemon, server_name)
    named_servers.check_not_deleted(named_server)
    if namespace not in named_server.namespaces:
        raise named_servers.NotPossible(f"No namespace named '{namespace}' on server '{server_name}'.")
    return named_server
