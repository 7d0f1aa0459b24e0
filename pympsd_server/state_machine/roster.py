"""Who is here: client processes, their contexts, and the numbers both are known by."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.vocabulary.device_facts import DeviceFacts
from pympsd.vocabulary.identities import Serials
from pympsd_server.state_machine.connections import Pool
from pympsd_server.state_machine.executor_slots import EVERYBODY, Place


class NotHere(KeyError):
    """No such client or context."""


@frozen
class Context:
    """A client context. ``serial`` counts the server's contexts, ``number`` the process's own, from 1."""

    serial: int
    number: int
    device: int
    client: int
    generation: int
    """Of the executor that runs it."""
    user: int = EVERYBODY
    """The user whose clients that executor is for."""

    @property
    def place(self) -> Place:
        """Where it runs."""
        return Place(self.device, self.user)


@define
class Client:
    """A client process with its contexts by serial."""

    serial: int
    pid: int
    priority: int
    environment: dict[str, str]
    uid: int = 0
    contexts: dict[int, Context] = field(factory=dict)
    made: int = 0
    """How many contexts it ever made."""
    terminated: set[int] = field(factory=set)
    """Serials of its contexts that an operator ended; they stay until the process closes them."""

    def active_contexts(self) -> list[Context]:
        """Return the contexts that were not terminated."""
        return [context for serial, context in self.contexts.items() if serial not in self.terminated]


@define
class Roster:
    """All clients of a server, by serial, and the connections of its devices, by ordinal."""

    clients: dict[int, Client] = field(factory=dict)
    pools: dict[int, Pool] = field(factory=dict)
    _serials: Serials = field(factory=Serials, init=False)

    @classmethod
    def of(cls, devices: tuple[DeviceFacts, ...]) -> Roster:
        """Return the roster of a server that nobody has come to yet."""
        return cls(pools={ordinal: Pool.of(device) for ordinal, device in enumerate(devices)})

    def arrive(self, serial: int, pid: int, priority: int, environment: dict[str, str], uid: int = 0) -> Client:
        """Take a client in."""
        client = Client(serial, pid, priority, environment, uid)
        self.clients[serial] = client
        return client

    def open_context(
        self, client: Client, device: int, generation: int, slots: int = 1, user: int = EVERYBODY
    ) -> Context:
        """Number a new context of a client and give it its slots; raise PoolExhausted, which takes no number."""
        pool = self.pools.setdefault(device, Pool())
        pool.check(slots)
        client.made += 1
        context = Context(self._serials.take(), client.made, device, client.serial, generation, user)
        pool.take(context.serial, slots)
        client.contexts[context.serial] = context
        return context

    def stopped(self, client: Client, context: Context) -> None:
        """An operator has ended a context: it stays until its process closes it, but takes no connection any more."""
        client.terminated.add(context.serial)
        self.pools[context.device].give_back(context.serial)

    def context_of(self, client: Client, serial: int) -> Context:
        """Return a client's context; raise NotHere when it has no such context."""
        if serial not in client.contexts:
            raise NotHere(serial)
        return client.contexts[serial]

    def close_context(self, client: Client, serial: int) -> Context:
        """Forget a context, whose slots are free now; raise NotHere when the client has no such context."""
        context = self.context_of(client, serial)
        self.pools[context.device].give_back(serial)
        return client.contexts.pop(serial)

    def leave(self, serial: int) -> Client:
        """Forget a client; its contexts, whose slots are free now, are still listed in what is returned."""
        client = self.clients.pop(serial)
        for context in client.contexts.values():
            self.pools[context.device].give_back(context.serial)
        return client

    def contexts_at(self, place: Place) -> list[Context]:
        """Return the contexts of all clients that run at a place, also those that are being opened."""
        return [
            context
            for client in self.clients.values()
            for context in client.contexts.values()
            if context.place == place
        ]

    @property
    def workers(self) -> int:
        """How many worker threads the vendor's server would have: one a client process and one a context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())
