"""Eviction: choose the clients to end so that a client within its soft limit gets memory. Sans-I/O.

All soft limits of a client's cgroups count: the client is within them, or has borrowed the memory above them. A
client without a soft limit has borrowed all its memory, as in the kernel's dmem controller, where dmem.min is then 0.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from attrs import frozen

from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.state_machine.client_table import ClientRecord

MAX_VICTIMS: Final = 3
"""The maximum number of clients that are ended for one allocation."""


@frozen
class Victim:
    """A client to end.

    ``excess`` is the number of bytes by which a group of the client exceeds its soft limit: the greatest of all its
    groups. For a client without a soft limit it is all the client's bytes. Clients with the highest ``excess`` are
    chosen first.
    """

    client: ClientRecord
    group: str
    """The group's name; empty if no soft limit holds for the client."""
    excess: int


def choose(
    clients: Collection[ClientRecord], device: int, used: Mapping[int, int], endable: Collection[int], short: int
) -> list[Victim] | None:
    """Return the clients to end, which together hold at least ``short`` bytes on a device.

    The list is empty if no client is above a soft limit. Return None if MAX_VICTIMS of the clients above one do not
    hold enough.

    ``used``: bytes by client id; ``endable``: the ids of clients that may be ended; other clients' memory counts only
    for their groups. Clients are chosen one after the other: first by the greatest excess of their group, then by
    lower priority, then by more of the missing memory, then the youngest. A client whose group has come within its
    soft limit meanwhile is not chosen.
    """
    remaining = {client.id: client for client in clients if used.get(client.id)}
    limits = _latest_limits(clients, device)
    victims = list[Victim]()
    missing = short
    while missing > 0:
        group_usage = _sum_by_group(remaining.values(), device, used)
        excesses = [
            _excess(remaining[client_id], device, group_usage, limits, used)
            for client_id in endable
            if client_id in remaining
        ]
        above = [victim for victim in excesses if victim is not None]
        if not above and not victims:
            return []
        if not above or len(victims) == MAX_VICTIMS:
            return None
        victims.append(max(above, key=lambda victim: _precedence(victim, used, missing)))
        missing -= used[victims[-1].client.id]
        del remaining[victims[-1].client.id]
    for victim in tuple(victims):
        # Keep this client if the clients chosen after it hold enough memory.
        if missing + used[victim.client.id] <= 0:
            missing += used[victim.client.id]
            victims.remove(victim)
    return victims


def _precedence(victim: Victim, used: Mapping[int, int], missing: int) -> tuple[int, ...]:
    return victim.excess, victim.client.priority, min(used[victim.client.id], missing), victim.client.id


def _latest_limits(clients: Iterable[ClientRecord], device: int) -> dict[str, MemoryGroup]:
    """Return the limits of the groups by name, as stated by the latest client of each group."""
    return {
        group.name: group
        for client in sorted(clients, key=lambda client: client.id)
        for group in client.groups.get(device, ())
    }


def _sum_by_group(clients: Iterable[ClientRecord], device: int, used: Mapping[int, int]) -> Counter[str]:
    """Return the bytes that the clients of each group hold together, by the group's name."""
    usage = Counter[str]()
    for client in clients:
        for group in client.groups.get(device, ()):
            usage[group.name] += used[client.id]
    return usage


def _excess(
    client: ClientRecord,
    device: int,
    group_usage: Mapping[str, int],
    limits: Mapping[str, MemoryGroup],
    used: Mapping[int, int],
) -> Victim | None:
    """Return a client as a victim, with its excess; None if it is within its soft limits."""
    soft = [limits[group.name] for group in client.groups.get(device, ()) if limits[group.name].soft]
    if not soft:
        return Victim(client, "", used[client.id])
    excess, name = max((group_usage[group.name] - group.soft, group.name) for group in soft)
    return Victim(client, name, excess) if excess > 0 else None
