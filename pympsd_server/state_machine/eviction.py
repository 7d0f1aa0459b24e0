"""Which clients are ended so that one within its soft limit gets memory. Pure.

Of the soft limits of cgroups that hold for a client all count: it is within them, or it has borrowed what is above.
A client without one has borrowed all that it holds, as in the kernel's dmem controller, whose dmem.min is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import frozen

from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.state_machine.roster import Client

MOST_VICTIMS: Final = 3
"""More clients are not ended for one allocation."""


@frozen
class Victim:
    """A client to end; it, or the group that is nearest to it, holds ``excess`` bytes above the soft limit."""

    client: Client
    group: str
    """The group's name; empty if no soft limit holds for the client."""
    excess: int


def choose(
    clients: Iterable[Client], device: int, used: Mapping[int, int], caller: int, short: int
) -> list[Victim] | None:
    """Return the clients to end, whose memory on a device is as many bytes as are short: none if nobody is above a
    soft limit, None if no MOST_VICTIMS of these have that.

    ``used``: bytes by client, by serial, as is ``caller``, which is never ended. Those go first whose group is
    furthest above its soft limit; of these the ones of the lower priority, then the youngest. Who is within its soft
    limit once another one has gone stays.
    """
    left = {client.serial: client for client in clients if used.get(client.serial)}
    victims = list[Victim]()
    while short > 0:
        found = [_excess(client, device, left.values(), used) for client in left.values() if client.serial != caller]
        above = [one for one in found if one is not None]
        if not above and not victims:
            return []
        if not above or len(victims) == MOST_VICTIMS:
            return None
        victims.append(max(above, key=lambda one: (one.excess, one.client.priority, one.client.serial)))
        short -= used[victims[-1].client.serial]
        del left[victims[-1].client.serial]
    return victims


def _excess(client: Client, device: int, clients: Iterable[Client], used: Mapping[int, int]) -> Victim | None:
    """Return how far a client is above its soft limits; None if it is within them."""
    soft = sorted((each for each in client.groups.get(device, ()) if each.soft), key=lambda each: len(each.name))
    if not soft:
        return Victim(client, "", used[client.serial])
    above = [_used(each, device, clients, used) - each.soft for each in soft]
    return Victim(client, soft[-1].name, above[-1]) if max(above) > 0 else None


def _used(group: MemoryGroup, device: int, clients: Iterable[Client], used: Mapping[int, int]) -> int:
    """Return the bytes that the clients of a group hold together."""
    return sum(
        used[client.serial]
        for client in clients
        if any(each.name == group.name for each in client.groups.get(device, ()))
    )
