"""The limits of a client that its server enforces: SMs and memory by device, static SM partitions. Sans-I/O.

One function combines a client's limits, `pympsd.vocabulary.limit_table.combine`. This module calls it when the client
connects, with the client's environment, which only the server has. From then on ``own`` of the client's
`ClientLimits` is the result, without further bounds; later changes apply to later clients. The devices as the client
sees them follow from these limits, and so does the quota of each context (`quota_on`).

A context's SMs follow from three levels, each of which can only lower the one before (MPS documents, 2.3.5.2 and
4.2.5): the client process's percentage; with per-context partitioning, the context's percentage; and the execution
affinity.
"""

from collections.abc import Mapping, Sequence

from attrs import evolve, fields

from pympsd.devices import memory_limits
from pympsd.devices.machine import set_attributes
from pympsd.devices.memory_limits import BadEntry
from pympsd.errors import InputError
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limit_table import (
    ClientLimits,
    Limits,
    count_bytes,
    find_differing_percentages,
    find_on_device,
    lowest,
    percentage_on,
)
from pympsd.vocabulary.limits import (
    PER_CONTEXT_PARTITIONING,
    BadLimit,
    ClientPriority,
    LimitsInForce,
    PinnedMemory,
    Quota,
    ThreadPercentage,
)
from pympsd.vocabulary.partitions import ChosenPartition, list_multiprocessors
from pympsd.vocabulary.sm_rounding import count_multiprocessors, rounding
from pympsd.vocabulary.variables import PERCENTAGE, PRIORITY
from pympsd.wire.link_messages import AdmitClient, AdmittedLimits
from pympsd.wire.messages import OpenContext
from pympsd_server.state_machine.client_table import ClientRecord
from pympsd_server.state_machine.connections import connection_slots


class AffinityRefused(InputError, ValueError):
    """The context cannot have the execution affinity; the message contains the allowed range."""


def count_process_sms(percentage: ThreadPercentage, device: DeviceProperties, max_sms: int | None = None) -> int:
    """Return the number of SMs that a process may use; before Volta all (MPS documents, 2.3.5.2).

    ``max_sms``: the number of SMs of its static partition.
    """
    by_percentage = count_multiprocessors(percentage, device)
    return by_percentage if max_sms is None else min(max_sms, by_percentage)


def round_affinity(requested: int, available: int, device: DeviceProperties) -> int:
    """Return the number of SMs for an execution affinity, rounded up as the device requires.

    Raise AffinityRefused if more than ``available`` SMs are requested, and before Volta.
    """
    if not device.is_volta_or_newer:
        raise AffinityRefused(f"execution affinity needs a Volta or newer device; {device.name} is older")
    if not 1 <= requested <= available:
        raise AffinityRefused(
            f"an execution affinity must be 1 to {available} SMs, as many as this context may use; not {requested}"
        )
    return rounding(device).round_up(requested, available)


def count_context_sms(
    percentage: ThreadPercentage,
    device: DeviceProperties,
    affinity: int | None = None,
    partition: int | None = None,
    max_sms: int | None = None,
) -> int:
    """Return the number of SMs of a new context, by all three levels. Raise AffinityRefused.

    ``percentage``: the context's, from `choose_percentage`; ``partition``: the number of SMs of a green context;
    ``max_sms``: the number of SMs of the client's static partition.
    """
    available = count_process_sms(percentage, device, max_sms)
    if partition is not None:
        if not device.is_volta_or_newer or not 1 <= partition <= available:
            raise AffinityRefused(f"a green context has 1 to {available} SMs of a Volta or newer device")
        return partition
    if affinity is None:
        return available
    return round_affinity(affinity, available, device)


def choose_percentage(
    process: ThreadPercentage, environment: Mapping[str, str], requested: float | None
) -> ThreadPercentage:
    """Return a context's percentage: the requested one if per-context partitioning is enabled and it is lower.

    Args:
        process: The percentage of the client process.
        environment: The client's environment, in which CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1
            enables the request.
        requested: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE when the context was created, above 0 and up to 100; None if not
            set. A number outside of that range is ignored.
    """
    if requested is None or environment.get(PER_CONTEXT_PARTITIONING) != "1":
        return process
    try:
        return min(process, ThreadPercentage(requested))
    except BadLimit:
        return process


class PartitionRefused(InputError, ValueError):
    """A client cannot have a context on a device that static partitions divide; the message contains the reason.

    Opening a context on that device fails; the client's other devices are not affected.
    """


