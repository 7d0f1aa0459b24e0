"""The pool of connections of a device, whose size, `DeviceProperties.max_contexts`, limits the contexts on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field

from pympsd.errors import DeviceError
from pympsd.process.version import CLIENT_CONTEXTS, DRIVER
from pympsd.vocabulary.device_properties import DeviceProperties

DEFAULT_CONNECTIONS: Final = 2
"""A client's default number of connections (MPS documents, 4.2.4). A context with this number takes one slot."""
MAX_CONNECTIONS: Final = 32


class PoolExhausted(DeviceError):
    """A device has too few free connections for another context.

    Args:
        size: The number of the device's slots.
        slots: The number of slots that the context needs.
        free: The number of free slots.
    """

    def __init__(self, size: int, slots: int, free: int) -> None:
        remaining = (
            f"{free} more fit of clients that leave CUDA_DEVICE_MAX_CONNECTIONS at its default of 2"
            if free
            else "no more clients fit until contexts of others end"
        )
        super().__init__(
            f"a context of this process takes {slots} of the device's {size} connections, and {free} are free: "
            f"{remaining}"
        )
        self.size = size


def connection_slots(environment: Mapping[str, str]) -> int:
    """Return how many slots each context of a client takes: one for every two of its connections (32 at most).

    0 and invalid numbers mean the default.
    """
    digits = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip().removeprefix("+").lstrip("0")
    if not (digits.isascii() and digits.isdecimal()):
        return -(-DEFAULT_CONNECTIONS // 2)
    # Check the length first, to avoid converting thousands of digits.
    requested = MAX_CONNECTIONS if len(digits) > 2 else min(int(digits), MAX_CONNECTIONS)
    return -(-requested // 2)


@define
class ConnectionPool:
    """The connections of a device and the slots that each context holds.

    A device has a slot for each context that the documents allow (`DeviceProperties.max_contexts`). Each context of a
    client that requests more connections than the default takes several slots.

    >>> pool = ConnectionPool(size=2)
    >>> pool.take(7, 1)
    >>> pool.free
    1
    """

    size: int = CLIENT_CONTEXTS[DRIVER]
    _held: dict[int, int] = field(factory=dict, init=False)
    """The number of slots that each context holds, by context id."""

    @classmethod
    def of(cls, device: DeviceProperties) -> ConnectionPool:
        """Return the empty pool of a device."""
        return cls(device.max_contexts)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.size - sum(self._held.values())

    def check(self, slots: int) -> None:
        """Raise PoolExhausted if fewer than ``slots`` are free."""
        if slots > self.free:
            raise PoolExhausted(self.size, slots, self.free)

    def take(self, context_id: int, slots: int) -> None:
        """Give a context its slots; raise PoolExhausted.

        The context must not have slots yet. PoolExhausted is raised before anything has changed.
        """
        self.check(slots)
        self._held[context_id] = slots

    def release(self, context_id: int) -> None:
        """Free the slots of a context, if it holds any."""
        self._held.pop(context_id, None)
