"""The interfaces of operators' sessions and of sockets for the dispatcher, and the admission of a client."""

from __future__ import annotations

from typing import Protocol

from attrs import field, frozen

from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.identities import Peer
from pympsd.vocabulary.limit_table import ClientLimits


@frozen
class Admission:
    """What a server is sent with a new client; ``pidfd`` is a copy for the server, -1: none."""

    client: int
    peer: Peer
    command: str
    namespace: int
    priority: int
    environment: dict[str, str] = field(factory=dict)
    pidfd: int = -1
    limits: ClientLimits | None = None
    since: float = 0.0
    """When the client connected, in seconds since 1970."""


class ConnectedOperator(Protocol):
    """An operator's session (sessions.operator, sessions.driver.tool)."""

    def working(self) -> None: ...
    def note(self, text: str) -> None: ...
    def answer(self, answer: Answer) -> None: ...
    async def drain(self) -> None: ...


class Sockets(Protocol):
    """The sockets of servers and namespaces (namespace_sockets)."""

    def open(self, server: str, namespace: str, uid: int) -> str: ...
    def close(self, server: str, namespace: str) -> None: ...
    def look(self) -> None: ...
