"""Copies and fills in pieces; each function is an iterator that does one piece of work at each step.

Addresses are looked up again piece by piece, for the memory may have been freed since the call was checked:
IllegalAddress then ruins the context, as it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pympsd_server.backends.emulated.memory.address_space import Reach

PIECE_BYTES: Final = 4 << 20


def host_to_device(space: Reach, destination: int, source: memoryview) -> Iterator[None]:
    """Copy host bytes to device memory."""
    for start, count in _pieces(source.nbytes):
        target = np.frombuffer(space.view(destination + start, count), np.uint8)
        # NumPy lets other threads run during large copies; a memoryview assignment does not.
        np.copyto(target, np.frombuffer(source[start : start + count], np.uint8))
        yield


def device_to_host(space: Reach, target: memoryview, source: int) -> Iterator[None]:
    """Copy device memory to writable host bytes."""
    for start, count in _pieces(target.nbytes):
        found = np.frombuffer(space.view(source + start, count), np.uint8)
        np.copyto(np.frombuffer(target[start : start + count], np.uint8), found)
        yield


def device_to_device(space: Reach, destination: int, source: int, count: int) -> Iterator[None]:
    """Copy inside the device; the ranges may overlap."""
    pieces = list(_pieces(count)) if destination <= source else list(_pieces(count))[::-1]
    for start, length in pieces:
        space.copy(destination + start, source + start, length)
        yield


def fill(space: Reach, destination: int, pattern: bytes, count: int) -> Iterator[None]:
    """Repeat a pattern of 1, 2 or 4 bytes ``count`` times."""
    width = len(pattern)
    for start, length in _pieces(count * width):
        space.fill(destination + start, pattern, length // width)
        yield


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, PIECE_BYTES):
        yield start, min(PIECE_BYTES, count - start)
