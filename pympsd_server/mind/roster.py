"""Who is here: client processes, their contexts, and the numbers both are known by."""

from __future__ import annotations

from attrs import define, field, frozen

from pympsd.vocabulary.identities import Serials


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


@define
class Client:
    """A client process with its contexts by serial."""

    serial: int
    pid: int
    priority: int
    environment: dict[str, str]
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
    """All clients of a server, by serial."""

    clients: dict[int, Client] = field(factory=dict)
    _serials: Serials = field(factory=Serials, init=False)

    def arrive(self, serial: int, pid: int, priority: int, environment: dict[str, str]) -> Client:
        """Take a client in."""
        client = Client(serial, pid, priority, environment)
        self.clients[serial] = client
        return client

    def open_context(self, client: Client, device: int, generation: int) -> Context:
        """Number a new context of a client."""
        client.made += 1
        context = Context(self._serials.take(), client.made, device, client.serial, generation)
        client.contexts[context.serial] = context
        return context

    def close_context(self, client: Client, serial: int) -> Context:
        """Forget a context; raise NotHere when the client has no such context."""
        if serial not in client.contexts:
            raise NotHere(serial)
        return client.contexts.pop(serial)

    def leave(self, serial: int) -> Client:
        """Forget a client; its contexts are still listed in what is returned."""
        return self.clients.pop(serial)

    @property
    def workers(self) -> int:
        """How many worker threads the vendor's server would have: one a client process and one a context."""
        return sum(1 + len(client.contexts) for client in self.clients.values())
