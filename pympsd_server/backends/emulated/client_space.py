"""The address space that the contexts of one client process share, and the lock its changes are made under.

Kernels look addresses up without the lock: the space shows them its ranges as one snapshot.
"""

from __future__ import annotations

from threading import Lock

from attrs import define, field

from pympsd.vocabulary.device_facts import WINDOW_BITS
from pympsd.vocabulary.results import Result
from pympsd_server.backends.emulated.memory import AddressSpace, ReserveRefused
from pympsd_server.backends.interface import BackendError


@define(eq=False)
class ClientSpace:
    """``lock`` is held while the space is changed; ``contexts`` counts those that share it."""

    space: AddressSpace
    lock: Lock = field(factory=Lock, init=False)
    contexts: int = field(default=0, init=False)


def reserve(base: int, total: int) -> ClientSpace:
    """Reserve a space at a device's window, twice the memory, so that gaps never make memory unreachable."""
    try:
        return ClientSpace(AddressSpace(base, min(1 << WINDOW_BITS, 2 * total)))
    except ReserveRefused as error:
        raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
