"""The sockets of servers and namespaces: react when one is open, could not be opened, or was removed."""

from collections.abc import Iterator

from pympsd.state_machine import registration
from pympsd.state_machine.admission import request_server, serve_queue
from pympsd.state_machine.events import NamespaceLost, NamespaceOpened
from pympsd.state_machine.instructions import CloseNamespace, Instruction, Log, OpenNamespace, reply
from pympsd.state_machine.named_servers import refuse_creators, refuse_waiting
from pympsd.state_machine.registration import NO_DEVICES, could_not_start
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.results import Result


def handle_opened(daemon: Daemon, event: NamespaceOpened) -> Iterator[Instruction]:
    """Continue the work that waited for a socket, which is open now or could not be opened."""
    named_server, owner = _find_owner(daemon, event)
    if named_server is None or owner is None:
        return
    if event.problem and event.problem != owner.unopened:
        yield Log("namespace_not_opened", {"name": _path(event), "reason": event.problem})
    owner.unopened = event.problem
    if event.namespace == DEFAULT:
        yield from (
            _server_not_opened(daemon, named_server, event.problem)
            if event.problem
            else _may_start(daemon, named_server)
        )
    elif isinstance(owner, Namespace):
        yield from _answer_creators(daemon, named_server, owner)


def handle_lost(daemon: Daemon, event: NamespaceLost) -> Iterator[Instruction]:
    """Recreate a socket that was removed: repeat until it succeeds, but log the loss once."""
    named_server, owner = _find_owner(daemon, event)
    if named_server is None or owner is None or daemon.quitting is not None:
        return
    if not owner.unopened:
        yield Log("namespace_lost", {"name": _path(event)})
    yield OpenNamespace(event.server, event.namespace, named_server.uid)


def _find_owner(
    daemon: Daemon, event: NamespaceOpened | NamespaceLost
) -> tuple[NamedServer | None, NamedServer | Namespace | None]:
    """Return the server of a socket, and the server or namespace that owns it; None if they are gone."""
    named_server = daemon.named_servers.get(event.server)
    if named_server is None or named_server.deleted:
        return None, None
    return named_server, named_server.namespaces.get(event.namespace) if event.namespace else named_server


def _may_start(daemon: Daemon, named_server: NamedServer) -> Iterator[Instruction]:
    named_server.opening, named_server.former_uid = False, None
    daemon.compound_commands.mark_starting(named_server.creators)
    if named_server.allowed_devices == ():
        yield from could_not_start(daemon, named_server.name, NO_DEVICES)
    elif named_server.source is not Source.AUTO:
        yield from request_server(daemon, named_server.uid, named_server.name)
    yield from serve_queue(daemon)


def _server_not_opened(daemon: Daemon, named_server: NamedServer, problem: str) -> Iterator[Instruction]:
    yield from refuse_waiting(daemon, named_server.name, Result.ERROR_MPS_CONNECTION_FAILED, problem)
    if named_server.former_uid is not None:
        yield from _restore_user(daemon, named_server, named_server.former_uid, problem)
    elif named_server.opening and named_server.creators:
        yield from refuse_creators(named_server, f"could not be made: {problem}")
        daemon.named_servers.remove(named_server.name)
        yield from registration.close_sockets(named_server)
    # A server of an earlier daemon stays listed, so that its users can see what has happened.


def _restore_user(daemon: Daemon, named_server: NamedServer, uid: int, problem: str) -> Iterator[Instruction]:
    """Restore the server's previous user, who owns its directories."""
    for session in named_server.creators:
        yield from reply(session, refusal(f"Server '{named_server.name}' stays that of user {uid}: {problem}"))
    named_server.creators.clear()
    yield from registration.change_user(daemon, named_server, uid)
    named_server.former_uid = None


def _answer_creators(daemon: Daemon, named_server: NamedServer, namespace: Namespace) -> Iterator[Instruction]:
    for session in namespace.creators:
        problem = f"Namespace '{namespace.name}' could not be made: {namespace.unopened}"
        yield from reply(session, refusal(problem) if namespace.unopened else Answer())
    if namespace.creators and namespace.unopened:
        del named_server.namespaces[namespace.name]
        daemon.named_servers.changes += 1
        yield CloseNamespace(named_server.name, namespace.name)
    namespace.creators.clear()


def _path(event: NamespaceOpened | NamespaceLost) -> str:
    return f"{event.server}/{event.namespace}" if event.namespace else event.server
