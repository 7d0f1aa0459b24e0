"""Limit the rates of actions that others can cause any number of times, such as log lines."""

from collections.abc import Sequence
from typing import Final

from attrs import define

from pympsd.state_machine.events import ClientConnected, Event, NamespaceLost, NamespaceOpened, OperatorLine
from pympsd.state_machine.state.daemon import Daemon

LINE_BYTES: Final = 200
"""The length in bytes up to which a line counts as one; a longer one counts as several."""
_COMMAND_LINES: Final = frozenset({"command", "answer"})
"""The log events that any user may cause with a command."""
CONNECT_LINES: Final = frozenset(
    {
        "client_server_exists",
        "client_pending",
        "turn_pending",
        "client_held",
        "debugged_pending",
        "debugged_without_mps",
    }
)
"""The log events that any user may cause by connecting as a client."""
_SOCKET_LINES: Final = frozenset({"namespace_lost", "namespace_not_opened"})
"""The log events that a server's user may cause by removing files from the server's directories."""


def lines_to_limit(event: Event, state: Daemon) -> tuple[int, frozenset[str]]:
    """Return the user who causes an event, and the names of the event's log lines that are limited."""
    match event:
        case OperatorLine():
            return event.uid, _COMMAND_LINES
        case ClientConnected():
            return event.process.peer.uid, CONNECT_LINES
        case NamespaceLost(server) | NamespaceOpened(server) if server in state.named_servers:
            return state.named_servers[server].uid, _SOCKET_LINES
        case _:
            return 0, frozenset()


def cost_of(texts: Sequence[str]) -> int:
    """Return how many lines the texts count as."""
    return sum(1 + len(text) // LINE_BYTES for text in texts)


@define
class RateLimit:
    """Grants up to ``per_second`` units in each second of the caller's clock.

    >>> limit = RateLimit(2)
    >>> limit.take(5, now=10.0), limit.take(1, now=10.5), limit.take(1, now=11.0)
    (2, 0, 1)
    """

    per_second: int
    _second: float = 0.0
    _taken: int = 0

    def take(self, count: int, now: float) -> int:
        """Return how many of ``count`` units are granted now."""
        if now - self._second >= 1:
            self._second, self._taken = now, 0
        granted = min(count, self.per_second - self._taken)
        self._taken += granted
        return granted

    def resets_at(self) -> float:
        """Return the time at which the full amount is available again."""
        return self._second + 1
