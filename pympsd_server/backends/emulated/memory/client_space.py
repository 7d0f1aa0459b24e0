"""The memory of client processes on one device: address spaces, the memory that calls may access, and budgets.

From Volta on every client process has an address space of its own, which all its contexts share. Before Volta, or if
the machine's description asks for it, all clients of an executor share one. Their kernels can access all of it, but
their calls only their own allocations.
"""

from collections.abc import Mapping
from threading import Lock

from attrs import define, field

from pympsd.channel.descriptors import explain
from pympsd.vocabulary.device_properties import VIRTUAL_OFFSET, WINDOW_BITS, DeviceProperties
from pympsd.vocabulary.limits import Quota
from pympsd.vocabulary.results import Result
from pympsd_server.backends.budget import ClientBudget, DeviceBudget
from pympsd_server.backends.emulated.memory.address_space import AccessibleMemory, AddressSpace
from pympsd_server.backends.emulated.memory.virtual_memory import Exports, Mappings
from pympsd_server.backends.emulated.memory.window import ReserveRefused
from pympsd_server.backends.interface import BackendError
from pympsd_server.backends.virtual_memory import File
from pympsd_server.ptx.isa.faults import IllegalAddress


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
    """One client process on the device. Kernels look addresses up without the lock, in a snapshot."""

    reserved: _Reserved
    budget: ClientBudget
    owned: OwnedMemory | None
    """The client's part of a shared space; None if the client does not share a space."""
    exports: Exports
    user: int = 0
    """The user ID of the process."""
    mappings: Mappings = field(init=False)
    contexts: int = field(default=0, init=False)
    memories: int = field(default=0, init=False)
    """The number of pieces of memory without an address that the client's contexts have created and not freed."""

    def __attrs_post_init__(self) -> None:
        self.mappings = Mappings.of(self.space)

    @property
    def space(self) -> AddressSpace:
        """The memory that the client's kernels can access."""
        return self.reserved.space

    @property
    def accessible(self) -> AccessibleMemory:
        """The memory that the client's calls can access."""
        return self.reserved.space if self.owned is None else self.owned

    @property
    def lock(self) -> Lock:
        """The lock for changes of the space or the budget."""
        return self.reserved.lock

    def own(self, address: int) -> None:
        """Note that an allocation belongs to this client."""
        if self.owned is not None:
            self.owned.starts.add(address)

    def disown(self, address: int) -> None:
        """Drop an allocation that is about to be freed."""
        if self.owned is not None:
            self.owned.starts.discard(address)


class HostMemory:
    """Host memory of clients, which is in their address spaces as long as they have contexts. Its owner locks it."""

    def __init__(self, clients: Mapping[int, ClientSpace]) -> None:
        self._clients = clients
        self._pieces: dict[int, dict[int, tuple[memoryview, File]]] = {}
        """The pieces of each client by address."""

    def add(self, key: int, address: int, memory: memoryview, file: File) -> None:
        """Add memory of a client; raise BackendError OUT_OF_MEMORY if it cannot be mapped."""
        client = self._clients.get(key)
        if client is not None:
            try:
                _attach(client, address, memory, file)
            except OSError as error:
                raise _not_mapped(memory.nbytes, error) from None
        self._pieces.setdefault(key, {})[address] = memory, file

    def remove(self, key: int, address: int) -> None:
        """Remove memory of a client."""
        pieces, client = self._pieces[key], self._clients.get(key)
        del pieces[address]
        if not pieces:
            del self._pieces[key]
        if client is not None:
            _detach(client, address)

    def attach_all(self, key: int) -> None:
        """Map all host memory of a client into its new address space, or nothing.

        Raises:
            BackendError: OUT_OF_MEMORY if not all can be mapped.
        """
        client, attached = self._clients[key], list[int]()
        for address, (memory, file) in self._pieces.get(key, {}).items():
            try:
                _attach(client, address, memory, file)
            except OSError as error:
                for attached_address in attached:
                    _detach(client, attached_address)
                raise _not_mapped(memory.nbytes, error) from None
            attached.append(address)

    def detach_all(self, key: int) -> None:
        """Remove all host memory of a client from its address space, before the client leaves it."""
        for address in self._pieces.get(key, ()):
            _detach(self._clients[key], address)


