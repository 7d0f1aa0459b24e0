"""Executor slots: each is a device and the user whose contexts run there, or all users.

Users never share an address space (docs/decisions/006): if the clients of one executor do, each user has a
separate executor. Without -multiuser-server all clients belong to one user, so there is one executor per device, or
one per SM partition in a server that contains faults by partition (docs/decisions/019).
"""

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties

ALL_USERS: Final = -1
"""Instead of a user: the executor is for all clients."""


@frozen(order=True)
class ExecutorSlot:
    """At most one executor at a time runs for it; ``device`` is the server's ordinal."""

    device: int
    user: int = ALL_USERS
    partition: str = ""
    """The SM partition whose own executor it is; empty: no partition's own."""


@frozen(order=True)
class FaultDomain:
    """The contexts that a fault of one reaches directly: those of a slot, or of one SM partition in it."""

    slot: ExecutorSlot
    partition: str = ""


def slot_of(uid: int, device: int, properties: DeviceProperties, partition: str = "") -> ExecutorSlot:
    """Return the slot of a user's contexts on a device; ``partition``: one that has a separate executor.

    Args:
        uid: The client's user; ignored on a device whose users share executors.
        device: The server's ordinal.
        properties: Those of the device, which decide whether users share an executor.
        partition: An SM partition with an executor of its own; empty for none.
    """
    return ExecutorSlot(device) if properties.isolates_address_spaces else ExecutorSlot(device, uid, partition)
