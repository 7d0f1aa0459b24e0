"""Adapt the state of a daemon of protocol 3 to one of protocol 2, which cannot use most of it."""

from collections.abc import Iterator

from pympsd.takeover.state import records
from pympsd.vocabulary import limit_table
from pympsd.vocabulary.identities import DEFAULT, server_of_user
from pympsd.vocabulary.limits import ALL_DEVICES, ClientPriority, ThreadPercentage


def list_lost(saved: records.PersistentState, own: limit_table.Limits) -> Iterator[str]:
    """Yield, in words, the state that a daemon of protocol 2 could not use; ``own``: the defaults it starts with."""
    by_command = limit_table.Limits(
        None if saved.thread_percentage is None else limit_table.percentages(saved.thread_percentage),
        None if saved.memory_limits is None else records.parse_memory(saved.memory_limits),
        None if saved.client_priority is None else ClientPriority(saved.client_priority),
    )
    defaults = own.overlay(by_command)
    running = {process.name for process in saved.servers}
    for server in saved.named_servers:
        yield from _list_lost_of_server(server)
        for namespace in server.namespaces:
            if namespace.name != DEFAULT:
                yield f"namespace '{namespace.name}' of server '{server.name}'"
            else:
                settings = _list_lost_of_default(namespace.limits, defaults, server.name in running)
                yield from (f"{setting} of server '{server.name}'" for setting in settings)
    yield from _list_lost_of_daemon(saved)


def limits_of(process: records.PersistentServer, saved: records.PersistentState) -> tuple[float, dict[int, int]]:
    """Return the percentage and memory limits of a server of protocol 2, taken from ``default`` in protocol 3."""
    for server in saved.named_servers:
        for namespace in server.namespaces:
            if (server.name, namespace.name) == (process.name, DEFAULT):
                percentages_of_devices = (namespace.limits.thread_percentage or {}).values()
                percentage = min(percentages_of_devices, default=ThreadPercentage())
                return percentage.value, limit_table.count_bytes(namespace.limits.pinned_memory)
    return process.thread_percentage, process.memory_limits


def _list_lost_of_server(server: records.PersistentNamedServer) -> Iterator[str]:
    if server.name != server_of_user(server.uid):
        yield f"server '{server.name}'"
    settings = {
        "allowed-devices": server.allowed_devices is not None,
        **{f"max-{row.name}": bool(row.of(server.maximum)) for row in limit_table.WITH_MAXIMUM},
        "contain=partition": server.contains_partitions,
    }
    yield from (f"{setting} of server '{server.name}'" for setting, is_set in settings.items() if is_set)
    yield from (f"SM partition '{partition.name}' of server '{server.name}'" for partition in server.partitions)


def _list_lost_of_default(
    limits: limit_table.Limits, defaults: limit_table.Limits, is_running: bool
) -> Iterator[str]:
    """Yield the settings of a namespace ``default`` that are lost; a server that runs keeps percentage and memory."""
    has_one_percentage = (limits.thread_percentage or {}).keys() <= {ALL_DEVICES}
    preserved = (
        (limit_table.PINNED_MEMORY, *([limit_table.PERCENTAGE] if has_one_percentage else [])) if is_running else ()
    )
    for row in limit_table.LIMITS:
        if row not in preserved and row.differs(limits, defaults, row.indices(limits, defaults)):
            yield row.name


def _list_lost_of_daemon(saved: records.PersistentState) -> Iterator[str]:
    if not saved.default_socket:
        yield "default_socket=off of context-share"
    if not saved.accounts_cgroups:
        yield "disabled feature memacct"
    yield from (f"drain of namespace {drain.name}" for drain in saved.drains if drain.kind == "namespace")
    if saved.audits_memory:
        yield "audit-log of memacct"
    yield from (f"memacct limit of cgroup {path}" for path in {**saved.cgroup_limits, **saved.cgroup_soft_limits})
    for rule in saved.rules or ():
        if any(condition.kind == "namespace" for condition in rule.conditions):
            yield f"condition namespace of rule {rule}"
