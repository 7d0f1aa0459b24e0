"""Making and deleting static SM partitions; see `named_servers` for what is not possible.

The chunks of a device are of all servers together.
"""

from collections.abc import Iterator
from typing import Final

from pympsd.state_machine import shares, terminations
from pympsd.state_machine.instructions import Instruction, Log
from pympsd.state_machine.named_servers import (
    NotPossible,
    check_not_deleted,
    check_share,
    clients,
    count_clients,
    server,
)
from pympsd.state_machine.state.client import Client
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.state.named_server import NamedServer
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.partitions import (
    MIN_CAPABILITY,
    SmPartition,
    chunk_count,
    free_chunks,
    has_remainder,
    multiprocessors,
    partition_name_problem,
)

NO_PARTITIONS: Final = (
    "Static SM partitions are not possible with the driver's own server of this release: "
    "--active-thread-percentage of a namespace limits the SMs of its clients."
)
STATIC_SINCE: Final = 590
"""The branch of the driver since which protocol 2 has static partitions."""
NO_STATIC_MODE: Final = (
    "static SM partitions are not possible with the driver's own server of this release: "
    "set_active_thread_percentage limits the SMs of clients, and PYMPSD_BACKEND=cuda is without that server"
)


def create_partition(
    daemon: Daemon,
    server_name: str,
    name: str,
    device: int,
    chunks: int,
    include_remainder: bool = False,
    asker: int = 0,
) -> Iterator[Instruction]:
    """Make a partition of a server on a device (the daemon's ordinal), of free chunks. ``asker``: as in
    `create_server`.
    """
    named = server(daemon, server_name)
    index = named.ordinals(len(daemon.devices)).index(device)
    _check_possible(daemon, named, device, index)
    if problem := partition_name_problem(name):
        raise NotPossible(problem)
    if _find(named, name, device) is not None:
        raise NotPossible(f"SM partition '{name}' exists already on device {index} of server '{server_name}'.")
    free, remainder = free_of(daemon, device), chunk_count(daemon.devices[device])
    if include_remainder and not has_remainder(daemon.devices[device]):
        raise NotPossible(f"The chunks of device {index} leave no SMs over.")
    if include_remainder and remainder not in free:
        count = len(multiprocessors(daemon.devices[device], [remainder]))
        owner, its = next(item for item in partitions_on(daemon, device) if remainder in item[1].chunks)
        of = "" if owner is named else f" of server '{owner.name}'"
        raise NotPossible(f"The remaining {count} SMs of device {index} are in partition '{its.name}'{of}.")
    whole = [chunk for chunk in free if chunk != remainder]
    if chunks > len(whole):
        others = sorted({owner.name for owner, _ in partitions_on(daemon, device) if owner is not named})
        shared = f" (next to server{'s' if len(others) > 1 else ''} {', '.join(others)})" if others else ""
        unit = "chunk" if len(whole) == 1 else "chunks"
        raise NotPossible(f"Device {index} has {len(whole)} {unit} free, not {chunks}{shared}.")
    _check_clients_known(daemon, server_name)
    outside = [client for client in clients(daemon, server_name) if device not in client.partitions]
    if outside:
        remedy = (
            "end it, or wait until it has gone" if len(outside) == 1 else "end them, or wait until they have gone"
        )
        raise NotPossible(f"Device {index} has {count_clients(len(outside))} outside partitions; {remedy}.")
    check_share(shares.problem(daemon, asker, shares.cost_of_containment(int(named.contains_partitions))))
    check_share(shares.problem_of_chunks(daemon, asker, device, chunks + include_remainder))
    taken = (*whole[:chunks], *([remainder] if include_remainder else []))
    named.partitions.append(SmPartition(name, device, taken))
    daemon.named_servers.changes += 1
    yield Log("partition_added", {"name": f"{server_name}/{name}", "device": daemon.devices[device].uuid})


def delete_partition(
    daemon: Daemon, server_name: str, name: str, device: int, forced: bool, session: int, answer: Answer
) -> Iterator[Instruction]:
    """Delete a partition; its ``session`` gets the answer when the partition's clients have been terminated."""
    named = server(daemon, server_name)
    partition = _find(named, name, device)
    if partition is None:
        index = named.ordinals(len(daemon.devices)).index(device)
        raise NotPossible(f"No SM partition named '{name}' on server '{server_name}', device {index}.")
    _check_clients_known(daemon, server_name)
    present = clients_in(daemon, named, partition)
    if present and not forced:
        them = "it" if len(present) == 1 else "them"
        raise NotPossible(f"SM partition '{name}' has {count_clients(len(present))}; terminate {them} first.")
    named.partitions.remove(partition)
    for client in present:
        client.partitions[device] = ""
        daemon.named_servers.occupied[client.id] = partition
    daemon.named_servers.changes += 1
    yield Log("partition_removed", {"name": f"{server_name}/{name}", "device": daemon.devices[device].uuid})
    yield from terminations.evict(daemon, session, daemon.server_named(server_name), present, answer)


def partitions_on(daemon: Daemon, device: int) -> list[tuple[NamedServer, SmPartition]]:
    """Return the partitions of a device, with their servers; not of servers that end and have no clients."""
    occupied = {process.name for process in daemon.servers.values() if not process.is_empty}
    return [
        (named, partition)
        for named in daemon.named_servers.values()
        for partition in named.partitions
        if partition.device == device and not (named.deleted and named.name not in occupied)
    ]


def free_of(daemon: Daemon, device: int) -> tuple[int, ...]:
    """Return the chunks of a device that no server has and nothing runs on, the one that is left over included."""
    present = {client_id for server in daemon.servers.values() for client_id in server.clients}
    occupied = [
        partition
        for client_id, partition in daemon.named_servers.occupied.items()
        if partition.device == device and client_id in present
    ]
    return free_chunks(
        daemon.devices[device], [*(partition for _, partition in partitions_on(daemon, device)), *occupied]
    )


def clients_in(daemon: Daemon, named: NamedServer, partition: SmPartition) -> list[Client]:
    """Return the clients of a partition."""
    return [
        client for client in clients(daemon, named.name) if client.partitions.get(partition.device) == partition.name
    ]


def _check_possible(daemon: Daemon, named: NamedServer, device: int, shown: int) -> None:
    check_not_deleted(named)
    if not daemon.options.has_own_servers:
        raise NotPossible(NO_PARTITIONS)
    properties = daemon.devices[device]
    if properties.compute_capability < MIN_CAPABILITY:
        major, minor = properties.compute_capability
        raise NotPossible(
            f"Static partitions need compute capability 8.0; device {shown}, {properties.name}, has {major}.{minor}."
        )


def _check_clients_known(daemon: Daemon, name: str) -> None:
    process = daemon.server_named(name)
    if process is not None and process.pending:
        raise NotPossible(f"Server '{name}' has not reported its clients to this daemon yet; try again.")


def _find(named: NamedServer, name: str, device: int) -> SmPartition | None:
    return next(
        (partition for partition in named.partitions if (partition.name, partition.device) == (name, device)), None
    )
