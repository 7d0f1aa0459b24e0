"""The memory of client processes on one device: their address spaces, what calls may access, their budgets.

From Volta on every client process has an address space of its own, which all its contexts share. Before, and where
the machine says so, all clients of an executor share one: their kernels can access all of it, their calls only their
own allocations.
"""

from __future__ import annotations

from threading import Lock

from attrs import define, field

from pympsd.vocabulary.device_facts import WINDOW_BITS, DeviceFacts
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import ClientBudget, DeviceBudget
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory, AddressSpace, ReserveRefused
from pympsd_server.backends.emulated.ptx.faults import IllegalAddress
from pympsd_server.backends.interface import BackendError


class OwnedMemory(AccessibleMemory):
    """The allocations of one client in a space that it shares with others."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        self.starts: set[int] = set()

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return the bytes themselves. Raises IllegalAddress unless all lie in one allocation of this client."""
        start, _ = self._space.find(address)
        if start not in self.starts:
            raise IllegalAddress(f"address {address:#x} is in no allocation of this client")
        return self._space.view(address, nbytes)


@define(eq=False)
class _Reserved:
    """An address space, the lock for its changes, and the number of its clients."""

    space: AddressSpace
    lock: Lock = field(factory=Lock, init=False)
    clients: int = field(default=0, init=False)


@define(eq=False)
class ClientSpace:
    """One client process on the device. Kernels look addresses up without the lock: they see one snapshot."""

    reserved: _Reserved
    budget: ClientBudget
    owned: OwnedMemory | None
    """None if the whole space is this client's."""
    contexts: int = field(default=0, init=False)

    @property
    def space(self) -> AddressSpace:
        """The memory that its kernels can access."""
        return self.reserved.space

    @property
    def accessible(self) -> AccessibleMemory:
        """The memory that its calls can access."""
        return self.reserved.space if self.owned is None else self.owned

    @property
    def lock(self) -> Lock:
        """Held while the space or the budget is changed."""
        return self.reserved.lock

    def own(self, address: int) -> None:
        """Note an allocation as this client's."""
        if self.owned is not None:
            self.owned.starts.add(address)

    def disown(self, address: int) -> None:
        """Drop an allocation that is about to be freed."""
        if self.owned is not None:
            self.owned.starts.discard(address)


class ClientSpaces:
    """The clients of one device, by the key of their address space. Its owner locks it."""

    def __init__(self, facts: DeviceFacts, base: int, device: DeviceBudget) -> None:
        self._facts = facts
        self._base = base
        self._device = device
        self._clients: dict[int, ClientSpace] = {}
        self._shared: _Reserved | None = None
        """The one space of all clients, if they share one and while there are any."""

    def of(self, key: int, limit: int) -> ClientSpace:
        """Return a client; a new one, not yet entered, gets this limit in bytes (0: none)."""
        known = self._clients.get(key)
        if known is not None:
            return known
        budget = ClientBudget(self._device, limit if self._facts.is_volta_or_newer else 0)
        if self._facts.isolates_address_spaces:
            return ClientSpace(self._reserve(), budget, None)
        reserved = self._shared or self._reserve()
        return ClientSpace(reserved, budget, OwnedMemory(reserved.space))

    def _reserve(self) -> _Reserved:
        # Twice the memory, so that gaps never make memory unusable.
        try:
            return _Reserved(AddressSpace(self._base, min(1 << WINDOW_BITS, 2 * self._facts.memory_bytes)))
        except ReserveRefused as error:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None

    def enter(self, key: int, client: ClientSpace) -> None:
        """Count one more context of a client."""
        if not client.contexts:
            self._clients[key] = client
            client.reserved.clients += 1
            if client.owned is not None:
                self._shared = client.reserved
        client.contexts += 1

    def used(self) -> dict[int, int]:
        """Return the bytes each client holds, by the key of its address space."""
        return {key: client.budget.used for key, client in self._clients.items()}

    def leave(self, key: int) -> None:
        """Count one context less; drop a client with its last one, and its space unless others share it."""
        client = self._clients[key]
        client.contexts -= 1
        if client.contexts:
            return
        del self._clients[key]
        client.reserved.clients -= 1
        if not client.reserved.clients:
            self._shared = None
            client.space.close()
