"""The interfaces of operators' sessions and of sockets for the dispatcher, and the admission of a client."""

from __future__ import annotations

from typing import Protocol

from attrs import field, frozen

from pympsd.state_machine.state.client import ClientProcess
from pympsd.vocabulary.answers import Answer
from pympsd.vocabulary.limit_table import ClientLimits


@frozen
class Admission:
    """What a server is sent with a new client; ``pidfd`` is a copy for the server, -1: none."""

    client: int
    process: ClientProcess
    priority: int
    environment: dict[str, str] = field(factory=dict)
    pidfd: int = -1
    limits: ClientLimits | None = None


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
