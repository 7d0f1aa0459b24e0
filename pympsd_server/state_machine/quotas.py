"""The SMs of a context, by its process's percentage, its own and its execution affinity. Sans-I/O.

Each level only lowers the one before (MPS documents, 2.3.5.2 and 4.2.5): the client process's percentage, with
per-context partitioning the context's, the execution affinity.
"""

from collections.abc import Mapping

from pympsd.errors import InputError
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.limits import PER_CONTEXT_PARTITIONING, BadLimit, ThreadPercentage
from pympsd.vocabulary.sm_rounding import multiprocessors, rounding


class AffinityRefused(InputError, ValueError):
    """An execution affinity that the context cannot have; the message has the allowed range."""


def process_multiprocessors(percentage: ThreadPercentage, device: DeviceProperties, most: int | None = None) -> int:
    """Return the SMs that a process may use, at most those of its static partition; before Volta all (MPS documents,
    2.3.5.2).
    """
    by_percentage = multiprocessors(percentage, device)
    return by_percentage if most is None else min(most, by_percentage)


def affine_multiprocessors(requested: int, available: int, device: DeviceProperties) -> int:
    """Return the SMs of an execution affinity out of ``available`` SMs of a device: rounded up as on such a device.

    Raise AffinityRefused for more than are available, and before Volta.
    """
    if not device.is_volta_or_newer:
        raise AffinityRefused(f"execution affinity needs a Volta or newer device; {device.name} is older")
    if not 1 <= requested <= available:
        raise AffinityRefused(
            f"an execution affinity is 1 to {available} SMs, as many as this context may use; not {requested}"
        )
    return rounding(device).up(requested, available)


def context_multiprocessors(
    process: ThreadPercentage,
    environment: Mapping[str, str],
    device: DeviceProperties,
    thread_percentage: float | None,
    affinity: int | None,
    partition: int | None = None,
    most: int | None = None,
) -> int:
    """Return the SMs of a new context, by the last two levels; raise AffinityRefused.

    ``environment`` is the client's as of its connect: only that enables per-context partitioning. ``partition``: the
    SMs of a green context; ``most``: those of the client's static partition.
    """
    available = process_multiprocessors(context_percentage(process, environment, thread_percentage), device, most)
    if partition is not None:
        if not device.is_volta_or_newer or not 1 <= partition <= available:
            raise AffinityRefused(f"a green context has 1 to {available} SMs of a Volta or newer device")
        return partition
    if affinity is None:
        return available
    return affine_multiprocessors(affinity, available, device)


def context_percentage(
    process: ThreadPercentage, environment: Mapping[str, str], requested: float | None
) -> ThreadPercentage:
    """Return a context's percentage: the requested one if partitioning is enabled and it is lower.

    Args:
        process: The percentage of the client process.
        environment: The client's; CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1 enables the request.
        requested: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE as it was when the context was created, above 0 to 100; None: not
            set. A number outside that range is ignored.
    """
    if requested is None or environment.get(PER_CONTEXT_PARTITIONING) != "1":
        return process
    try:
        return min(process, ThreadPercentage(requested))
    except BadLimit:
        return process
