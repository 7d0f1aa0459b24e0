"""The named servers of a daemon that did not end in order: the next one has them as they were."""

from __future__ import annotations

from collections.abc import Iterator

from pympsd.state_machine import registration
from pympsd.state_machine.instructions import Instruction
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer, Namespace, Source
from pympsd.takeover.state.records import PersistentNamedServer, PersistentServer, PersistentState, in_memory
from pympsd.vocabulary.limit_table import Limits, percentages
from pympsd.vocabulary.limits import ClientPriority
from pympsd.vocabulary.namespaces import DEFAULT, server_of_user


def restore(daemon: Daemon, left: PersistentState) -> Iterator[Instruction]:
    """Restore the named servers, whether or not their processes return; those that do not are started again."""
    for kept in left.named_servers:
        daemon.named_servers.add(_restore_server(kept))
    for process in left.servers:
        name = process.name or server_of_user(process.uid)
        if name not in daemon.named_servers:
            named = _of_process(name, process, daemon.defaults.client_priority)
            # One with a name was being deleted.
            named.deleted = bool(process.name) and left.protocol == 3
            daemon.named_servers.add(named)
    for named in tuple(daemon.named_servers.values()):
        yield from registration.close_sockets(named) if named.deleted else registration.open_sockets(named)


def _restore_server(kept: PersistentNamedServer) -> NamedServer:
    namespaces = {
        namespace.name: Namespace(namespace.name, namespace.limits, clients_only=namespace.clients_only)
        for namespace in kept.namespaces
    }
    namespaces.setdefault(DEFAULT, Namespace(DEFAULT))
    named = NamedServer(kept.name, kept.uid, namespaces, kept.allowed_devices, Source(kept.source), kept.failed)
    named.partitions += kept.partitions
    named.maximum, named.contains_partitions, named.created = kept.maximum, kept.contains_partitions, kept.created
    return named


def _of_process(name: str, process: PersistentServer, priority: ClientPriority) -> NamedServer:
    """Return a server of protocol 2, whose clients had the daemon's default ``priority``, as one of protocol 3."""
    memory = in_memory(process.memory_limits)
    limits = Limits(percentages(process.thread_percentage), memory, priority)
    return NamedServer(name, process.uid, {DEFAULT: Namespace(DEFAULT, limits)}, source=Source.AUTO)
