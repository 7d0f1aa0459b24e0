"""The phases of a server's own life, in one table.

A server begins by checking and registering its devices (initializing), and serves clients until it ends. Three things
interrupt that:

- a fatal fault (fault): new clients of the same devices are refused until the clients that the fault affected have
  exited and their executors are replaced; then the server serves again;
- a request to leave (leaving): the server ends with its last client. It continues to contain faults, but does not
  report them, because it does not get new clients;
- the end (ended), from any phase: the process is about to exit, and nothing is freed individually.

    initializing -> serving <-> fault      from serving and fault also to leaving,
                                           from every phase to ended

The daemon has other phases for the same server: `pympsd.state_machine.state.server`.
"""

from enum import Enum
from typing import Final


class ServerPhase(Enum):
    """A phase of the server's life."""

    INITIALIZING = "initializing"
    SERVING = "serving"
    FAULT = "fault"
    """A fatal fault is being contained; new clients are refused until the clients that it affected have exited."""
    LEAVING = "leaving"
    """The server ends with its last client, on request or because a new daemon does not adopt it."""
    ENDED = "ended"


MOVES: Final[dict[ServerPhase, frozenset[ServerPhase]]] = {
    ServerPhase.INITIALIZING: frozenset({ServerPhase.SERVING, ServerPhase.ENDED}),
    ServerPhase.SERVING: frozenset({ServerPhase.FAULT, ServerPhase.LEAVING, ServerPhase.ENDED}),
    ServerPhase.FAULT: frozenset({ServerPhase.SERVING, ServerPhase.LEAVING, ServerPhase.ENDED}),
    ServerPhase.LEAVING: frozenset({ServerPhase.ENDED}),
    ServerPhase.ENDED: frozenset(),
}
"""The phases that may follow each phase; `pympsd.vocabulary.phases.move` refuses all other moves."""
