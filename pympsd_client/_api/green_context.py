"""Green contexts and resources of devices (CUDA driver API, Green Contexts).

Here a green context is a context like others: memory and modules that are made while it is current are freed with it.
The device chooses its SMs, and avoids those of other green contexts as long as enough are free.
"""

from typing import Any, Final

from pympsd.vocabulary.results import Result
from pympsd.vocabulary.sm_rounding import rounding
from pympsd_client._api.device import multiprocessors
from pympsd_client._api.settings import context_id
from pympsd_client._arguments.errors import CudaError, invalid_value, not_supported
from pympsd_client._arguments.resources import SmResource, check_type, groups, put_counts, sm_resource, sm_resources
from pympsd_client._connect.connection import VisibleDevice
from pympsd_client._objects import green_context as green
from pympsd_client._objects import stream as streams
from pympsd_client._objects.context import Context, context_of
from pympsd_client._objects.process import process
from pympsd_client._objects.stream import resolve

_DEFAULT_STREAM: Final = 1
"""CU_GREEN_CTX_DEFAULT_STREAM."""
_IGNORE_COSCHEDULING, _MAX_POTENTIAL_CLUSTER = 1, 2
"""Values of CUdevSmResourceSplit_flags."""
_BACKFILL: Final = 1
"""CU_DEV_SM_RESOURCE_GROUP_BACKFILL."""
_STEP: Final = 2


def _resource(device: VisibleDevice, count: int) -> SmResource:
    if not device.properties.is_volta_or_newer:
        raise not_supported("the SMs of this device cannot be divided: that needs compute capability 7.0 or higher")
    row = rounding(device.properties)
    return SmResource(device.number, count, min(row.green_minimum, count), min(row.green_alignment, count))


# --- resources


def read_device_resource(device: int, kind: int) -> bytes:
    """Return the SMs of a device that this process may use.

    Raise INVALID_RESOURCE_TYPE for other resources.
    """
    entry = process.device(device)
    check_type(kind)
    return _resource(entry, multiprocessors(entry)).packed


def _pack_resource(context: Context) -> bytes:
    return _resource(context.device, context.usable().multiprocessors).packed


def read_context_resource(handle: int, kind: int) -> bytes:
    """Return the SMs of a context."""
    check_type(kind)
    return _pack_resource(context_of(handle))


def read_green_context_resource(handle: int, kind: int) -> bytes:
    """Return the SMs of a green context."""
    check_type(kind)
    return _pack_resource(green.find(handle).context)


def read_stream_resource(handle: int, kind: int) -> bytes:
    """Return the SMs of a stream's context."""
    check_type(kind)
    return _pack_resource(resolve(handle)[0])


