"""Create and delete static SM partitions: those of servers in protocol 3, those of the daemon in protocol 2.

    protocol 3   sm-partition create     create_partition   belongs to a named server, ends with it
    protocol 2   sm_partition add        add_partition      belongs to the daemon, outlasts every server

Both share the code that decides which chunks a partition gets (the first free ones), which clients are in it, and
that it can be made only if no client of its owner runs outside of partitions on the device. The chunks of a device
are those of all owners together.

Clients of a partition that is deleted get no context any more, and its chunks stay occupied until their work has
ended (`terminations.evict`). In protocol 2 only clients that terminate_client has ended can be in it then.

See `named_servers` for the rules of refusals.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
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
from pympsd.state_machine.state.server import Server
from pympsd.vocabulary import partitions as sm_partitions
from pympsd.vocabulary.answers import Answer

NO_PARTITIONS: Final = (
    "Static SM partitions are not possible with the driver's own server of this release: "
    "--active-thread-percentage of a namespace limits the SMs of its clients."
)
NO_STATIC_MODE: Final = (
    "static SM partitions are not possible with the driver's own server of this release: "
    "set_active_thread_percentage limits the SMs of clients, and PYMPSD_BACKEND=cuda is without that server"
)
_OF_DAEMON: Final = ""
"""The owner of the daemon's partitions, in place of a server's name."""


class TooOld(NotPossible):
    """The device is older than all devices that have static SM partitions."""


class NotReported(NotPossible):
    """A server that an earlier daemon started has not reported its clients yet."""


def create_partition(
    daemon: Daemon,
    server_name: str,
    name: str,
    device: int,
    chunks: int,
    include_remainder: bool = False,
    asker: int = 0,
) -> Iterator[Instruction]:
    """Make a partition of a server from free chunks of a device (the daemon's ordinal). ``asker``: as in
    `create_server`.
    """
    named_server = server(daemon, server_name)
    index = named_server.ordinals(len(daemon.devices)).index(device)
    check_not_deleted(named_server)
    if not daemon.options.has_own_servers:
        raise NotPossible(NO_PARTITIONS)
    _check_capability(daemon, device, index)
    if problem := sm_partitions.partition_name_problem(name):
        raise NotPossible(problem)
    if _find(named_server, name, device) is not None:
        raise NotPossible(f"SM partition '{name}' exists already on device {index} of server '{server_name}'.")
    selected = (
        *_choose_remainder(daemon, device, index, server_name, include_remainder),
        *_choose_chunks(daemon, device, index, chunks, server_name),
    )
    _check_clients_reported(filter(None, (daemon.server_named(server_name),)))
    _check_nobody_outside(device, index, clients(daemon, server_name))
    check_share(shares.problem(daemon, asker, shares.cost_of_containment(int(named_server.contains_partitions))))
    check_share(shares.problem_of_chunks(daemon, asker, device, chunks + include_remainder))
    named_server.partitions.append(sm_partitions.SmPartition(name, device, tuple(sorted(selected))))
    daemon.named_servers.changes += 1
    yield Log("partition_added", {"name": f"{server_name}/{name}", "device": daemon.devices[device].uuid})


def add_partition(daemon: Daemon, device: int, chunks: int) -> tuple[sm_partitions.SmPartition, Log]:
    """Make a partition of the daemon from free chunks of a device; return the partition and the instruction to log
    it.

    Raise NotPossible, or its subclasses `TooOld` and `NotReported`.
    """
    _check_capability(daemon, device, device)
    selected = _choose_chunks(daemon, device, device, chunks, _OF_DAEMON)
    _check_clients_reported(daemon.servers.values())
    _check_nobody_outside(device, device, _list_clients(daemon))
    partition = sm_partitions.SmPartition(
        sm_partitions.daemon_partition_id(daemon.devices[device], selected), device, selected
    )
    daemon.partitions.append(partition)
    return partition, Log("partition_added", {"name": partition.name, "device": daemon.devices[device].uuid})


def delete_partition(
    daemon: Daemon, server_name: str, name: str, device: int, forced: bool, session: int, answer: Answer
) -> Iterator[Instruction]:
    """Delete a partition; its ``session`` gets the answer when the partition's clients have been terminated."""
    named_server = server(daemon, server_name)
    partition = _find(named_server, name, device)
    if partition is None:
        index = named_server.ordinals(len(daemon.devices)).index(device)
        raise NotPossible(f"No SM partition named '{name}' on server '{server_name}', device {index}.")
    _check_clients_reported(filter(None, (daemon.server_named(server_name),)))
    present = clients_in(daemon, server_name, partition)
    if present and not forced:
        pronoun = "it" if len(present) == 1 else "them"
        raise NotPossible(f"SM partition '{name}' has {count_clients(len(present))}; terminate {pronoun} first.")
    named_server.partitions.remove(partition)
    daemon.named_servers.changes += 1
    yield Log("partition_removed", {"name": f"{server_name}/{name}", "device": daemon.devices[device].uuid})
    yield from _evict(daemon, server_name, partition, session, answer)


def remove_partition(
    daemon: Daemon, partition: sm_partitions.SmPartition, session: int, answer: Answer
) -> Iterator[Instruction]:
    """Remove a partition of the daemon that has no clients (`clients_in`). The ``session`` is answered when clients
    that terminate_client has ended cannot get a context in the partition any more. Raise NotReported.
    """
    _check_clients_reported(daemon.servers.values())
    daemon.partitions.remove(partition)
    yield Log("partition_removed", {"name": partition.name, "device": daemon.devices[partition.device].uuid})
    yield from _evict(daemon, _OF_DAEMON, partition, session, answer)


def partitions_on(daemon: Daemon, device: int) -> list[tuple[str, sm_partitions.SmPartition]]:
    """Return the partitions of a device, with the names of their servers (empty means the daemon's).

    Partitions of ending servers without clients are left out.
    """
    occupied = {process.name for process in daemon.servers.values() if not process.is_empty}
    of_servers = [
        (named_server.name, partition)
        for named_server in daemon.named_servers.values()
        for partition in named_server.partitions
        if partition.device == device and not (named_server.deleted and named_server.name not in occupied)
    ]
    return [*((_OF_DAEMON, partition) for partition in daemon.partitions if partition.device == device), *of_servers]


def chunks_of(daemon: Daemon, device: int) -> tuple[tuple[int, ...], ...]:
    """Return the chunks of a device from which partitions are made, each as the `SmPartition.chunks` in it.

    In protocol 3 that is one each; for protocol 2 see `protocol_2_chunks`.
    """
    properties = daemon.devices[device]
    if daemon.options.policy.has_named_servers:
        return tuple((chunk,) for chunk in range(sm_partitions.chunk_count(properties)))
    return sm_partitions.protocol_2_chunks(properties)


def count_chunks(daemon: Daemon, device: int, chunks: Collection[int]) -> int:
    """Return how many whole chunks of `chunks_of` a device the numbers of `SmPartition.chunks` make up."""
    return sum(set(chunks).issuperset(chunk) for chunk in chunks_of(daemon, device))


def free_of(daemon: Daemon, device: int) -> tuple[int, ...]:
    """Return the chunks of a device, the remainder included, that no partition has and no work occupies."""
    present = {client_id for server in daemon.servers.values() for client_id in server.clients}
    occupied = [
        partition
        for client_id, partition in daemon.named_servers.occupied.items()
        if partition.device == device and client_id in present
    ]
    return sm_partitions.free_chunks(
        daemon.devices[device], [*(partition for _, partition in partitions_on(daemon, device)), *occupied]
    )


def clients_in(daemon: Daemon, server_name: str, partition: sm_partitions.SmPartition) -> list[Client]:
    """Return the clients of a partition. ``server_name``: its server; empty if the partition is the daemon's.

    In protocol 2 clients that terminate_client has ended are left out, although their processes still run.
    """
    present = _find_clients_in(daemon, server_name, partition)
    return present if server_name else [client for client in present if not client.terminated]


def _find_clients_in(daemon: Daemon, server_name: str, partition: sm_partitions.SmPartition) -> list[Client]:
    owned = clients(daemon, server_name) if server_name else _list_clients(daemon)
    return [client for client in owned if client.partitions.get(partition.device) == partition.name]


def _list_clients(daemon: Daemon) -> list[Client]:
    return [client for process in daemon.servers.values() for client in process.clients.values()]


def _evict(
    daemon: Daemon, server_name: str, partition: sm_partitions.SmPartition, session: int, answer: Answer
) -> Iterator[Instruction]:
    """End the contexts of a deleted partition's clients for good. Its chunks stay occupied until their work has
    ended.
    """
    present = _find_clients_in(daemon, server_name, partition)
    for client in present:
        client.partitions[partition.device] = ""
        daemon.named_servers.occupied[client.id] = partition
    yield from terminations.evict(daemon, session, present, answer)


def _choose_chunks(daemon: Daemon, device: int, visible_index: int, count: int, server_name: str) -> tuple[int, ...]:
    """Return free chunks of a device; raise NotPossible with the number of free ones.

    ``visible_index``: the device's index as the server's user sees it.
    """
    free = set(free_of(daemon, device))
    whole = [chunk for chunk in chunks_of(daemon, device) if free.issuperset(chunk)]
    if count > len(whole):
        owners = sorted({owner for owner, _ in partitions_on(daemon, device) if owner != server_name})
        shared = f" (next to server{'s' if len(owners) > 1 else ''} {', '.join(owners)})" if owners else ""
        unit = "chunk" if len(whole) == 1 else "chunks"
        raise NotPossible(f"Device {visible_index} has {len(whole)} {unit} free, not {count}{shared}.")
    return tuple(part for chunk in whole[:count] for part in chunk)


def _choose_remainder(
    daemon: Daemon, device: int, visible_index: int, server_name: str, is_requested: bool
) -> tuple[int, ...]:
    """Return the number that stands for a device's remaining SMs (`SmPartition`), if they are requested.

    Raise NotPossible if there are none, or if another partition has them.
    """
    properties = daemon.devices[device]
    remainder = sm_partitions.chunk_count(properties)
    if not is_requested:
        return ()
    if not sm_partitions.has_remainder(properties):
        raise NotPossible(f"The chunks of device {visible_index} leave no SMs over.")
    if remainder not in free_of(daemon, device):
        count = len(sm_partitions.list_multiprocessors(properties, [remainder]))
        owner, partition = next(item for item in partitions_on(daemon, device) if remainder in item[1].chunks)
        ownership = "" if owner == server_name else f" of server '{owner}'"
        raise NotPossible(
            f"The remaining {count} SMs of device {visible_index} are in partition '{partition.name}'{ownership}."
        )
    return (remainder,)


def _check_capability(daemon: Daemon, device: int, visible_index: int) -> None:
    properties = daemon.devices[device]
    if properties.compute_capability < sm_partitions.MIN_CAPABILITY:
        major, minor = properties.compute_capability
        name = f"device {visible_index}, {properties.name},"
        raise TooOld(f"Static partitions need compute capability 8.0; {name} has {major}.{minor}.")


def _check_clients_reported(servers: Iterable[Server]) -> None:
    for process in servers:
        if process.pending:
            raise NotReported(f"Server '{process.name}' has not reported its clients to this daemon yet; try again.")


def _check_nobody_outside(device: int, visible_index: int, present: Sequence[Client]) -> None:
    """Raise NotPossible if clients have no partition of a device, because they may use the SMs of a new one."""
    outside = [client for client in present if device not in client.partitions]
    if outside:
        remedy = (
            "end it, or wait until it has gone" if len(outside) == 1 else "end them, or wait until they have gone"
        )
        raise NotPossible(f"Device {visible_index} has {count_clients(len(outside))} outside partitions; {remedy}.")


def _find(named_server: NamedServer, name: str, device: int) -> sm_partitions.SmPartition | None:
    return next(
        (partition for partition in named_server.partitions if (partition.name, partition.device) == (name, device)),
        None,
    )
