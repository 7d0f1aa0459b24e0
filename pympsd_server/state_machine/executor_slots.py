"""Where contexts run: an executor's place, a device and the user it is for. Pure.

Users never share an address space (docs/decisions/006): where the clients of one executor do, each user has one of
his own. Without -multiuser-server all clients are one user's, so there is one executor a device in any case.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.vocabulary.device_facts import DeviceFacts

EVERYBODY: Final = -1
"""Instead of a user: the executor is for the clients of all."""


@frozen(order=True)
class Place:
    """One executor at a time has it; ``device`` is the ordinal among the server's."""

    device: int
    user: int = EVERYBODY

    def is_for(self, uid: int) -> bool:
        """Whether clients of a user have their contexts here."""
        return self.user in (EVERYBODY, uid)


def place_of(uid: int, device: int, facts: DeviceFacts) -> Place:
    """Return the place of a user's contexts on a device."""
    return Place(device, EVERYBODY if facts.isolates_address_spaces else uid)
