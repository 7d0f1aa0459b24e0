"""The interfaces of operators' sessions and of sockets for the dispatcher."""

from __future__ import annotations

from typing import Protocol

from pympsd.vocabulary.answers import Answer


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
