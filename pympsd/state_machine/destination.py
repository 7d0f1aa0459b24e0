"""Find the destination of a client: its server, its namespace and the user of the server, or why it has none.

In protocol 2 a client goes to its user's server (root's with ``-m``). In protocol 3 a client goes to the namespace
whose socket it used; a client that used the top socket goes to its user's own server, ``uid_N``, which is made when
it is needed. The destination is resolved once for each connection, before any decision about the client.
"""

from collections.abc import Iterator

from attrs import frozen

from pympsd.state_machine import shares
from pympsd.state_machine.events import ClientConnected
from pympsd.state_machine.instructions import Instruction
from pympsd.state_machine.registration import NO_DEVICES, add
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Source
from pympsd.vocabulary.identities import DEFAULT, server_of_user
from pympsd.vocabulary.results import Result


@frozen
class Destination:
    """A namespace of a server, both by name; neither needs to exist."""

    server: str
    namespace: str
    uid: int
    """The user that the server runs as."""

    def __str__(self) -> str:
        return f"{self.server}/{self.namespace}"


def find(daemon: Daemon, event: ClientConnected) -> Destination:
    """Return the server, the namespace and the user that a client connects to."""
    uid = daemon.options.find_serving_uid(event.process.peer.uid)
    name = event.server or server_of_user(uid)
    named_server = daemon.named_servers.get(name)
    return Destination(name, event.process.namespace or DEFAULT, uid if named_server is None else named_server.uid)


def make_missing(daemon: Daemon, target: Destination) -> Iterator[Instruction]:
    """Make a user's own server, to which clients go that name none, if the target server does not exist."""
    if daemon.options.policy.has_named_servers and target.server not in daemon.named_servers:
        yield from add(daemon, NamedServer(target.server, target.uid, source=Source.AUTO))


def refusal(daemon: Daemon, event: ClientConnected, target: Destination) -> tuple[int, str] | None:
    """Return why a client cannot have its destination, as a CUresult number and a reason; None if it can."""
    uid = event.process.peer.uid
    if not daemon.options.policy.has_named_servers:
        is_served = daemon.options.uid in (0, uid)
        return None if is_served else (Result.ERROR_MPS_CONNECTION_FAILED, daemon.options.refusal_of_other_user(uid))
    if not event.server and not daemon.named_servers.default_socket:
        reason = "default_socket is off: CUDA_MPS_PIPE_DIRECTORY is to name the directory of a server or a namespace"
        return Result.ERROR_NOT_PERMITTED, reason
    named_server = daemon.named_servers.get(target.server)
    return (
        _refusal_of_missing(daemon, event, target)
        if named_server is None
        else _refusal_of(daemon, named_server, uid, target)
    )


def _refusal_of(daemon: Daemon, named_server: NamedServer, uid: int, target: Destination) -> tuple[int, str] | None:
    """Return why a client of a user cannot go to a server that exists; None if the client can."""
    name, namespace = target.server, target.namespace
    if named_server.deleted:
        return Result.ERROR_MPS_SERVER_NOT_READY, f"server '{name}' is being deleted"
    if not daemon.options.multiuser and uid != named_server.uid:
        reason = (
            f"server '{name}' serves user {named_server.uid} only, not {uid}; a daemon that root starts with -m "
            "serves all users"
        )
        return Result.ERROR_NOT_PERMITTED, reason
    if named_server.allowed_devices == ():
        return Result.ERROR_MPS_SERVER_NOT_READY, f"server '{name}' has failed: {NO_DEVICES}"
    # Only clients that wait are refused; a server with a process continues to serve.
    if named_server.unreachable and (named_server.opening or daemon.server_named(name) is None):
        return Result.ERROR_MPS_CONNECTION_FAILED, named_server.unreachable
    if namespace not in named_server.namespaces:
        reason = f"no namespace '{namespace}' on server '{name}'; there are: {', '.join(named_server.namespaces)}"
        return Result.ERROR_MPS_CONNECTION_FAILED, reason
    return None


def _refusal_of_missing(daemon: Daemon, event: ClientConnected, target: Destination) -> tuple[int, str] | None:
    """Return why a client cannot go to a server that does not exist; None if it can be made for the client."""
    uid = event.process.peer.uid
    if event.server:
        return Result.ERROR_MPS_CONNECTION_FAILED, f"no server named '{target.server}'"
    if daemon.options.uid not in (0, uid):
        return Result.ERROR_NOT_PERMITTED, daemon.options.refusal_of_other_user(uid)
    reason = daemon.options.socket_problem(target.server) or shares.problem_of_own_server(daemon, target.uid)
    return (Result.ERROR_MPS_CONNECTION_FAILED, reason) if reason else None
