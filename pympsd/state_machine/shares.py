"""Count how much of its shares each user has, and refuse more; see pympsd.vocabulary.shares for the rules.

The cost of named servers is counted from the existing servers whenever it is needed. Connections and buffers exist in
the I/O layer only, which reports them with `take` and `give_back`.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Final

from attrs import evolve

from pympsd.state_machine.instructions import Instruction, Log
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.identities import server_of_user
from pympsd.vocabulary.partitions import chunk_count, has_remainder
from pympsd.vocabulary.shares import (
    DESCRIPTORS,
    NAMESPACES,
    OPTION,
    PROCESSES,
    RESOURCES,
    SERVERS,
    SM_CHUNKS,
    TABLE,
    SharedResource,
)

SERVER_DESCRIPTORS: Final = 10
"""The daemon's descriptors for a server: two each for the sockets of the server and of ``default``, and one each
for FIFO, log, link, pidfd and pipe."""
NAMESPACE_DESCRIPTORS: Final = 2
"""The daemon's descriptors for a namespace: one for its socket, and one in reserve for when descriptors run out."""
_REMEDIES: Final = {
    SERVERS: "delete one of them ('server delete <name>')",
    PROCESSES: "delete a server, or give one fewer devices (--allowed-devices)",
    NAMESPACES: "delete one of them ('namespace delete <name> --server=<server>')",
    DESCRIPTORS: "delete a server or a namespace",
}
"""What a user can do about a refusal without an administrator, by resource."""
_MAX_SHOWN: Final = 8
"""The maximum number of a user's servers that a refusal names."""

Cost = Mapping[SharedResource, int]


def exempt_users(daemon: Daemon) -> frozenset[int]:
    """Return the users who have no share: root, and the user who started the daemon. Only the totals bind them."""
    return frozenset({0, daemon.options.uid})


def is_exempt(daemon: Daemon, uid: int) -> bool:
    """Return whether a user has no share."""
    return uid in exempt_users(daemon)


def resources_of(daemon: Daemon) -> tuple[SharedResource, ...]:
    """Return the resources that exist in the daemon's protocol; named servers exist in protocol 3 only."""
    return tuple(
        resource for resource in RESOURCES if daemon.options.policy.has_named_servers or not resource.is_named
    )


def shares_text(daemon: Daemon) -> str:
    """Return the shares of each user in words."""
    return ", ".join(f"{resource.name} {daemon.usage.shares.share(resource)}" for resource in resources_of(daemon))


def set_shares(daemon: Daemon, configured: Mapping[str, int]) -> Iterator[Instruction]:
    """Set the shares of a configuration file. A user who has more than a new share keeps it."""
    daemon.usage.shares = evolve(daemon.usage.shares, configured=dict(configured))
    yield Log("shares_set", {"shares": shares_text(daemon)})


def count_used(daemon: Daemon, resource: SharedResource, uid: int) -> int:
    """Return how much of a resource a user has. The user's own server (uid_N) does not count."""
    if not resource.is_named:
        return daemon.usage.taken[resource.name][uid]
    if resource is SM_CHUNKS:
        return _percent_of_chunks(daemon, {uid})
    return sum(_cost(daemon, server, resource) for server in daemon.named_servers.values() if server.uid == uid)


def count_used_together(daemon: Daemon, resource: SharedResource, *, own: bool = True, exempt: bool = False) -> int:
    """Return how much of a resource all users have; ``own``: with users' own servers; ``exempt``: with root's use."""
    if not resource.is_named:
        return sum(n for uid, n in daemon.usage.taken[resource.name].items() if exempt or not is_exempt(daemon, uid))
    if resource is SM_CHUNKS:
        return _percent_of_chunks(daemon, None if exempt else _find_sharing_users(daemon))
    return sum(
        _cost(daemon, server, resource) + (_base_cost(daemon, server, resource) if own and is_own(server) else 0)
        for server in daemon.named_servers.values()
        if exempt or not is_exempt(daemon, server.uid)
    )


def list_users(daemon: Daemon) -> list[int]:
    """Return the users who use any resource, or to whom one was refused."""
    users = {server.uid for server in daemon.named_servers.values()} | {uid for uid, _ in daemon.usage.refusals}
    return sorted(users.union(*(counts.keys() for counts in daemon.usage.taken.values())))


def is_own(named_server: NamedServer) -> bool:
    """Return whether a server is its user's own: the one for clients that do not name a server."""
    return named_server.name == server_of_user(named_server.uid)


