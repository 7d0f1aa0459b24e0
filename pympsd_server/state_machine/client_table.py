"""The table of the server's client processes and their contexts."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.errors import InternalError
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.identities import Ids
from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.state_machine.connections import ConnectionPool
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot, FaultDomain


class NoSuchContext(InternalError, KeyError):
    """The client does not have the context.

    The argument is the context's id, which is unknown, of a closed context, or of another client's context.
    """


@frozen
class ContextRecord:
    """A client context; ``id`` counts the server's contexts, ``number`` the process's contexts from 1.

    ``device`` is the server's ordinal, ``client`` the client's id. Logs show ``number``; messages and records contain
    ``id``, which is never used again.
    """

    id: int
    number: int
    device: int
    client: int
    generation: int
    """The generation of the context's executor."""
    user: int = ALL_USERS
    """The user of the executor's slot."""
    partition: str = ""
    """The SM partition within which the context's faults stay; empty if they affect all contexts of the slot."""
    has_executor: bool = False
    """Whether the partition has a separate executor."""

    @property
    def fault_domain(self) -> FaultDomain:
        """The domain that the context's faults affect directly.

        If the partition has a separate executor, that is the whole slot.
        """
        return FaultDomain(self.slot, "" if self.has_executor else self.partition)

    @property
    def slot(self) -> ExecutorSlot:
        """The slot whose executor runs the context."""
        return ExecutorSlot(self.device, self.user, self.partition if self.has_executor else "")


@define
class ClientRecord:
    """A client process with its contexts by id."""

    id: int
    pid: int
    priority: int
    environment: dict[str, str]
    uid: int = 0
    contexts: dict[int, ContextRecord] = field(factory=dict)
    contexts_made: int = 0
    """The number of contexts that the client has opened."""
    terminated: set[int] = field(factory=set)
    """The ids of contexts that an operator terminated, which exist until the process closes them."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """The memory limits that the client shares with other clients, by device ordinal."""
    audited: bool = False
    """Whether the client's allocations and releases of memory are logged."""
    namespace: str = ""
    partitions: dict[int, str] = field(factory=dict)
    """The client's SM partitions that have separate executors, by device ordinal."""

    def active_contexts(self) -> list[ContextRecord]:
        """Return the contexts that were not terminated."""
        return [context for context_id, context in self.contexts.items() if context_id not in self.terminated]


@define
class ClientTable:
    """All clients of a server, by id, and the connections of its devices, by ordinal.

    Sans-I/O: sessions change it when clients connect, open contexts and leave. A device gets its pool of connections
    with its first context, or from `of`.
    """

    clients: dict[int, ClientRecord] = field(factory=dict)
    pools: dict[int, ConnectionPool] = field(factory=dict)
    _ids: Ids = field(factory=Ids, init=False)

    @classmethod
    def of(cls, devices: tuple[DeviceProperties, ...]) -> ClientTable:
        """Return an empty client table for devices."""
        return cls(pools={ordinal: ConnectionPool.of(device) for ordinal, device in enumerate(devices)})

    def add_client(
        self, client_id: int, pid: int, priority: int, environment: dict[str, str], uid: int = 0
    ) -> ClientRecord:
        """Add a client.

        Args:
            client_id: The daemon's id of the client.
            pid: The client's PID; 0 if the process is not visible from the server.
            priority: 0 (normal) or 1 (below normal).
            environment: The client's CUDA variables, which also apply to later contexts.
            uid: The user of the process.
        """
        client = ClientRecord(client_id, pid, priority, environment, uid)
        self.clients[client_id] = client
        return client

    def open_context(
        self,
        client: ClientRecord,
        device: int,
        generation: int,
        slots: int = 1,
        user: int = ALL_USERS,
        partition: str = "",
        has_executor: bool = False,
    ) -> ContextRecord:
        """Add a new context with a number and connection slots, and return it.

        Args:
            client: The client that opens it.
            device: The server's ordinal.
            generation: The generation of the executor that runs it; later executors have higher generations.
            slots: The number of connection slots, as `connection_slots` returns it.
            user: The user whose executor runs it; ALL_USERS if users share executors.
            partition: The SM partition; empty for none.
            has_executor: Whether that partition has an executor of its own.

        Raises:
            PoolExhausted: The device has too few free slots (`DeviceProperties.max_contexts`); nothing has changed.
        """
        pool = self.pools.setdefault(device, ConnectionPool())
        pool.check(slots)
        client.contexts_made += 1
        numbers = self._ids.take(), client.contexts_made, device, client.id, generation
        context = ContextRecord(*numbers, user, partition, has_executor)
        pool.take(context.id, slots)
        client.contexts[context.id] = context
        return context

    def mark_terminated(self, client: ClientRecord, context: ContextRecord) -> None:
        """Mark a context as terminated: it exists until its process closes it, but its connections are freed."""
        client.terminated.add(context.id)
        self.pools[context.device].release(context.id)

    def context_of(self, client: ClientRecord, context_id: int) -> ContextRecord:
        """Return a client's context; raise NoSuchContext."""
        if context_id not in client.contexts:
            raise NoSuchContext(context_id)
        return client.contexts[context_id]

    def close_context(self, client: ClientRecord, context_id: int) -> ContextRecord:
        """Remove a context, free its connections, and return it; raise NoSuchContext."""
        context = self.context_of(client, context_id)
        self.pools[context.device].release(context_id)
        return client.contexts.pop(context_id)

    def remove_client(self, client_id: int) -> ClientRecord:
        """Remove a client, free the connections of its contexts, and return it with its contexts.

        Raise KeyError for an unknown id. The caller must drop the contexts at their executors.
        """
        client = self.clients.pop(client_id)
        for context in client.contexts.values():
            self.pools[context.device].release(context.id)
        return client

    def contexts_in(self, slot: ExecutorSlot) -> list[ContextRecord]:
        """Return the contexts of all clients in a slot, including those that are being opened."""
        return [
            context
            for client in self.clients.values()
            for context in client.contexts.values()
            if context.slot == slot
        ]

    @property
    def workers(self) -> int:
        """The number of worker threads of the vendor's server: one per client process and one per context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())