def _not_mapped(count: int, error: OSError) -> BackendError:
    reason = f"cannot map {count} bytes of host memory for kernels: {error.strerror}"
    return BackendError(Result.ERROR_OUT_OF_MEMORY, reason)


def _attach(client: ClientSpace, address: int, memory: memoryview, file: File) -> None:
    with client.lock:
        client.space.attach(address, memory, file)
        client.own(address)


def _detach(client: ClientSpace, address: int) -> None:
    with client.lock:
        client.disown(address)
        client.space.detach(address)


class ClientSpaces:
    """The clients of one device, by the key of their address space. Its owner locks it."""

    def __init__(self, properties: DeviceProperties, base: int, device: DeviceBudget) -> None:
        self._properties = properties
        self._base = base
        self._device = device
        self._allocatable = min(VIRTUAL_OFFSET, 2 * properties.memory_bytes)
        self._clients: dict[int, ClientSpace] = {}
        self._exports = Exports()
        self.host_memory = HostMemory(self._clients)
        self._shared: _Reserved | None = None
        """The space that all clients share, while any client exists; None otherwise."""

    def find(self, key: int, quota: Quota) -> ClientSpace:
        """Return a client. If it is new, make it with the limits of this quota; `enter` adds it."""
        client = self._clients.get(key)
        if client is not None:
            return client
        limit, groups = (quota.memory_bytes, quota.groups) if self._properties.is_volta_or_newer else (0, ())
        audited = key if quota.audited else 0
        budget = ClientBudget(self._device, limit, self._device.groups(groups, key), audited)
        if self._properties.isolates_address_spaces:
            return ClientSpace(self._reserve(), budget, None, self._exports, quota.user)
        reserved = self._shared or self._reserve()
        return ClientSpace(reserved, budget, OwnedMemory(reserved.space), self._exports, quota.user)

    def _reserve(self) -> _Reserved:
        # Addresses for twice the memory, so that gaps never make memory unusable.
        try:
            return _Reserved(AddressSpace(self._base, self._allocatable, 1 << WINDOW_BITS))
        except ReserveRefused as error:
            raise BackendError(Result.ERROR_OUT_OF_MEMORY, str(error)) from None
        except OSError as error:
            reason = f"no file for the memory of a client: {explain(error)}"
            raise BackendError(Result.ERROR_OPERATING_SYSTEM, reason) from None

    def enter(self, key: int, client: ClientSpace) -> None:
        """Count one more context of a client, or raise BackendError OUT_OF_MEMORY and do not count it."""
        if not client.contexts:
            self._clients[key] = client
            client.reserved.clients += 1
            if client.owned is not None:
                self._shared = client.reserved
            try:
                self.host_memory.attach_all(key)
            except BackendError:
                self._drop(key, client)
                raise
        client.contexts += 1

    def usage(self) -> dict[int, int]:
        """Return the bytes each client holds, by the key of its address space."""
        return {key: client.budget.used for key, client in self._clients.items()}

    def leave(self, key: int) -> None:
        """Note that a context of a client has ended.

        After its last context, drop the client, and also its address space unless other clients share that.
        """
        client = self._clients[key]
        client.contexts -= 1
        if client.contexts:
            return
        self.host_memory.detach_all(key)
        self._drop(key, client)

    def _drop(self, key: int, client: ClientSpace) -> None:
        del self._clients[key]
        client.reserved.clients -= 1
        if not client.reserved.clients:
            self._shared = None
            with client.lock:  # another thread may be freeing memory that the client has shared
                client.space.close()