def cost_of_server(daemon: Daemon, named_server: NamedServer) -> Cost:
    """Return the cost of a new server to its user."""
    return {
        resource: _cost(daemon, named_server, resource) for resource in (SERVERS, PROCESSES, NAMESPACES, DESCRIPTORS)
    }


def cost_of_namespace() -> Cost:
    """Return the cost of a new namespace to its user."""
    return {NAMESPACES: 1, DESCRIPTORS: NAMESPACE_DESCRIPTORS}


def cost_of_containment(partitions: int) -> Cost:
    """Return the cost of containing faults in this number of SM partitions, each of which has an executor of its
    own.
    """
    return {PROCESSES: partitions}


def problem(daemon: Daemon, asker: int, cost: Cost) -> str:
    """Return why a user cannot pay a cost, and count the refusal; return an empty text if the user can.

    ``asker``: the user who requests it. Root may make servers for a user beyond the user's share.
    """
    for resource, more in cost.items():
        if more and (text := _problem(daemon, resource, asker, more)):
            daemon.usage.refusals[asker, resource.name] += 1
            return text
    return ""


def problem_of_own_server(daemon: Daemon, uid: int) -> str:
    """Return why a user's own server cannot be created, or an empty text. A refusal is counted."""
    own = NamedServer(server_of_user(uid), uid)
    for resource in (SERVERS, DESCRIPTORS):
        more, exempt = _base_cost(daemon, own, resource), is_exempt(daemon, uid)
        most = daemon.usage.shares.total(resource) if exempt else daemon.usage.shares.count_for_users(resource)
        text = _total_problem(daemon, resource, more)
        if count_used_together(daemon, resource, exempt=exempt) + more > most:
            text = f"{_describe_total(daemon, resource, most, exempt)}; {_remedy_of_all(daemon, resource)}"
        if text:
            daemon.usage.refusals[uid, resource.name] += 1
            return text
    return ""


