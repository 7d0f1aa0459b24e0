"""How far a kernel may reach beyond the memory that it was given: as far as a GPU lets it, or exactly to the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from pympsd.vocabulary.settings import has_strict_bounds
from pympsd_server.backends.emulated.ptx.datatypes import Array


@frozen
class Bounds:
    """The units, in bytes, that the ends of a client's allocations and of a block's shared memory are rounded up to.

    Compilers rely on them: a load of 16 bytes may begin 12 bytes before the end of an array in shared memory.
    """

    allocation: int
    shared: int

    def end(self, offset: int) -> int:
        """Return the end of what kernels reach of an allocation that ends at ``offset``."""
        return offset + -offset % self.allocation

    def ends(self, offsets: Array) -> Array:
        """Return the ends of what kernels reach of allocations that end at ``offsets``."""
        found: Array = offsets + -offsets % self.allocation
        return found

    def shared_size(self, size: int) -> int:
        """Return the bytes that a block reaches of its ``size`` bytes of shared memory."""
        return size + -size % self.shared


HARDWARE: Final = Bounds(512, 128)
"""Those of cuMemAlloc, and of shared memory since compute capability 8.0 (CUDA C++ Programming Guide)."""
STRICT: Final = Bounds(1, 1)


def chosen_bounds(environment: Mapping[str, str] = os.environ) -> Bounds:
    """Return the bounds that PYMPSD_STRICT_BOUNDS asks for."""
    return STRICT if has_strict_bounds(environment) else HARDWARE