def split_by_count(requested: int, argument: Any, flags: int, minimum: int) -> tuple[list[bytes], int, bytes]:
    """Return up to ``nbGroups`` parts of at least ``minCount`` SMs, their number, and the remainder.

    With ``nbGroups`` 0 return no parts, and their maximum number. Raise INVALID_RESOURCE_CONFIGURATION if
    ``minCount`` is more than all SMs, INVALID_VALUE for flags other than CUdevSmResourceSplit_flags.
    """
    resource = sm_resource(argument)
    if flags & ~(_IGNORE_COSCHEDULING | _MAX_POTENTIAL_CLUSTER):
        raise invalid_value(f"the flags must be a combination of CUdevSmResourceSplit_flags, not {flags:#x}")
    least, step = resource.minimum, resource.alignment
    if flags & _IGNORE_COSCHEDULING:
        least = step = min(_STEP, resource.count)
    size = max(least, -(-minimum // step) * step)
    if size > resource.count:
        raise _not_possible(f"parts of {size} SMs out of {resource.count}")
    possible = resource.count // size
    number = min(requested, possible) if requested else possible
    group_count = number if requested else 0
    part, remainder = (_part(resource, count) for count in (size, resource.count - group_count * size))
    return [part.packed] * group_count, number, remainder.packed


def _part(resource: SmResource, count: int) -> SmResource:
    least, step = min(resource.minimum, count), min(resource.alignment, count)
    return SmResource(resource.device, count, least, step, resource.flags)


def _not_possible(what: str) -> CudaError:
    return CudaError(Result.ERROR_INVALID_RESOURCE_CONFIGURATION, f"not possible: {what}")


def split(count: int, argument: Any, flags: int, parameters: Any) -> tuple[list[bytes], bytes]:
    """Return a part for each group, and the remainder; a group of 0 SMs gets all remaining SMs.

    Each group's smCount is set to the number of its SMs. Raise INVALID_RESOURCE_CONFIGURATION for more SMs than
    remain, and for a number that is not a multiple of the coscheduled SMs, unless the group may be backfilled. Raise
    INVALID_VALUE for flags.
    """
    resource = sm_resource(argument)
    if flags or not count:
        raise invalid_value(f"nbGroups must be 1 or more and flags 0, not {count} and {flags:#x}")
    sizes, remaining = [], resource.count
    for group in groups(parameters, count):
        if group.flags & ~_BACKFILL:
            raise invalid_value(
                f"the flags of a group must be CU_DEV_SM_RESOURCE_GROUP_BACKFILL (1), not {group.flags:#x}"
            )
        unit = group.coscheduled or resource.alignment
        if unit % _STEP or group.preferred % unit:
            raise invalid_value(f"coscheduled SMs must be a multiple of {_STEP} and divide the preferred, not {unit}")
        size = group.count or remaining // unit * unit
        is_whole = size % (_STEP if group.flags & _BACKFILL else unit) == 0
        if not is_whole or not 0 < size <= remaining:
            raise _not_possible(f"{size} SMs in units of {unit} out of {remaining}")
        sizes.append(size)
        remaining -= size
    put_counts(parameters, sizes)
    return [_part(resource, size).packed for size in sizes], _part(resource, remaining).packed


def describe(argument: Any, count: int) -> int:
    """Return a description of resources, all of one device; raise INVALID_VALUE, INVALID_RESOURCE_CONFIGURATION."""
    resources = sm_resources(argument, count)
    if not resources or len({resource.device for resource in resources}) > 1:
        raise invalid_value("a description needs one or more resources, all of one device")
    total = sum(resource.count for resource in resources)
    most = multiprocessors(process.device(resources[0].device))
    if total > most:
        raise _not_possible(f"{total} SMs; this process may use {most}")
    return green.describe(resources[0].device, total)


# --- green contexts


def create(description: int, device: int, flags: int) -> int:
    """Return a new green context with the SMs of a description; the flags must be CU_GREEN_CTX_DEFAULT_STREAM.

    Raise INVALID_VALUE, INVALID_DEVICE for a description of another device, and the server's refusals of a context.
    """
    entry = process.device(device)
    if flags != _DEFAULT_STREAM:
        raise invalid_value(f"the flags must be CU_GREEN_CTX_DEFAULT_STREAM (1), not {flags:#x}")
    return green.create(description, entry).handle


def destroy(handle: int) -> None:
    """Destroy a green context and the objects made in it; raise INVALID_CONTEXT."""
    green.destroy(handle)


def convert(handle: int) -> int:
    """Return the context of a green context, which can be made current."""
    return green.find(handle).context.handle


def create_stream(handle: int, flags: int, priority: int) -> int:
    """Return a new stream of a green context; the flags must be CU_STREAM_NON_BLOCKING."""
    context = green.find(handle).context
    if flags != streams.NON_BLOCKING:
        raise invalid_value(f"the flags must be CU_STREAM_NON_BLOCKING (1), not {flags:#x}")
    return streams.create(context, flags, priority).handle


def find_green_context_of_stream(handle: int) -> int:
    """Return the green context of a stream, or NULL if its context is not green."""
    green_context = green.find_by_context(streams.properties(handle).context)
    return 0 if green_context is None else green_context.handle


def contexts_of_stream(handle: int) -> tuple[int, int]:
    """Return a stream's context and NULL, or for a green context's stream the primary and the green context.

    The primary context is NULL if it was never retained, because green contexts do not need it here.
    """
    context = streams.properties(handle).context
    green_context = green.find_by_context(context)
    if green_context is None:
        return context.handle, 0
    primary = process.primary(context.device.number).context
    return 0 if primary is None else primary.handle, green_context.handle


def record_event(handle: int, event: int) -> None:
    """Record an event that stands for the earlier work in all streams of a green context."""
    green.record(green.find(handle).context, event)


def wait_event(handle: int, event: int) -> None:
    """Make all existing streams of a green context wait for an event before their later work."""
    green.wait(green.find(handle).context, event)


def record_event_in_context(handle: int, event: int) -> None:
    """Record an event that stands for the earlier work in all streams of a context."""
    green.record(context_of(handle), event)


def wait_event_in_context(handle: int, event: int) -> None:
    """Make all existing streams of a context wait for an event before their later work."""
    green.wait(context_of(handle), event)


def number(handle: int) -> int:
    """Return a green context's id, which no other context of this process has or had."""
    return context_id(green.find(handle).context.handle)
