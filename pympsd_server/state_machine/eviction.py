"""Eviction: choose the clients to end so that one within its soft limit gets memory. Sans-I/O.

Of the soft limits of cgroups that hold for a client all count: it is within them, or it has borrowed the memory
above. A client without one has borrowed all its memory, as in the kernel's dmem controller, whose dmem.min is 0.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from attrs import frozen

from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.state_machine.client_table import ClientRecord

MAX_VICTIMS: Final = 3
"""More clients are not ended for one allocation."""


@frozen
class Victim:
    """A client to end.

    ``excess`` is the number of bytes by which the client, or its group that is furthest above its soft limit, exceeds
    that limit.

    Victims with the highest ``excess`` are chosen first; a client without a soft limit has all of its bytes as
    excess.
    """

    client: ClientRecord
    group: str
    """The group's name; empty if no soft limit holds for the client."""
    excess: int


def choose(
    clients: Collection[ClientRecord], device: int, used: Mapping[int, int], endable: Collection[int], short: int
) -> list[Victim] | None:
    """Return the clients to end, whose memory on a device is as many bytes as are short: none if no client is above
    a soft limit, None if no MOST_VICTIMS of these have that.

    ``used``: bytes by client, by id, as are the ``endable`` ones; other clients' memory counts for their groups only.
    Those go first whose group is furthest above its soft limit; of these the ones of the lower priority, then one
    with memory of the kind that is short, else the most, then the youngest. A client that has come within its soft
    limit stays.
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
        # The later ones may have enough without this one.
        if missing + used[victim.client.id] <= 0:
            missing += used[victim.client.id]
            victims.remove(victim)
    return victims


def _precedence(victim: Victim, used: Mapping[int, int], missing: int) -> tuple[int, ...]:
    return victim.excess, victim.client.priority, min(used[victim.client.id], missing), victim.client.id


def _latest_limits(clients: Iterable[ClientRecord], device: int) -> dict[str, MemoryGroup]:
    """Return the limits of the groups by name, as they came with the latest client of each."""
    return {
        group.name: group
        for client in sorted(clients, key=lambda client: client.id)
        for group in client.groups.get(device, ())
    }


def _sum_by_group(clients: Iterable[ClientRecord], device: int, used: Mapping[int, int]) -> Counter[str]:
    """Return the bytes that the clients of each group hold together, by its name."""
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
    """Return how far a client is above its soft limits; None if it is within them."""
    soft = [limits[group.name] for group in client.groups.get(device, ()) if limits[group.name].soft]
    if not soft:
        return Victim(client, "", used[client.id])
    excess, name = max((group_usage[group.name] - group.soft, group.name) for group in soft)
    return Victim(client, name, excess) if excess > 0 else None
