"""Memory that clients lack though they are within their soft limits: the owner ends others, and they try again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from attrs import define, field

from pympsd.wire.executor_messages import MemoryShort, RoomMade
from pympsd_server.backends.budget import Shortage

MOST_TRIES: Final = 3
"""Others may take the memory that was freed for a client: the owner is asked this often."""
_Taken = TypeVar("_Taken")


@define
class _Waiting:
    """A client's worker that waits for the owner's answer."""

    client: int
    answered: threading.Event = field(factory=threading.Event, init=False)
    freed: bool = field(default=False, init=False)


class Shortages:
    """Used by the clients' workers, which wait in it; the owner's thread passes on the answers."""

    def __init__(self, report: Callable[[], None], send: Callable[[object], None]) -> None:
        """``report`` reports to the owner what clients hold now."""
        self.report, self._send = report, send
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}

    def with_room(self, client: int, take: Callable[[], _Taken]) -> _Taken:
        """Call ``take`` for a client; while it raises Shortage, have room made and call it again."""
        for _ in range(MOST_TRIES):
            try:
                return take()
            except Shortage as shortage:
                if not self._ask(client, shortage):
                    raise
        return take()

    def _ask(self, client: int, shortage: Shortage) -> bool:
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting(client)
        self.report()
        self._send(MemoryShort(number, client, shortage.short))
        # The owner answers always: its end is this process's.
        waiting.answered.wait()
        del self._waiting[number]
        return waiting.freed

    def answered(self, answer: RoomMade) -> None:
        """Let a worker go on."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting.freed = answer.freed
            waiting.answered.set()

    def client_left(self, client: int) -> None:
        """Let a client's worker go on, with its error."""
        for waiting in tuple(self._waiting.values()):
            if waiting.client == client:
                waiting.answered.set()
