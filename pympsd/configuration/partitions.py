"""Read the static SM partitions of a configuration file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pympsd.configuration.plan import PartitionPlan, ServerPlan
from pympsd.configuration.positions import Path
from pympsd.configuration.tables import Tables, dotted
from pympsd.vocabulary.partitions import chunk_count, has_remainder, partition_name_problem

DEVICE_KEYS: Final = ("uuid", "sm_partitions")
PARTITION_KEYS: Final = ("name", "chunks", "include_remainder")


def read_partitions(
    tables: Tables, path: Path, given: Any, allowed: tuple[int, ...] | None
) -> tuple[PartitionPlan, ...]:
    """Return the SM partitions in a server's tables of devices."""
    found: list[PartitionPlan] = []
    for number, table in enumerate(tables.tables(path, given)):
        place = (*path, number)
        tables.check_keys(place, table, DEVICE_KEYS, "a server's device")
        tables.needs_own_servers((*place, "sm_partitions"), table)
        word = table.get("uuid", 0)
        if not isinstance(word, str):
            tables.wrong((*place, "uuid"), f"{dotted((*place, 'uuid'))} is the UUID of a device,", word)
            continue
        device = tables.device((*place, "uuid"), word)
        if device >= 0 and allowed is not None and device not in allowed:
            tables.wrong((*place, "uuid"), f"{dotted((*place, 'uuid'))}: the server's allowed_devices lack it")
        for which, each in enumerate(tables.tables((*place, "sm_partitions"), table.get("sm_partitions", []))):
            found += _partition(tables, (*place, "sm_partitions", which), each, device)
    for index, one in enumerate(found):
        if any((one.name, one.device) == (other.name, other.device) for other in found[:index]):
            tables.wrong(path, f"{dotted(path)}: two SM partitions of device {one.device} have the name {one.name}")
    return tuple(found)


def _partition(tables: Tables, path: Path, given: dict[str, Any], device: int) -> Iterator[PartitionPlan]:
    tables.check_keys(path, given, PARTITION_KEYS, "an SM partition")
    name, chunks, remainder = given.get("name"), given.get("chunks", 0), given.get("include_remainder", False)
    if not isinstance(name, str) or partition_name_problem(name):
        said = partition_name_problem(name).rstrip(".") if isinstance(name, str) else "a name is needed"
        tables.wrong((*path, "name"), f"{dotted((*path, 'name'))}: {said}")
    elif isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1:
        tables.wrong((*path, "chunks"), f"{dotted((*path, 'chunks'))} is a number from 1 on,", chunks)
    elif not isinstance(remainder, bool):
        path = (*path, "include_remainder")
        tables.wrong(path, f"{dotted(path)} is true or false,", remainder)
    elif device >= 0:
        yield PartitionPlan(name, device, chunks, remainder)


def check_chunks(tables: Tables, plans: Mapping[str, ServerPlan]) -> None:
    """Check that the partitions of all servers together fit the devices."""
    wanted = [(one, name) for name, plan in plans.items() for one in plan.partitions]
    for device in sorted({one.device for one, _ in wanted}):
        facts, here = tables.surroundings.devices[device], [each for each in wanted if each[0].device == device]
        path: Path = ("servers", here[-1][1], "devices")
        most, chunks = chunk_count(facts), sum(one.chunks for one, _ in here)
        if not most:
            major, minor = facts.compute_capability
            said = f"static partitions need compute capability 8.0; {facts.name} has {major}.{minor}"
            tables.wrong(path, f"{dotted(path)}: {said}")
        elif chunks > most:
            servers = ", ".join(dict.fromkeys(name for _, name in here))
            said = f"the SM partitions of device {device} have {chunks} chunks together, and it has {most}"
            tables.wrong(path, f"{dotted(path)}: {said} (servers: {servers})")
        elif any(one.include_remainder for one, _ in here) and not has_remainder(facts):
            tables.wrong(path, f"{dotted(path)}: the chunks of device {device} leave no SMs over")
        if sum(one.include_remainder for one, _ in here) > 1:
            said = f"one SM partition of device {device} can have include_remainder"
            tables.wrong(path, f"{dotted(path)}: {said}")
