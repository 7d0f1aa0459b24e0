"""Which static SM partitions a client gets.

A device is in static use for a server that has partitions on it: its clients get no context outside of them there.
"""

from __future__ import annotations

from attrs import evolve

from pympsd.devices.visible import find_device
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.namespaces import DEFAULT
from pympsd.vocabulary.partitions import ChosenPartition, SmPartition, partition_id


def choose(daemon: Daemon, server_name: str, namespace: str, text: str) -> dict[int, ChosenPartition]:
    """Return what a client gets on each device that is in static use or that its variable names, by ordinal.

    ``namespace``: the one it comes to, which may be bound to a partition; ``text``: for each device one
    ``<device>/<id or name>`` or ``<name>``, separated by commas.
    """
    named = daemon.named_servers.get(server_name)
    if named is None:
        return {}
    found: dict[int, ChosenPartition] = {}
    problems: dict[int, ChosenPartition] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        places, wanted = _read_entry(daemon, named, entry)
        matching = {place: one for place in places if (one := _matching(daemon, named, place, wanted)) is not None}
        found |= {place: ChosenPartition(one.name, one.chunks) for place, one in matching.items()}
        if not matching:
            problems |= {place: ChosenPartition(problem=_problem(daemon, named, place, entry)) for place in places}
    found = problems | found  # whatever the order of the entries
    _bind(daemon, named, namespace, found)
    for partition in named.partitions:
        if partition.device not in found:
            found[partition.device] = ChosenPartition(problem=_problem(daemon, named, partition.device, ""))
    return {device: evolve(one, has_executor=named.contains_partitions) for device, one in found.items()}


def _bind(daemon: Daemon, named: NamedServer, namespace: str, found: dict[int, ChosenPartition]) -> None:
    """Change what a client has named to the partition that its namespace is bound to, if it is bound to one."""
    bound = named.namespace(namespace).limits.sm_partition
    if not bound:
        return
    its = {one.device: one for one in named.partitions if one.name == bound}
    where = f"namespace '{namespace or DEFAULT}' of server '{named.name}'"
    came = f"came to {where}, which is bound to SM partition '{bound}'"
    for device in named.ordinals(len(daemon.devices)):
        if device not in its:
            who = f"device {daemon.devices[device].uuid}" if its else "the server"
            found[device] = ChosenPartition(problem=f"{came}; {who} has none of that name")
        elif device in found and found[device].name != bound:
            found[device] = ChosenPartition(problem=f"{came}, and named another one")
        else:
            found[device] = ChosenPartition(bound, its[device].chunks)


def _read_entry(daemon: Daemon, named: NamedServer, entry: str) -> tuple[tuple[int, ...], str]:
    """Return the devices that an entry of the variable is about, and its word for the partition."""
    ordinals = named.ordinals(len(daemon.devices))
    word, slash, wanted = entry.partition("/")
    if not slash:
        return ordinals, entry
    shown = find_device([daemon.devices[ordinal] for ordinal in ordinals], word)
    return (ordinals, "") if shown is None else ((ordinals[shown],), wanted)


def _matching(daemon: Daemon, named: NamedServer, device: int, wanted: str) -> SmPartition | None:
    on_device = [one for one in named.partitions if one.device == device]
    ids = {partition_id(named.name, daemon.devices[device], one.name): one for one in on_device}
    return ids.get(wanted) or next((one for one in on_device if one.name == wanted), None)


def _owner(daemon: Daemon, entry: str) -> str:
    """Return, to go on with, which partition has the id that an entry of the variable names; nothing if none has."""
    for named in daemon.named_servers.values():
        for one in named.partitions:
            device = daemon.devices[one.device]
            if partition_id(named.name, device, one.name) in (entry, entry.partition("/")[2]):
                return f": it is '{one.name}' of server '{named.name}' on device {device.uuid}"
    return ""


def _problem(daemon: Daemon, named: NamedServer, device: int, entry: str) -> str:
    names = ", ".join(sorted(one.name for one in named.partitions if one.device == device))
    has = f"it has: {names}" if names else "it has none"
    uuid = daemon.devices[device].uuid
    if entry:
        lacks = f"which device {uuid} of server '{named.name}' does not have{_owner(daemon, entry)}"
        return f"named SM partition '{entry}', {lacks}; {has}"
    return f"named no SM partition of device {uuid}, which server '{named.name}' uses by partitions only; {has}"
