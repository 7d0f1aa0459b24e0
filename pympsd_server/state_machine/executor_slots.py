"""Executor slots: each slot is a device, and the user (or all users) whose contexts run there.

Users never share an address space (docs/decisions/006): if the clients of one executor do, each user has a
separate executor. Without -multiuser-server all clients belong to one user, so there is one executor per device, or
one per SM partition in a server that contains faults by partition (docs/decisions/019).
"""

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_properties import DeviceProperties

ALL_USERS: Final = -1
"""The value of ``user`` for an executor that serves the clients of all users."""


@frozen(order=True)
class ExecutorSlot:
    """A place for at most one executor at a time; ``device`` is the server's ordinal."""

    device: int
    user: int = ALL_USERS
    partition: str = ""
    """The SM partition that the executor serves; empty if the executor is not limited to one partition."""


@frozen(order=True)
class FaultDomain:
    """The contexts that a fault in one of them affects directly: those of a slot, or of one SM partition in it."""

    slot: ExecutorSlot
    partition: str = ""


def slot_of(uid: int, device: int, properties: DeviceProperties, partition: str = "") -> ExecutorSlot:
    """Return the slot of a user's contexts on a device.

    Args:
        uid: The client's user; ignored on a device whose users share executors.
        device: The server's ordinal.
        properties: The device's properties, which decide whether users share an executor.
        partition: The client's SM partition that has a separate executor; empty for none.
    """
    return ExecutorSlot(device) if properties.isolates_address_spaces else ExecutorSlot(device, uid, partition)
