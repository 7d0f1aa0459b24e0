"""Create, change and delete named servers.

A named server is created by an operator, the configuration file, or the first client of a user. It may or may not
have a process (`status` combines both)::

    create_server --> sockets open --> Configured --> Starting --> Ready <--> Fault
                           |               ^                         |
                           v               +----- process ends ------+
                        refused                                    Failed (its start failed; the next client retries)

- A request that is not possible raises NotPossible with the sentence for the operator, and changes nothing: all
  checks come before the first change of the state. `config apply --check` relies on that, and begins changes on a
  copy.
- A command that takes time is answered later: its session is kept with the server or the namespace (``creators``,
  ``deleters``) and answered when the sockets are open, the process is ready, or has ended.
- A deleted server keeps its name until its process has ended; nothing else is possible with it.
- Each change that the next daemon needs increases `NamedServers.changes`, so that the state is saved again.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pympsd.errors import InputError
from pympsd.state_machine import queueing, registration, shares
from pympsd.state_machine.holding import start_problem
from pympsd.state_machine.instructions import Instruction, Log, Working, reply
from pympsd.state_machine.shutdown import shut_down_server
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, NamedStatus, Source
from pympsd.state_machine.state.server import Phase, Server
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import DEFAULT, name_problem, server_of_user, user_of_server
from pympsd.vocabulary.limit_table import (
    LIMITS,
    PERCENTAGE,
    PINNED_MEMORY,
    PRIORITY,
    SM_PARTITION,
    TOTAL_MEMORY,
    Limits,
)
from pympsd.vocabulary.limits import PinnedMemory
from pympsd.vocabulary.results import Result
from pympsd.vocabulary.texts import CONTAINMENTS

_STATUS = {
    Phase.RETURNING: NamedStatus.STARTING,
    Phase.SPAWNING: NamedStatus.STARTING,
    Phase.INITIALIZING: NamedStatus.STARTING,
    Phase.ACTIVE: NamedStatus.READY,
    Phase.FAULT: NamedStatus.FAULT,
    Phase.LEAVING: NamedStatus.STOPPING,
}


class NotPossible(InputError, ValueError):
    """An operator's request is not possible; the message is the sentence for the operator.

    Raised before the state has changed. The message begins with a capital letter, states what was given and what is
    allowed, and is printed as the answer (exit status 1).
    """


def server(daemon: Daemon, name: str) -> NamedServer:
    """Return the server with a name; raise NotPossible.

    Use it for a name that an operator gave. `NamedServers.get` returns None instead.
    """
    named_server = daemon.named_servers.get(name)
    if named_server is None:
        raise NotPossible(f"No server named '{name}'.")
    return named_server


def status(daemon: Daemon, named_server: NamedServer) -> NamedStatus:
    """Return the status of a server.

    The status that ``server list`` shows: STOPPING if it is being deleted, FAILED if it has no socket or could not be
    started, else that of its process; CONFIGURED without one.
    """
    process = daemon.server_named(named_server.name)
    if named_server.deleted:
        return NamedStatus.STOPPING
    if named_server.unreachable:
        return NamedStatus.FAILED
    if process is not None:
        return _STATUS[process.phase]
    if daemon.queue.waits_for(named_server.name):
        return NamedStatus.STARTING
    return NamedStatus.FAILED if named_server.failed else NamedStatus.CONFIGURED


def clients(daemon: Daemon, name: str, namespace: str | None = None) -> list[Client]:
    """Return the clients of a server, or of one of its namespaces.

    ``namespace`` None means all. Clients that only wait are not among them.
    """
    process = daemon.server_named(name)
    all_clients = process.clients.values() if process is not None else ()
    return [client for client in all_clients if namespace in (None, client.process.namespace or DEFAULT)]


def create_server(
    daemon: Daemon,
    name: str,
    uid: int,
    allowed_devices: tuple[int, ...] | None = None,
    limits: Limits | None = None,
    source: Source = Source.COMMAND,
    session: int = 0,
    asker: int = 0,
) -> Iterator[Instruction]:
    """Make a server and start it; its ``session`` is answered when it is ready, or cannot start.

    ``asker``: the user who requests the server, and in whose share it counts.
    """
    if problem := name_problem(name, of_server=True) or daemon.options.socket_problem(name):
        raise NotPossible(problem)
    if daemon.quitting is not None:
        raise NotPossible("The daemon is quitting.")
    if problem := start_problem(daemon):
        raise NotPossible(problem)
    if name in daemon.named_servers:
        raise NotPossible(f"Server '{name}' exists already.")
    _check_user(daemon, name, uid)
    if allowed_devices is not None:
        _check_devices(daemon, allowed_devices)
    named_server = NamedServer(name, uid, allowed_devices=allowed_devices, source=source)
    if shares.is_own(named_server):
        check_share(shares.problem_of_own_server(daemon, uid))
    else:
        check_share(shares.problem(daemon, asker, shares.cost_of_server(daemon, named_server)))
    yield from _report_working(session)
    yield from registration.add(daemon, named_server, limits, session)


def set_user(daemon: Daemon, name: str, uid: int, session: int = 0) -> Iterator[Instruction]:
    """Change the user of a server without clients: its process and its sockets are recreated.

    Its ``session`` is answered as by create_server. If the sockets cannot be created, the server keeps its user.
    """
    named_server = server(daemon, name)
    present = len(clients(daemon, name))
    if present:
        raise NotPossible(f"Server '{name}' has {count_clients(present)}: its user can change when it has none.")
    current = status(daemon, named_server)
    if current not in (NamedStatus.READY, NamedStatus.CONFIGURED, NamedStatus.FAILED):
        raise NotPossible(f"Server '{name}' is {current}: its user can change when it is Ready.")
    _check_user(daemon, name, uid)
    yield from _report_working(session)
    if session:
        named_server.creators.append(session)
    named_server.former_uid = named_server.uid
    process = daemon.server_named(name)
    if process is not None:
        yield from shut_down_server(process, forced=False)
    yield from registration.change_user(daemon, named_server, uid)


def set_server(
    daemon: Daemon, name: str, maximum: Limits, contains_partitions: bool | None = None
) -> Iterator[Instruction]:
    """Set the maxima for later clients of a server, and whether its faults stay in its SM partition.

    Args:
        daemon: The state, which it changes.
        name: The server.
        maximum: New maxima; where a limit is None, the maximum stays as it is.
        contains_partitions: Whether a fault stays in the client's SM partition; None leaves this unchanged.

    Connected clients keep their limits. Raises NotPossible for an unknown server.
    """
    named_server = server(daemon, name)
    changed = named_server.maximum.overlay(maximum)
    if changed != named_server.maximum:
        named_server.maximum = changed
        daemon.named_servers.changes += 1
        ordinals = named_server.ordinals(len(daemon.devices))
        text = _render(changed, ordinals) + _render_others(changed, ordinals)
        yield Log("server_maximum_set", {"name": name, "limits": text})
    if contains_partitions not in (None, named_server.contains_partitions):
        named_server.contains_partitions = bool(contains_partitions)
        daemon.named_servers.changes += 1
        yield Log("server_contains", {"name": name, "reach": f"the {CONTAINMENTS[named_server.contains_partitions]}"})


def change_limits(daemon: Daemon, named_server: NamedServer, namespace: str, limits: Limits) -> Iterator[Instruction]:
    """Change the limits of a namespace; its clients keep theirs.

    A limit that is None in ``limits`` stays as it is. Nothing is logged if nothing changes. KeyError for an unknown
    ``namespace``.
    """
    target = named_server.namespaces[namespace]
    ordinals = named_server.ordinals(len(daemon.devices))
    changed, before = target.limits.overlay(limits), _render_all(target.limits, ordinals)
    if changed != target.limits:
        target.limits = changed
        daemon.named_servers.changes += 1
        name, after = f"{named_server.name}/{namespace}", _render_all(changed, ordinals)
        yield Log("namespace_set", {"name": name, "before": before, "limits": after})


def delete_server(daemon: Daemon, name: str, forced: bool, session: int = 0) -> Iterator[Instruction]:
    """Delete a server; its ``session`` is answered when its process has ended and the name is free.

    ``forced`` terminates its clients first; without it NotPossible is raised if there are any. Its sockets are
    removed and clients that wait are refused immediately. A second delete waits for the same end.
    """
    named_server = server(daemon, name)
    present = len(clients(daemon, name))
    if present and not forced and not named_server.deleted:
        raise NotPossible(f"Server '{name}' has {end_of_refusal(present)}")
    if session:
        named_server.deleters.append(session)
    yield from _report_working(session)
    if not named_server.deleted:
        named_server.deleted = True
        daemon.named_servers.changes += 1
        yield from refuse_creators(named_server, "was deleted before it was ready.")
        yield from refuse_waiting(
            daemon, name, Result.ERROR_MPS_SERVER_NOT_READY, f"server '{name}' is being deleted"
        )
        yield from registration.close_sockets(named_server)
    process = daemon.server_named(name)
    if process is None:
        yield from process_gone(daemon, name)
    else:
        yield from shut_down_server(process, forced=forced, is_deletion=True)


def check_not_deleted(named_server: NamedServer) -> None:
    """Raise NotPossible if a server is being deleted.

    Until its process has ended it is listed, and refuses every change.
    """
    if named_server.deleted:
        raise NotPossible(f"Server '{named_server.name}' is being deleted.")


def check_share(problem: str) -> None:
    """Raise NotPossible with the sentence of a refusal, if there is one.

    ``problem`` is a text of `shares`, which begins in lower case and has no full stop; empty if the share suffices.
    """
    if problem:
        raise NotPossible(f"{problem[0].upper()}{problem[1:]}.")


def count_clients(count: int) -> str:
    """Return a number of clients in words.

    >>> count_clients(1), count_clients(2)
    ('1 active client', '2 active clients')
    """
    return "1 active client" if count == 1 else f"{count} active clients"


def end_of_refusal(count: int) -> str:
    """Return the end of the sentence that refuses to delete a server or namespace with clients.

    >>> end_of_refusal(2)
    '2 active clients; --force terminates them first.'
    """
    return f"{count_clients(count)}; --force terminates {'it' if count == 1 else 'them'} first."


def process_started(daemon: Daemon, process: Server) -> Iterator[Instruction]:
    """End a process that started, or returned, after its server was deleted."""
    named_server = daemon.named_servers.get(process.name)
    if named_server is not None and named_server.deleted:
        yield from shut_down_server(process, forced=True, is_deletion=True)


def process_gone(daemon: Daemon, name: str) -> Iterator[Instruction]:
    """Remove a deleted server that has no process any more, and answer the operators that deleted it."""
    named_server = daemon.named_servers.get(name)
    if named_server is None or not named_server.deleted:
        return
    daemon.named_servers.remove(name)
    daemon.failed_starts.pop(name, None)
    yield Log("server_removed", {"name": name})
    for session in named_server.deleters:
        yield from reply(session, Answer())


def refuse_creators(named_server: NamedServer, why: str) -> Iterator[Instruction]:
    """Answer the commands that wait for a server or its namespaces with a refusal.

    ``why`` continues "Server 'a' " or "Namespace 'b' ". Operators whose commands wait for its sockets or its start
    get the sentence.
    """
    for session in named_server.creators:
        yield from reply(session, refusal(f"Server '{named_server.name}' {why}"))
    named_server.creators.clear()
    for namespace in named_server.namespaces.values():
        for session in namespace.creators:
            yield from reply(session, refusal(f"Namespace '{namespace.name}' {why}"))
        namespace.creators.clear()


def refuse_waiting(daemon: Daemon, name: str, code: int, reason: str) -> Iterator[Instruction]:
    """Refuse the clients that wait for a server, and drop requests to start it."""
    daemon.failed_starts.pop(name, None)
    yield from queueing.refuse(daemon, name, code, reason)


def _report_working(session: int) -> Iterator[Instruction]:
    if session:
        yield Working(session)


def _check_user(daemon: Daemon, name: str, uid: int) -> None:
    """Raise NotPossible unless a server can belong to a user."""
    if name.startswith("uid_") and name != server_of_user(uid):
        own = f"that of user {uid} is '{server_of_user(uid)}'"
        user = user_of_server(name)
        option = f", or give --uid={user}" if user is not None else ""
        remedy = "" if name in daemon.named_servers else f"; choose another name{option}"
        raise NotPossible(f"Names that begin with uid_ are reserved for users' servers: {own}, not '{name}'{remedy}.")
    if daemon.options.multiuser and uid != 0:
        raise NotPossible(f"With -m every server is root's: --uid must be 0, not {uid}.")
    if daemon.options.uid not in (0, uid):
        raise NotPossible(
            f"This daemon is run by user {daemon.options.uid} and can make servers of that user only, not {uid}."
        )


def _check_devices(daemon: Daemon, ordinals: tuple[int, ...]) -> None:
    if not daemon.options.has_own_servers:
        raise NotPossible("--allowed-devices is not possible with the driver's own server: it has all devices.")
    for ordinal in ordinals:
        if not 0 <= ordinal < len(daemon.devices):
            raise NotPossible(f"There is no device {ordinal}; there are {len(daemon.devices)}.")
    if not ordinals or len(set(ordinals)) < len(ordinals):
        raise NotPossible("--allowed-devices names each device once, and at least one.")


_WORDED: Final = (PERCENTAGE, PINNED_MEMORY, TOTAL_MEMORY, PRIORITY, SM_PARTITION)
"""The limits that have words of their own in log lines."""


def _render(limits: Limits, ordinals: tuple[int, ...]) -> str:
    memory = _render_by_device(limits.pinned_memory, ordinals) or "unlimited"
    return f"{PERCENTAGE.text(limits, ordinals)} %, memory {memory}"


def _render_all(limits: Limits, ordinals: tuple[int, ...]) -> str:
    total = _render_by_device(limits.total_memory, ordinals)
    together = f" each, {total} together" if total else ""
    partition = f", SM partition {limits.sm_partition}" if limits.sm_partition else ""
    words = f"{_render(limits, ordinals)}{together}, priority {PRIORITY.text(limits, ordinals)}{partition}"
    return words + _render_others(limits, ordinals)


def _render_others(limits: Limits, ordinals: tuple[int, ...]) -> str:
    """Return the limits that have no words of their own in log lines, each by the name of its option."""
    rows = (row for row in LIMITS if row not in _WORDED and row.of(limits) is not None)
    return "".join(f", {row.name} {row.text(limits, ordinals)}" for row in rows)


def _render_by_device(memory: Mapping[int, PinnedMemory] | None, ordinals: tuple[int, ...]) -> str:
    """Return the memory limits of some devices as a text, by the numbers that the clients of a server see."""
    limits = memory or {}
    return ", ".join(f"{index}={limits[ordinal]}" for index, ordinal in enumerate(ordinals) if ordinal in limits)
