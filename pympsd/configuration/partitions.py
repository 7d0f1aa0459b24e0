"""Read the static SM partitions of a configuration file."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from pympsd.configuration.plan import PartitionPlan, ServerPlan
from pympsd.configuration.positions import Path
from pympsd.configuration.tables import Tables, join_path
from pympsd.vocabulary.partitions import chunk_count, has_remainder, partition_name_problem
from pympsd.vocabulary.texts import MAX_COUNT

DEVICE_KEYS: Final = ("uuid", "sm_partitions")
PARTITION_KEYS: Final = ("name", "chunks", "include_remainder")


def read_partitions(
    tables: Tables, path: Path, raw: Any, allowed: tuple[int, ...] | None
) -> tuple[PartitionPlan, ...]:
    """Return the SM partitions in a server's tables of devices."""
    partitions: list[PartitionPlan] = []
    for number, table in enumerate(tables.tables(path, raw)):
        place = (*path, number)
        tables.check_keys(place, table, DEVICE_KEYS, "a server's device")
        tables.needs_own_servers((*place, "sm_partitions"), table)
        device = _device(tables, (*place, "uuid"), table.get("uuid"), allowed)
        place = (*place, "sm_partitions")
        for which, entry in enumerate(tables.tables(place, table.get("sm_partitions", []))):
            partitions.append(_partition(tables, (*place, which), entry, device))
    counts = Counter((plan.name, plan.device) for plan in partitions if plan.name and plan.device >= 0)
    for name, device in (key for key, count in counts.items() if count > 1):
        tables.wrong(path, f"{join_path(path)}: two SM partitions of device {device} have the name {name}")
    # Of a file with an error nothing is used: what is missing of a partition does not matter.
    return tuple(partition for partition in partitions if partition.device >= 0)


def _device(tables: Tables, path: Path, raw: Any, allowed: tuple[int, ...] | None) -> int:
    """Return the ordinal of the device that a table is of; -1 if it names none."""
    if raw is None:
        tables.wrong(path, f"{join_path(path)} is missing: the UUID of the device")
        return -1
    if not isinstance(raw, str):
        tables.wrong(path, f"{join_path(path)} is the UUID of a device, a text,", raw)
        return -1
    device = tables.device(path, raw)
    if device >= 0 and allowed is not None and device not in allowed:
        tables.wrong(path, f"{join_path(path)}: the server's allowed_devices lack it")
    return device


def _partition(tables: Tables, path: Path, raw: dict[str, Any], device: int) -> PartitionPlan:
    """Return an SM partition, without what is wrong with it."""
    tables.check_keys(path, raw, PARTITION_KEYS, "an SM partition")
    name, chunks, remainder = raw.get("name"), raw.get("chunks"), raw.get("include_remainder", False)
    problem = partition_name_problem(name) if isinstance(name, str) else "a name is needed"
    if problem:
        tables.wrong((*path, "name"), f"{join_path((*path, 'name'))}: {problem.rstrip('.')}")
    if chunks is None:
        tables.wrong((*path, "chunks"), f"{join_path((*path, 'chunks'))} is missing: the number of chunks")
    elif isinstance(chunks, bool) or not isinstance(chunks, int) or not 1 <= chunks <= MAX_COUNT:
        allowed = f"{join_path((*path, 'chunks'))} is a number from 1 to {MAX_COUNT},"
        tables.wrong((*path, "chunks"), allowed, chunks)
        chunks = None
    if not isinstance(remainder, bool):
        where = (*path, "include_remainder")
        tables.wrong(where, f"{join_path(where)} is true or false,", remainder)
    return PartitionPlan("" if problem else str(name), device, chunks or 0, remainder is True)


def check_chunks(tables: Tables, plans: Mapping[str, ServerPlan]) -> None:
    """Check that the partitions of all servers together fit the devices."""
    planned = [(partition, name) for name, plan in plans.items() for partition in plan.partitions]
    for device in sorted({partition.device for partition, _ in planned}):
        device_properties, here = (
            tables.context.devices[device],
            [pair for pair in planned if pair[0].device == device],
        )
        path: Path = ("servers", here[-1][1], "devices")
        most, chunks = chunk_count(device_properties), sum(partition.chunks for partition, _ in here)
        if not most:
            major, minor = device_properties.compute_capability
            problem = f"static partitions need compute capability 8.0; {device_properties.name} has {major}.{minor}"
            tables.wrong(path, f"{join_path(path)}: {problem}")
        elif chunks > most:
            servers = ", ".join(dict.fromkeys(name for _, name in here))
            problem = f"the SM partitions of device {device} have {chunks} chunks together, and it has {most}"
            tables.wrong(path, f"{join_path(path)}: {problem} (servers: {servers})")
        elif any(partition.include_remainder for partition, _ in here) and not has_remainder(device_properties):
            tables.wrong(path, f"{join_path(path)}: the chunks of device {device} leave no SMs over")
        if sum(partition.include_remainder for partition, _ in here) > 1:
            problem = f"one SM partition of device {device} can have include_remainder"
            tables.wrong(path, f"{join_path(path)}: {problem}")
