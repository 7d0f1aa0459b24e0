"""Static SM partitions: the multiprocessors (SMs) of a device in chunks, each of which one partition owns.

In protocol 3 a partition has a name and belongs to a server. In protocol 2 of driver 590 it belongs to the daemon,
and its name is its id. Programs treat ids as opaque, but several of them accept letters and digits only.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.identities import name_problem

VARIABLE: Final = "CUDA_MPS_SM_PARTITION"
"""The variable in which a client names its partitions."""
NO_PARTITION: Final = "none"
"""The word for a namespace that is bound to no partition."""
MIN_CAPABILITY: Final = (8, 0)
"""The lowest compute capability of devices that have static partitions."""
_ID_BYTES: Final = 27
"""The number of random bytes in the id of a partition of protocol 3; the id is 36 characters in base64."""
_DAEMON_ID: Final = re.compile("D[0-9a-f]{35}")
"""The form of an id of protocol 2, which has 36 characters too."""


@frozen
class SmPartition:
    """A partition of a server or the daemon.

    A device's chunks are numbered from 0. The number after the last one stands for the remaining SMs, which are too
    few for a chunk.
    """

    name: str
    """The name of the partition; in protocol 2 its id (`daemon_partition_id`)."""
    device: int
    """The daemon's ordinal of the device."""
    chunks: tuple[int, ...]


@frozen
class ChosenPartition:
    """A client's part of a device in static use: the chunks of its partition, or no context."""

    name: str = ""
    chunks: tuple[int, ...] = ()
    problem: str = ""
    """The reason why the client gets no context; empty if it gets one."""
    has_executor: bool = False
    """True if the partition has an executor of its own, if clients of one executor share an address space."""


def chunk_size(device: DeviceProperties) -> int:
    """Return the SMs in a chunk (CUDA's documents: 8 from compute capability 9.0 on, 2 before and if integrated)."""
    if device.sm_chunks is not None:
        return device.sm_chunks[1]
    return 8 if device.compute_capability >= (9, 0) and not device.attributes.get("INTEGRATED") else 2


def chunk_count(device: DeviceProperties) -> int:
    """Return the number of chunks of a device; 0 if it has no static partitions."""
    if device.compute_capability < MIN_CAPABILITY:
        return 0
    return device.multiprocessors // chunk_size(device) if device.sm_chunks is None else device.sm_chunks[0]


def protocol_2_chunks(device: DeviceProperties) -> tuple[tuple[int, ...], ...]:
    """Return the chunks of protocol 2, each as the chunks of `chunk_size` SMs in it, because servers use those.

    Only discrete devices of compute capability 8.x have larger ones in protocol 2: 4 SMs (CUDA's documents, "When to
    Use MPS"). So an A100 has 27 of two chunks each, ``(0, 1), (2, 3), ...``, an H200 15 of one: ``(0,), (1,), ...``.
    """
    size, count = chunk_size(device), chunk_count(device)
    if device.sm_chunks_2 is not None:
        maximum, size_2 = device.sm_chunks_2
    else:
        is_discrete_8 = device.compute_capability < (9, 0) and not device.attributes.get("INTEGRATED")
        maximum, size_2 = count, 4 if is_discrete_8 else size
    parts = max(1, size_2 // size)
    return tuple(tuple(range(parts * index, parts * (index + 1))) for index in range(min(maximum, count // parts)))


def list_multiprocessors(device: DeviceProperties, chunks: Sequence[int]) -> tuple[int, ...]:
    """Return the ids of the SMs in chunks of a device, ascending; the remainder counts as a chunk."""
    size, count = chunk_size(device), chunk_count(device)
    every = (
        range(size * chunk, size * (chunk + 1)) if chunk < count else range(size * count, device.multiprocessors)
        for chunk in sorted(chunks)
    )
    return tuple(number for group in every for number in group)


def free_chunks(device: DeviceProperties, partitions: Sequence[SmPartition]) -> tuple[int, ...]:
    """Return the chunks of a device that none of its partitions owns, the remainder included."""
    used_chunks = {chunk for partition in partitions for chunk in partition.chunks}
    return tuple(chunk for chunk in range(chunk_count(device) + has_remainder(device)) if chunk not in used_chunks)


def has_remainder(device: DeviceProperties) -> bool:
    """Return whether some multiprocessors of a device are in none of its chunks."""
    return device.multiprocessors > chunk_count(device) * chunk_size(device)


def partition_name_problem(name: str) -> str:
    """Return why a partition cannot have a name; nothing if it can."""
    if name == NO_PARTITION:
        return f"The name '{NO_PARTITION}' stands for no partition."
    return name_problem(name)


def describe_missing_partition(server: str, namespace: str, partition: str) -> str:
    """Return a note on a namespace that is bound to an SM partition that does not exist."""
    return (
        f"Server '{server}' has no SM partition '{partition}' yet; until it is created, clients of namespace "
        f"'{namespace}' get no context."
    )


def partition_id(server: str, device: DeviceProperties, name: str) -> str:
    """Return the id of a partition: the same after every restart. Treat it as opaque.

    ``server``: the name of its server; empty if the partition is the daemon's, because its name is its id.
    """
    if not server:
        return name
    digest = sha256("\0".join((server, device.uuid, name)).encode()).digest()
    return urlsafe_b64encode(digest[:_ID_BYTES]).decode()


def daemon_partition_id(device: DeviceProperties, chunks: Sequence[int]) -> str:
    """Return the id, and the name, of a partition of the daemon: the same for the same chunks of a device.

    The driver's ids are masks of multiprocessors in base64. The ids returned here have no ``+``, ``/``, ``-`` or
    ``_``, because some programs end an id there.
    """
    text = "\0".join((device.uuid, *map(str, sorted(chunks))))
    return f"D{sha256(text.encode()).hexdigest()[:35]}"


def is_partition_name(name: str) -> bool:
    """Return whether a partition of either protocol can have a name."""
    return _DAEMON_ID.fullmatch(name) is not None or not partition_name_problem(name)
