"""What a daemon of protocol 3 left for one of protocol 2, which has none of most of it."""

from __future__ import annotations

from collections.abc import Iterator

from pympsd.takeover.state.records import (
    PersistentNamedServer,
    PersistentNamespace,
    PersistentServer,
    PersistentState,
)
from pympsd.vocabulary.limits import ClientPriority, ThreadPercentage
from pympsd.vocabulary.namespaces import DEFAULT, NamespaceLimits, server_of_user


def lost(left: PersistentState, own: NamespaceLimits) -> Iterator[str]:
    """Yield, in words, what a daemon of protocol 2 could not go on with; ``own``: the defaults it starts with."""
    by_command = PersistentNamespace(DEFAULT, left.thread_percentage, left.memory_limits, left.client_priority)
    defaults = own.changed_by(by_command.limits)
    running = {process.name for process in left.servers}
    for server in left.named_servers:
        yield from _of_server(server)
        for namespace in server.namespaces:
            if namespace.name != DEFAULT:
                yield f"namespace '{namespace.name}' of server '{server.name}'"
            else:
                settings = _of_default(namespace.limits, defaults, server.name in running)
                yield from (f"{setting} of server '{server.name}'" for setting in settings)
    yield from _of_daemon(left)


def limits_of(process: PersistentServer, left: PersistentState) -> tuple[float, dict[int, int]]:
    """Return the percentage and memory limits of a server of protocol 2: in 3 they were those of ``default``."""
    for server in left.named_servers:
        for namespace in server.namespaces:
            if (server.name, namespace.name) == (process.name, DEFAULT):
                said = namespace.thread_percentage
                return ThreadPercentage().value if said is None else said, namespace.pinned_memory or {}
    return process.thread_percentage, process.memory_limits


def _of_server(server: PersistentNamedServer) -> Iterator[str]:
    if server.name != server_of_user(server.uid):
        yield f"server '{server.name}'"
    settings = {
        "allowed-devices": server.allowed_devices is not None,
        "max-active-thread-percentage": server.max_thread_percentage is not None,
        "max-pinned-memory-limit": bool(server.max_pinned_memory),
        "contain=partition": server.contains_partitions,
    }
    yield from (f"{setting} of server '{server.name}'" for setting, is_set in settings.items() if is_set)
    yield from (f"SM partition '{one.name}' of server '{server.name}'" for one in server.partitions)


def _of_default(said: NamespaceLimits, defaults: NamespaceLimits, is_running: bool) -> Iterator[str]:
    """Yield the settings of a namespace ``default`` that are lost; a server that runs keeps percentage and memory."""
    full, normal = ThreadPercentage(), ClientPriority()
    if not is_running and (said.thread_percentage or full) != (defaults.thread_percentage or full):
        yield "active-thread-percentage"
    if not is_running and (said.pinned_memory or {}) != (defaults.pinned_memory or {}):
        yield "pinned-memory-limit"
    if (said.client_priority or normal) != (defaults.client_priority or normal):
        yield "client-priority"
    if said.total_memory:
        yield "total-memory-limit"
    if said.sm_partition:
        yield "sm-partition"


def _of_daemon(left: PersistentState) -> Iterator[str]:
    if not left.default_socket:
        yield "default_socket=off of context-share"
    if not left.accounts_cgroups:
        yield "disabled feature memacct"
    if left.audits_memory:
        yield "audit-log of memacct"
    yield from (f"memacct limit of cgroup {path}" for path in {**left.cgroup_limits, **left.cgroup_soft_limits})
    for rule in left.rules or ():
        if any(condition.kind == "namespace" for condition in rule.conditions):
            yield f"condition namespace of rule {rule}"