def problem_of_chunks(daemon: Daemon, asker: int, device: int, more: int) -> str:
    """Return why a user cannot have more SM chunks of a device, and count the refusal; return an empty text if the
    user can.
    """
    if is_exempt(daemon, asker):
        return ""
    every = _chunks_of(daemon, device)
    own, together = _count_chunks(daemon, device, {asker}), _count_chunks(daemon, device, _find_sharing_users(daemon))
    share, most = daemon.usage.shares.share(SM_CHUNKS), daemon.usage.shares.count_for_users(SM_CHUNKS)
    what = f"SM chunks of device {daemon.devices[device].uuid}"
    text = ""
    if own + more > every * share // 100:
        percentage = -(-(own + more) * 100 // every)
        text = (
            f"user {asker} has {own} of at most {every * share // 100} {what}, and {more} more are needed: delete an "
            f"SM partition, or ask an administrator for a larger share ({OPTION} {SM_CHUNKS.name}={percentage}, or "
            f"{SM_CHUNKS.name} in [{TABLE}] of the configuration file)"
        )
    elif together + more > every * most // 100:
        text = (
            f"all users together have {together} of at most {every * most // 100} {what} that are not reserved, and "
            f"{more} more are needed; an administrator can delete some ('sm-partition list' has their servers)"
        )
    if text:
        daemon.usage.refusals[asker, SM_CHUNKS.name] += 1
    return text


def take(daemon: Daemon, resource: SharedResource, uid: int, amount: int) -> str:
    """Count the amount of a resource that a user's connection takes.

    Returns:
        An empty text, or why the user cannot have that much; then nothing is taken, and the refusal is counted.
    """
    text = problem(daemon, uid, {resource: amount})
    if not text:
        daemon.usage.taken[resource.name][uid] += amount
    return text


def give_back(daemon: Daemon, resource: SharedResource, uid: int, amount: int) -> None:
    """Count that a user's connection has given back an amount of a resource."""
    counts = daemon.usage.taken[resource.name]
    counts[uid] -= amount
    if counts[uid] <= 0:
        del counts[uid]


def _problem(daemon: Daemon, resource: SharedResource, asker: int, more: int) -> str:
    if not is_exempt(daemon, asker):
        has, share = count_used(daemon, resource, asker), daemon.usage.shares.share(resource)
        if has + more > share:
            return _explain_over_share(daemon, resource, asker, has, share, more)
        most = daemon.usage.shares.count_for_users(resource, own=False)
        together = count_used_together(daemon, resource, own=False) + more
        if most and not resource.is_named and has + more > most - together:
            # However many users take their whole share, as much is left for the next user.
            return f"user {asker} has {has} {resource.unit}, and {more} more would leave others less than that"
        if most and together > most:
            return f"{_describe_total(daemon, resource, most, False, own=False)}; {_remedy_of_all(daemon, resource)}"
    return _total_problem(daemon, resource, more)


def _explain_over_share(daemon: Daemon, resource: SharedResource, uid: int, has: int, share: int, more: int) -> str:
    names = _servers_of(daemon, uid) if resource is SERVERS else ""
    needs = f", and {more} more are needed" if more > 1 else ""
    remedy = f"{_REMEDIES[resource]}, or " if resource in _REMEDIES else ""
    option = f"{OPTION} {resource.name}={has + more}"
    return (
        f"user {uid} has {has} of at most {share} {resource.unit}{names}{needs}: {remedy}ask an "
        f"administrator for a larger share ({option}, or {resource.name} in [{TABLE}] of the configuration file)"
    )


def _servers_of(daemon: Daemon, uid: int) -> str:
    """Return the names of a user's servers in parentheses; nothing if there are none."""
    names = sorted(
        server.name for server in daemon.named_servers.values() if server.uid == uid and not is_own(server)
    )
    more = ", ..." if len(names) > _MAX_SHOWN else ""
    return f" ({', '.join(names[:_MAX_SHOWN])}{more})" if names else ""


def _describe_total(daemon: Daemon, resource: SharedResource, most: int, exempt: bool, *, own: bool = True) -> str:
    has = count_used_together(daemon, resource, own=own, exempt=exempt)
    subject = "everybody together has" if exempt else "all users together have"
    exception = "" if exempt else " that are not reserved"
    return f"{subject} {has} of at most {most} {resource.unit}{exception}"


def _total_problem(daemon: Daemon, resource: SharedResource, more: int) -> str:
    most = daemon.usage.shares.total(resource)
    if not most or count_used_together(daemon, resource, exempt=True) + more <= most:
        return ""
    return f"{_describe_total(daemon, resource, most, True)}; {_remedy_of_all(daemon, resource)}"


def _remedy_of_all(daemon: Daemon, resource: SharedResource) -> str:
    if resource.of_descriptors:
        limit = daemon.usage.shares.descriptors
        return f"an administrator can start the daemon with more open files than {limit} (ulimit -n, or LimitNOFILE=)"
    return "an administrator can delete some ('server list' has their users)"


def _find_sharing_users(daemon: Daemon) -> set[int]:
    """Return the users who have servers and are bound by shares."""
    return {server.uid for server in daemon.named_servers.values()} - exempt_users(daemon)


def _chunks_of(daemon: Daemon, device: int) -> int:
    """Return the number of a device's chunks, the remainder included."""
    return chunk_count(daemon.devices[device]) + has_remainder(daemon.devices[device])


def _count_chunks(daemon: Daemon, device: int, uids: Set[int] | None) -> int:
    """Return how many chunks of a device are in partitions of these users; None means all users."""
    servers = (
        named_server for named_server in daemon.named_servers.values() if uids is None or named_server.uid in uids
    )
    return sum(
        len(partition.chunks) for server in servers for partition in server.partitions if partition.device == device
    )


def _percent_of_chunks(daemon: Daemon, uids: Set[int] | None) -> int:
    """Return the percentage of chunks that users have, on the device where it is highest."""
    counts = (
        (_count_chunks(daemon, device, uids), _chunks_of(daemon, device)) for device in range(len(daemon.devices))
    )
    return max((own * 100 // every for own, every in counts if own), default=0)


def _cost(daemon: Daemon, named_server: NamedServer, resource: SharedResource) -> int:
    """Return the cost of a server to its user; for the user's own server only further namespaces and partitions
    cost.
    """
    return _additional_cost(named_server, resource) + (
        0 if is_own(named_server) else _base_cost(daemon, named_server, resource)
    )


def _base_cost(daemon: Daemon, named_server: NamedServer, resource: SharedResource) -> int:
    if resource is SERVERS:
        return 1
    if resource is PROCESSES:
        return 1 + (len(named_server.ordinals(len(daemon.devices))) if daemon.options.has_own_servers else 0)
    return SERVER_DESCRIPTORS if resource is DESCRIPTORS else 0


def _additional_cost(named_server: NamedServer, resource: SharedResource) -> int:
    namespaces = len(named_server.namespaces) - 1
    if resource is NAMESPACES:
        return namespaces
    if resource is DESCRIPTORS:
        return namespaces * NAMESPACE_DESCRIPTORS
    return len(named_server.partitions) if resource is PROCESSES and named_server.contains_partitions else 0
