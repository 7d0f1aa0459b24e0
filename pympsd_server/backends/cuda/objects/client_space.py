"""One client process on the device: its budget, the memory its calls may access, its registered mappings."""

from threading import Lock

from attrs import define, field

from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import ClientBudget, round_up_to_granules
from pympsd_server.backends.cuda.memory.address_ranges import OwnedRanges
from pympsd_server.backends.cuda.memory.deferred_free import DeferredFree
from pympsd_server.backends.cuda.memory.deferred_release import ClientMappings
from pympsd_server.backends.cuda.memory.device_memory import DeviceMemory
from pympsd_server.backends.interface import BackendError

_MAX_ADDRESS = 1 << 63


@define(eq=False)
class ClientSpace:
    """The state that one client's contexts share. Hold ``lock`` to change the budget or the owned ranges."""

    memory: DeviceMemory
    budget: ClientBudget
    mappings: ClientMappings
    deferred_free: DeferredFree
    lock: Lock = field(factory=Lock, init=False)
    _owned: OwnedRanges = field(factory=OwnedRanges, init=False)

    def take(self, count: int, what: str) -> None:
        """Charge bytes, or raise BackendError OUT_OF_MEMORY."""
        with self.lock:
            self.budget.take(count, what)

    def give(self, count: int) -> None:
        """Release bytes that were charged."""
        with self.lock:
            self.budget.give(count)

    def allocate(self, count: int) -> int:
        """Return the address of new memory, or raise BackendError OUT_OF_MEMORY."""
        self.take(round_up_to_granules(count), "an allocation")
        try:
            address = self.memory.allocate(count)
        except BaseException:
            self.give(round_up_to_granules(count))
            raise
        self.own(address, count)
        return address

    def free(self, address: int, count: int) -> None:
        """Free an allocation."""
        self.disown(address)
        self.memory.free(address)
        self.give(round_up_to_granules(count))

    def own(self, address: int, count: int) -> None:
        """Let the client's calls access a range."""
        with self.lock:
            self._owned.add(address, count)

    def disown(self, address: int) -> None:
        """Stop the client's calls from accessing the range that begins at an address, if there is one."""
        with self.lock:
            self._owned.remove(address)

    def check(self, address: int, count: int) -> None:
        """Raise BackendError INVALID_VALUE unless all ``count`` bytes are in one range of the client's."""
        if not count:
            return
        with self.lock:
            if 0 < count < _MAX_ADDRESS and self._owned.covers(address, count):
                return
        reason = f"address {address:#x}, {count} bytes: in no allocation of this client"
        raise BackendError(Result.ERROR_INVALID_VALUE, reason)
