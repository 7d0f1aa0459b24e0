"""Batches of copies (CUDA driver API, Memory Management), and of prefetches and discards (Unified Addressing).

Discarded memory keeps its content, which is indeterminate in CUDA.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pympsd_client._api.memory.copies import copy_any
from pympsd_client._api.memory.managed import Range, find_range, place_of, require_support
from pympsd_client._api.memory.region_copy import copy as region_copy
from pympsd_client._api.memory.region_copy import regions
from pympsd_client._arguments.copy_structs import BatchCopy, Copy3D, batch_copies
from pympsd_client._arguments.errors import CudaError, check_no_flags, invalid_value
from pympsd_client._arguments.memory_structs import locations
from pympsd_client._arguments.values import InMemory, check_count, number
from pympsd_client._objects.arrays.array import arrays
from pympsd_client._objects.arrays.shapes import element_bytes
from pympsd_client._objects.context import current
from pympsd_client._objects.memory.region_copy import check
from pympsd_client._objects.stream import LEGACY, resolve


def copy(destinations: Any, sources: Any, sizes: Any, count: int, stream: int) -> None:
    """Copy between several pairs of addresses, in order, in a stream other than the legacy stream.

    The attributes are hints without an effect. Raise INVALID_VALUE for an empty batch or copy before any copy begins.
    """
    _check(count, stream)
    copies = list(zip(_numbers(destinations, count), _numbers(sources, count), _numbers(sizes, count), strict=True))
    for index, (destination, source, size) in enumerate(copies):
        if not (destination and source and size):
            raise invalid_value(f"copy {index} has a NULL address or no bytes")
    for index, (destination, source, size) in enumerate(copies):
        with _number_errors(index):
            copy_any(destination, source, size, stream)


def copy_regions(count: int, operations: Any, flags: int, stream: int) -> None:
    """Copy rows and slices of memory and arrays several times, in order, in a stream other than the legacy stream.

    Hints about places and the order of access have no effect. Raise INVALID_VALUE or INVALID_HANDLE for a wrong
    operation before any copy begins.
    """
    _check(count, stream)
    check_no_flags("cuMemcpy3DBatchAsync", flags)
    context = current()
    copies = [_describe(copy) for copy in batch_copies(operations, count)]
    for index, copy in enumerate(copies):
        with _number_errors(index):
            if (region := regions(copy, context)) is not None:
                check(*region)
    for index, copy in enumerate(copies):
        with _number_errors(index):
            region_copy(copy, stream)


def _describe(operation: BatchCopy) -> Copy3D:
    sizes = {element_bytes(arrays.find(side.place).description) for side in operation.sides if side.is_array} or {1}
    if not (operation.width and operation.height and operation.depth):
        raise invalid_value("width, height and depth of each copy in a batch must be at least 1")
    if len(sizes) > 1:
        raise invalid_value(f"both arrays must have elements of one size, not {min(sizes)} and {max(sizes)} bytes")
    (element,) = sizes
    destination, source = (side.describe(element) for side in operation.sides)
    return Copy3D(destination, source, operation.width * element, operation.height, operation.depth)


@contextmanager
def _number_errors(index: int) -> Iterator[None]:
    """Add the number of a copy in its batch to the reason of a CudaError that the block raises."""
    try:
        yield
    except CudaError as error:
        raise CudaError(error.code, f"copy {index}: {error.reason}") from None


def prefetch(
    name: str, addresses: Any, sizes: Any, count: int, places: Any, firsts: Any, changes: int, flags: int, stream: int
) -> None:
    """Note where ranges of managed memory will be used; if one is wrong, note none and raise INVALID_VALUE.

    ``firsts`` has the index of the first range for each of ``places``; the place applies to all ranges before the
    first one of the next place. Raise INVALID_DEVICE for a place that cannot be used.
    """
    ranges = _ranges(name, addresses, sizes, count, flags, stream)
    if not 0 < changes <= count:
        raise invalid_value(f"a batch of {count} must have 1 to {count} locations, not {changes}")
    starts = _numbers(firsts, changes)
    if starts[0] or sorted({*starts}) != starts or starts[-1] >= count:
        raise invalid_value(
            f"the indexes of the locations must be 0 and ascending numbers below {count}, not {starts}"
        )
    targets = [place_of(entry) for entry in locations(places, changes)]
    for place, first, end in zip(targets, starts, (*starts[1:], count), strict=True):
        for entry in ranges[first:end]:
            entry.prefetch(place)


def discard(addresses: Any, sizes: Any, count: int, flags: int, stream: int) -> None:
    """Check ranges of managed memory whose content the program does not need any more; keep the content.

    Raise INVALID_VALUE.
    """
    _ranges("cuMemDiscardBatchAsync", addresses, sizes, count, flags, stream)


def _ranges(name: str, addresses: Any, sizes: Any, count: int, flags: int, stream: int) -> list[Range]:
    require_support(name)
    _check(count, stream)
    check_no_flags(name, flags)
    return [find_range(*pair) for pair in zip(_numbers(addresses, count), _numbers(sizes, count), strict=True)]


def _check(count: int, stream: int) -> None:
    if stream in LEGACY:
        raise invalid_value("the legacy stream takes no batches; create a stream")
    resolve(stream)
    if not count:
        raise invalid_value("a batch must have at least one element")


def _numbers(argument: Sequence[Any] | InMemory | None, count: int) -> list[int]:
    if isinstance(argument, InMemory):
        check_count(count, "an array")
        return list((ctypes.c_uint64 * count).from_address(argument))
    if len(argument or ()) < count:
        raise invalid_value(f"count is {count} and one of the arrays has {len(argument or ())} elements")
    return [number(value) for value in (argument or ())[:count]]
