"""Batched copies (CUDA driver API, Memory Management, cuMemcpyBatchAsync)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from pympsd_client._api.memory.copies import between_any
from pympsd_client._arguments.errors import CudaError, invalid_value
from pympsd_client._arguments.numbers import number
from pympsd_client._arguments.values import InMemory, check_count
from pympsd_client._objects.stream import LEGACY, resolve


def copy(destinations: Any, sources: Any, sizes: Any, count: int, stream: int) -> None:
    """Copy between several pairs of addresses, in a stream that was created or the per-thread one, in order.

    The attributes are hints, and change nothing. INVALID_VALUE, before any copy is begun, for an empty batch or copy.
    """
    if stream in LEGACY:
        raise invalid_value("a batch of copies is not put in the legacy stream; create one")
    resolve(stream)
    if not count:
        raise invalid_value("a batch has at least one copy")
    copies = list(zip(_numbers(destinations, count), _numbers(sources, count), _numbers(sizes, count), strict=True))
    for index, (destination, source, size) in enumerate(copies):
        if not (destination and source and size):
            raise invalid_value(f"copy {index} has a NULL address or no bytes")
    for index, (destination, source, size) in enumerate(copies):
        try:
            between_any(destination, source, size, stream)
        except CudaError as error:
            raise CudaError(error.code, f"copy {index}: {error.reason}") from None


def _numbers(given: Sequence[Any] | InMemory | None, count: int) -> list[int]:
    if isinstance(given, InMemory):
        check_count(count, "an array")
        return list((ctypes.c_uint64 * count).from_address(given))
    if len(given or ()) < count:
        raise invalid_value(f"count is {count} and one of the arrays has {len(given or ())} elements")
    return [number(one) for one in (given or ())[:count]]