def limits_of(admitted: AdmitClient, of_server: Limits) -> ClientLimits:
    """Return the limits of a client that the daemon hands over; in protocol 2 its own limits are its server's.

    Args:
        admitted: The daemon's message. ``own`` is None in protocol 2.
        of_server: The server's limits for new clients, which the daemon sent with LimitsChanged.
    """
    own = admitted.own
    if own is None:
        own = evolve(of_server, client_priority=ClientPriority(admitted.priority))
    values = {part.name: getattr(admitted, part.name) for part in fields(AdmittedLimits)}
    return ClientLimits(**{**values, "own": own}, namespace=admitted.mps_namespace)


def combine_with_environment(
    limits: ClientLimits, environment: Mapping[str, str], ordinals: Sequence[int], visible: Sequence[DeviceProperties]
) -> tuple[ClientLimits, list[BadEntry]]:
    """Return a client's limits combined with those in its environment, and the invalid entries in the environment.

    ``ordinals``: the server's ordinals of the devices that the client sees; ``visible``: these devices, in the
    order in which the numbers in variables count them. Before Volta, memory and SMs are not limited.
    """
    requested, bad = read_environment(environment, ordinals, visible)
    own = limits.combine(requested)
    if not all(device.is_volta_or_newer for device in visible):
        own, bad = evolve(own, pinned_memory=None), []
    return evolve(limits, own=own, bounds=()), bad


def read_environment(
    environment: Mapping[str, str], ordinals: Sequence[int], visible: Sequence[DeviceProperties]
) -> tuple[Limits, list[BadEntry]]:
    """Return the limits that a client's variables request, by the server's device ordinal, and the invalid entries.

    Args:
        environment: The variables that the client sent with its hello.
        ordinals: The server's ordinals of the devices that the client sees.
        visible: These devices, in the same order; a number or UUID in a variable names one of them.

    Returns:
        The limits of the valid entries, and the invalid entries.
    """
    memory, bad = memory_limits.read(visible, memory_limits.text_of(environment), "this process")
    bad = [evolve(entry, variable=memory_limits.variable_of(environment)) for entry in bad]
    of_all, bad_of_all = memory_limits.read_container_limit(environment)
    percentages, bad_percentages = memory_limits.read_percentages(environment, visible)
    limits = Limits(
        {ordinals[number] if number >= 0 else number: percentage for number, percentage in percentages.items()},
        lowest(
            (
                {ordinals[number]: limit for number, limit in memory.items()},
                dict.fromkeys(ordinals, PinnedMemory(of_all)) if of_all else None,
            )
        ),
        read_own_priority(environment),
    )
    return limits, bad + bad_of_all + bad_percentages


def read_own_priority(environment: Mapping[str, str]) -> ClientPriority | None:
    """Return the priority that a client's variable requests; None if it requests none, or an invalid one.

    The variable is CUDA_MPS_CLIENT_PRIORITY: 0 is normal, 1 below normal.
    """
    try:
        return ClientPriority.parse(environment.get(PRIORITY, ""))
    except BadLimit:
        return None


def partition_on(limits: ClientLimits, ordinal: int) -> ChosenPartition:
    """Return a client's partition of a device, without chunks if it has none there. Raise PartitionRefused."""
    partition = limits.partitions.get(ordinal, ChosenPartition())
    if partition.problem:
        raise PartitionRefused(partition.problem)
    return partition


def memory_on(limits: ClientLimits, ordinal: int) -> int:
    """Return the number of bytes that a client may hold on a device; 0 without a limit.

    ``ordinal`` is the server's ordinal of the device. The limit applies to all contexts of the client there together.
    """
    return count_bytes(limits.own.pinned_memory).get(ordinal, 0)


def quota_on(limits: ClientLimits, ordinal: int, multiprocessors: int, client: ClientRecord) -> Quota:
    """Return the quota of a client's context on a device. Raise PartitionRefused.

    Args:
        limits: The client's limits, combined with its environment.
        ordinal: The server's ordinal of the device.
        multiprocessors: The number of SMs of this context, as `count_requested_sms` returns it.
        client: The client, whose priority, memory groups, audit setting and user the quota contains for the executor.
    """
    return Quota(
        multiprocessors,
        memory_on(limits, ordinal),
        client.priority,
        partition_on(limits, ordinal).chunks,
        client.groups.get(ordinal, ()),
        client.audited,
        _is_static(limits, ordinal),
        client.uid,
    )


