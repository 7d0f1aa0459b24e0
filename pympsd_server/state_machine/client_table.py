"""The server's client processes and their contexts, by their numbers."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.errors import InternalError
from pympsd.vocabulary.device_properties import DeviceProperties
from pympsd.vocabulary.identities import Ids
from pympsd.vocabulary.limits import MemoryGroup
from pympsd_server.state_machine.connections import ConnectionPool
from pympsd_server.state_machine.executor_slots import ALL_USERS, ExecutorSlot, FaultDomain


class NoSuchContext(InternalError, KeyError):
    """The client has no such context.

    Its argument is the context's id: unknown, closed already, or of another client.
    """


@frozen
class ContextRecord:
    """A client context; ``id`` counts the server's contexts, ``number`` those of the process, from 1.

    ``device`` is the server's ordinal, ``client`` the id of its client. Logs show ``number``; messages and records
    carry ``id``, which is never used again.
    """

    id: int
    number: int
    device: int
    client: int
    generation: int
    """The generation of its executor."""
    user: int = ALL_USERS
    """The user of that executor's slot."""
    partition: str = ""
    """The SM partition that its faults stay in; empty: they reach all of the slot."""
    has_executor: bool = False
    """Whether the partition has a separate executor."""

    @property
    def fault_domain(self) -> FaultDomain:
        """The domain that its faults reach first.

        If its partition has an executor of its own, the slot is that executor, and there is nothing smaller in it.
        """
        return FaultDomain(self.slot, "" if self.has_executor else self.partition)

    @property
    def slot(self) -> ExecutorSlot:
        """The slot whose executor runs it."""
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
    """The number of contexts that it has opened."""
    terminated: set[int] = field(factory=set)
    """Ids of contexts that an operator terminated; they stay until the process closes them."""
    groups: dict[int, tuple[MemoryGroup, ...]] = field(factory=dict)
    """Limits of memory that it shares with other clients, by device ordinal."""
    audited: bool = False
    """Whether the memory that it takes and returns is logged."""
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
            pid: 0 if the process cannot be seen from the server.
            priority: 0 (normal) or 1 (below normal).
            environment: Its CUDA variables, which later contexts are opened by.
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
        """Number a new context and give it connection slots; a PoolExhausted takes no number.

        Args:
            client: The client that opens it.
            device: The server's ordinal.
            generation: The generation of the executor that runs it; a later executor of the slot has a higher one.
            slots: Connection slots, as `connection_slots` returns them.
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
        """Mark a context terminated: it stays until its process closes it, but frees its connections."""
        client.terminated.add(context.id)
        self.pools[context.device].release(context.id)

    def context_of(self, client: ClientRecord, context_id: int) -> ContextRecord:
        """Return a client's context; raise NoSuchContext."""
        if context_id not in client.contexts:
            raise NoSuchContext(context_id)
        return client.contexts[context_id]

    def close_context(self, client: ClientRecord, context_id: int) -> ContextRecord:
        """Remove and return a context, freeing its connections; raise NoSuchContext."""
        context = self.context_of(client, context_id)
        self.pools[context.device].release(context_id)
        return client.contexts.pop(context_id)

    def remove_client(self, client_id: int) -> ClientRecord:
        """Remove and return a client, still with its contexts, whose connections are freed.

        Raises KeyError for an unknown id. The caller drops the contexts at their executors.
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
        """The number of the vendor's worker threads: one per client process and one per context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())
