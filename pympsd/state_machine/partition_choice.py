"""Choose the static SM partitions of a client.

A client names its partitions in CUDA_MPS_SM_PARTITION: an entry for each device, separated by commas. On a device in
static use a client without a partition gets no context. Which devices that are depends on the protocol:

    protocol 3   those on which the client's server has partitions: ``<device>/<id or name>`` or ``<name>``
    protocol 2   with -S all that can have partitions: ``<device>/<id>``

In protocol 2 an entry may also be the line that ``sm_partition add`` prints, because scripts use it whole. A client
that names a partition at a daemon without -S gets no context: it requests SMs that nobody else has.
"""

import re
from typing import Final

from attrs import evolve

from pympsd.devices.visible import find_device
from pympsd.process.version import STATIC_SINCE
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.identities import DEFAULT
from pympsd.vocabulary.partitions import MIN_CAPABILITY, ChosenPartition, SmPartition, partition_id

_CREATED: Final = re.compile("Partition (.*) created")
"""The pattern of the line that ``sm_partition add`` prints."""


def choose(daemon: Daemon, server_name: str, namespace: str, text: str) -> dict[int, ChosenPartition]:
    """Return a client's partition, or why it has none, by ordinal of each device in static use or named by its
    variable.

    ``namespace``: the client's namespace, which may be bound to a partition; ``text``: the value of the variable.
    """
    named_server = daemon.named_servers.get(server_name)
    if named_server is None:
        return _choose_of_daemon(daemon, text)
    choices: dict[int, ChosenPartition] = {}
    problems: dict[int, ChosenPartition] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        places, word = _read_entry(daemon, named_server, entry)
        candidates = {place: _find_partition(daemon, named_server, place, word) for place in places}
        matching = {place: partition for place, partition in candidates.items() if partition is not None}
        choices |= {place: ChosenPartition(partition.name, partition.chunks) for place, partition in matching.items()}
        if not matching:
            problems |= {
                place: ChosenPartition(problem=_problem(daemon, named_server, place, entry)) for place in places
            }
    choices = problems | choices  # in every case, whatever the order of the entries
    _bind(daemon, named_server, namespace, choices)
    for partition in named_server.partitions:
        if partition.device not in choices:
            choices[partition.device] = ChosenPartition(problem=_problem(daemon, named_server, partition.device, ""))
    return {
        device: evolve(partition, has_executor=named_server.contains_partitions)
        for device, partition in choices.items()
    }


def _choose_of_daemon(daemon: Daemon, text: str) -> dict[int, ChosenPartition]:
    """Return a client's partition on each device in protocol 2."""
    if not daemon.options.static:
        # Driver 580, and its own server, do not read the variable, and run the client on all SMs.
        if not text or not daemon.options.has_own_servers or daemon.options.driver < STATIC_SINCE:
            return {}
        remedy = "start the daemon with -S, or the client without CUDA_MPS_SM_PARTITION"
        problem = f"named SM partition '{text}', but this daemon was started without -S and has none; {remedy}"
        return dict.fromkeys(range(len(daemon.devices)), ChosenPartition(problem=problem))
    choices: dict[int, ChosenPartition] = {}
    entries = [_CREATED.sub(r"\1", part.strip()).partition("/") for part in text.split(",")]
    for device, properties in enumerate(daemon.devices):
        if properties.compute_capability < MIN_CAPABILITY:
            continue
        present = {partition.name: partition for partition in daemon.partitions if partition.device == device}
        ids = [word for place, _, word in entries if find_device(daemon.devices, place) == device]
        partition = next((present[word] for word in ids if word in present), None)
        if partition is not None:
            choices[device] = ChosenPartition(partition.name, partition.chunks)
            continue
        has = (
            f"the device has: {', '.join(present)}"
            if present
            else "the device has none ('sm_partition add' adds one)"
        )
        if text:
            what = f"SM partition '{text}', which device {properties.uuid} does not have"
        else:
            what = f"no SM partition of device {properties.uuid}, which is used by partitions only"
        choices[device] = ChosenPartition(problem=f"named {what}; {has}")
    return choices


def _bind(daemon: Daemon, named_server: NamedServer, namespace: str, choices: dict[int, ChosenPartition]) -> None:
    """If a namespace is bound to a partition, replace the partitions that its client named by that one."""
    bound = named_server.namespace(namespace).limits.sm_partition
    if not bound:
        return
    partitions = {partition.device: partition for partition in named_server.partitions if partition.name == bound}
    where = f"namespace '{namespace or DEFAULT}' of server '{named_server.name}'"
    origin = f"connected to {where}, which is bound to SM partition '{bound}'"
    for device in named_server.ordinals(len(daemon.devices)):
        if device not in partitions:
            who = f"device {daemon.devices[device].uuid}" if partitions else "the server"
            choices[device] = ChosenPartition(problem=f"{origin}; {who} has none of that name")
        elif device in choices and choices[device].name != bound:
            choices[device] = ChosenPartition(problem=f"{origin}, but named another one")
        else:
            choices[device] = ChosenPartition(bound, partitions[device].chunks)


def _read_entry(daemon: Daemon, named_server: NamedServer, entry: str) -> tuple[tuple[int, ...], str]:
    """Return the devices of an entry of the variable, and its word for the partition."""
    ordinals = named_server.ordinals(len(daemon.devices))
    device_word, slash, word = entry.partition("/")
    if not slash:
        return ordinals, entry
    index = find_device([daemon.devices[ordinal] for ordinal in ordinals], device_word)
    return (ordinals, "") if index is None else ((ordinals[index],), word)


def _find_partition(daemon: Daemon, named_server: NamedServer, device: int, word: str) -> SmPartition | None:
    on_device = [partition for partition in named_server.partitions if partition.device == device]
    ids = {
        partition_id(named_server.name, daemon.devices[device], partition.name): partition for partition in on_device
    }
    return ids.get(word) or next((partition for partition in on_device if partition.name == word), None)


def _owner(daemon: Daemon, entry: str) -> str:
    """Return the end of a sentence that names the partition whose id is in an entry; empty if there is none."""
    for named_server in daemon.named_servers.values():
        for partition in named_server.partitions:
            device = daemon.devices[partition.device]
            if partition_id(named_server.name, device, partition.name) in (entry, entry.partition("/")[2]):
                return f": this is '{partition.name}' of server '{named_server.name}' on device {device.uuid}"
    return ""


def _problem(daemon: Daemon, named_server: NamedServer, device: int, entry: str) -> str:
    names = ", ".join(sorted(partition.name for partition in named_server.partitions if partition.device == device))
    has = f"the device has: {names}" if names else "the device has none"
    uuid = daemon.devices[device].uuid
    if entry:
        lacks = f"which device {uuid} of server '{named_server.name}' does not have{_owner(daemon, entry)}"
        return f"named SM partition '{entry}', {lacks}; {has}"
    return (
        f"named no SM partition of device {uuid}, which server '{named_server.name}' uses by partitions only; {has}"
    )
