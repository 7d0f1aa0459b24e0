"""The phases of a server's own life, in one table.

A server begins by checking and registering its devices (initializing), and serves clients until it ends. Three things
interrupt that:

- a fatal fault: until the clients that it reached have exited and their executors are replaced, new clients of the
  same devices are refused (fault), then the server serves again;
- a request to leave: the server ends with its last client (leaving). It still contains faults then, but reports none,
  because it gets no new clients;
- the end (ended), from any phase: the process is about to exit, and nothing is freed one by one any more.

    initializing -> serving <-> fault      from serving and fault also to leaving,
                                           from every phase to ended

The daemon sees the same server with other phases: `pympsd.state_machine.state.server`.
"""

from enum import Enum
from typing import Final


class ServerPhase(Enum):
    """A phase of the server's life."""

    INITIALIZING = "initializing"
    SERVING = "serving"
    FAULT = "fault"
    """A fatal fault is being contained: new clients are refused until the ones that it reached have exited."""
    LEAVING = "leaving"
    """The server ends with its last client, on request or because a new daemon does not take it over."""
    ENDED = "ended"


MOVES: Final[dict[ServerPhase, frozenset[ServerPhase]]] = {
    ServerPhase.INITIALIZING: frozenset({ServerPhase.SERVING, ServerPhase.ENDED}),
    ServerPhase.SERVING: frozenset({ServerPhase.FAULT, ServerPhase.LEAVING, ServerPhase.ENDED}),
    ServerPhase.FAULT: frozenset({ServerPhase.SERVING, ServerPhase.LEAVING, ServerPhase.ENDED}),
    ServerPhase.LEAVING: frozenset({ServerPhase.ENDED}),
    ServerPhase.ENDED: frozenset(),
}
"""The phases that may follow each phase; `pympsd.vocabulary.phases.move` refuses all others."""
