"""Count the memory that clients of other servers hold on a device, because limits of devices and cgroups count all of
it.
"""

from collections import Counter

from attrs import field, frozen

from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary.limits import cgroup_group
from pympsd.vocabulary.rules import expand_cgroups


@frozen
class Elsewhere:
    """The bytes that clients of other servers hold on a device: in total, and for each group of the server's own
    clients.
    """

    count: int = 0
    groups: dict[str, int] = field(factory=dict)


def memory_elsewhere(daemon: Daemon) -> dict[int, dict[int, Elsewhere]]:
    """Return the memory that clients of other servers hold, by server id and device ordinal."""
    limited = _find_limited_groups(daemon)
    own = {server.id: _count_by_group(daemon, server, limited) for server in daemon.servers.values()}
    elsewhere: dict[int, dict[int, Elsewhere]] = {server_id: {} for server_id in own}
    for ordinal in range(len(daemon.devices)):
        in_all = Counter[str]()
        for counts in own.values():
            in_all.update(counts[ordinal])
        for server_id, counts in own.items():
            rest = {name: in_all[name] - count for name, count in counts[ordinal].items()}
            elsewhere[server_id][ordinal] = Elsewhere(
                rest.pop(""), {name: count for name, count in rest.items() if count}
            )
    return elsewhere


def _find_limited_groups(daemon: Daemon) -> set[str]:
    """Return the names of the groups of cgroups that have limits now, and of all groups in the limits of clients."""
    clients = [client for server in daemon.servers.values() for client in server.clients.values()]
    names = {group.name for client in clients for groups in client.groups.values() for group in groups}
    return names.union(map(cgroup_group, daemon.process_limits.cgroups))


def _count_by_group(daemon: Daemon, server: Server, limited: set[str]) -> list[Counter[str]]:
    """Return the bytes that a server's clients hold on each device, by group; the total is under an empty name.

    A server's reports are not trusted, because its user controls it: a number above the device's memory counts as all
    of that memory.
    """
    counts = [Counter({"": 0}) for _ in daemon.devices]
    for client in server.clients.values():
        names = ("", *limited.intersection(map(cgroup_group, expand_cgroups(client.process.cgroups))))
        for ordinal, of_device in enumerate(counts):
            count = client.memory.get(ordinal, 0)
            for name in names:
                of_device[name] += count
    return [
        Counter({name: min(count, device.memory_bytes) for name, count in of_device.items()})
        for device, of_device in zip(daemon.devices, counts, strict=True)
    ]