def limit_properties(limits: ClientLimits, ordinal: int, device: DeviceProperties) -> DeviceProperties:
    """Return a device as a client sees it, with the number of SMs of the client's percentage or partition.

    Source: MPS documents, 2.3.5.2.
    """
    count = count_process_sms(_percentage(limits, ordinal), device, _max_multiprocessors(limits, ordinal, device))
    return set_attributes(device, MULTIPROCESSOR_COUNT=count)


def resolve_in_force(
    limits: ClientLimits, ordinals: Sequence[int], devices: Sequence[DeviceProperties], environment: Mapping[str, str]
) -> tuple[LimitsInForce, dict[int, str]]:
    """Return the limits that apply to a client, and its partitions, by the ordinals of the devices that it sees.

    ``environment``: the client's, which decides how many connections each of its contexts takes.
    """
    counts = (device.attributes["MULTIPROCESSOR_COUNT"] for device in devices)
    memory = count_bytes(limits.own.pinned_memory)
    partitions = {ordinal: partition.name for ordinal, partition in limits.partitions.items() if partition.name}
    result = LimitsInForce(
        max(_percentage(limits, ordinal) for ordinal in ordinals).value,
        (limits.own.client_priority or ClientPriority()).level,
        {ordinal: memory[ordinal] for ordinal in ordinals if ordinal in memory},
        dict(zip(ordinals, counts, strict=True)),
        find_differing_percentages(limits.own, ordinals),
        connection_slots(environment),
    )
    return result, partitions


def count_requested_sms(
    limits: ClientLimits,
    ordinal: int,
    visible: Sequence[DeviceProperties],
    environment: Mapping[str, str],
    request: OpenContext,
) -> int:
    """Return the number of SMs of a requested context; a request can only lower the number of the client's process.

    ``visible``: the devices that the client sees; ``environment``: the client's when it connected. Raise
    PartitionRefused, AffinityRefused, or BadLimit for an invalid percentage of a device.
    """
    partition_on(limits, ordinal)
    device, percentage = visible[request.device], request.thread_percentage
    if _is_static(limits, ordinal):
        environment = {}  # a variable in it would enable percentages of contexts
    elif request.percentages and environment.get(PER_CONTEXT_PARTITIONING) == "1":
        percentage = _percentage_by_device(request, visible, is_lenient=is_lenient(environment))
    chosen = choose_percentage(_percentage(limits, ordinal), environment, percentage)
    max_sms = _max_multiprocessors(limits, ordinal, device)
    return count_context_sms(chosen, device, request.affinity, request.partition, max_sms)


def _percentage(limits: ClientLimits, ordinal: int) -> ThreadPercentage:
    return ThreadPercentage() if _is_static(limits, ordinal) else percentage_on(limits.own, ordinal)


def _is_static(limits: ClientLimits, ordinal: int) -> bool:
    """Return whether only the client's partition decides how many SMs it has on a device."""
    return limits.static and ordinal in limits.partitions


def _percentage_by_device(
    request: OpenContext, visible: Sequence[DeviceProperties], *, is_lenient: bool
) -> float | None:
    """Return the percentage in a context's environment for its device; None without one. Raise BadLimit."""
    entries, bad = memory_limits.read_percentages({PERCENTAGE: request.percentages}, visible)
    if bad and not is_lenient:
        raise BadLimit(problem_of_entries(bad))
    entry = find_on_device(entries, request.device)
    return None if entry is None else entry.value


def is_lenient(environment: Mapping[str, str]) -> bool:
    """Return whether a client requests that invalid entries of its limits be ignored."""
    return environment.get("PYMPSD_LENIENT_LIMITS") == "1"


def problem_of_entries(bad: Sequence[BadEntry]) -> str:
    """Return the sentence that refuses invalid entries of a client's limits."""
    remark = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return (
        f"{bad[0].variable}: {bad[0].entry!r}{remark}: {bad[0].reason}. Mend it, or set "
        "PYMPSD_LENIENT_LIMITS=1 to have such entries ignored"
    )


def _max_multiprocessors(limits: ClientLimits, ordinal: int, device: DeviceProperties) -> int | None:
    chunks = limits.partitions.get(ordinal, ChosenPartition()).chunks
    return len(list_multiprocessors(device, chunks)) if chunks else None
