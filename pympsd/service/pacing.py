"""Pacing of users' connections and commands, so that no user takes all of the daemon's time.

The daemon handles one thing at a time. Two rules keep other users' share of that time free, whatever a user sends:

- *Turns.* Between two things that the event loop does for others, at most one connection or command of each user
  begins. Without turns a user with fifty connections would get fifty times as many commands as a user with one.
- *Credit.* A user is charged a fixed time for each connection and command, and the processor time that the state
  machine took for it. A user starts with BURST_SECONDS, and regains USER_RATE seconds in each second. A user without
  credit waits until it is positive again. The burst is enough for 1,000 processes of an MPI job that connect
  together.

Pacing refuses nobody: a paced connection stays open and counts in the user's share of connections. A paced command
waits in its connection, and later ones wait in the sender's socket. Root and the daemon's user are never paced.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import trio
from attrs import Factory, define, field

USER_RATE: Final = 0.1
"""The processor time in seconds that a user regains in a second."""
BURST_SECONDS: Final = 2.0
"""The maximum credit: seconds of processor time that a user may take without waiting after sending nothing for a
while.
"""
COMMAND_SECONDS: Final = 0.0003
"""The processor time in seconds to receive a command and send its answer, without the state machine's time."""
CONNECTION_SECONDS: Final = 0.0007
"""The processor time in seconds for a connection's tasks, hello and end, without the state machine's time."""
MIN_WAIT_SECONDS: Final = 0.005
"""The shortest wait of a user without credit."""
MAX_IDLE_USERS: Final = 1024
"""The maximum number of users with full credit that are remembered."""


@define(eq=False)
class _Credit:
    seconds: float
    counted_at: float
    turn: trio.Lock = field(factory=trio.Lock, init=False)

    def refill(self, now: float) -> float:
        """Add the credit that the user has regained, and return the credit in seconds."""
        self.seconds = min(BURST_SECONDS, self.seconds + USER_RATE * (now - self.counted_at))
        self.counted_at = now
        return self.seconds


@define
class Pacing:
    """Makes users wait for their turn and their credit; ``trusted`` users never wait."""

    trusted: frozenset[int]
    clock: Callable[[], float] = trio.current_time
    processor_time: Callable[[], float] = time.thread_time
    _credits: dict[int, _Credit] = field(default=Factory(dict), init=False)

    async def wait(self, uid: int, seconds: float) -> None:
        """Wait until a user's connection or command may begin, and charge ``seconds`` for it in addition to its
        measured time.
        """
        if uid in self.trusted:
            return
        credit = self._credit(uid)
        async with credit.turn:
            while (available := credit.refill(self.clock())) <= 0:
                await trio.sleep(MIN_WAIT_SECONDS - available / USER_RATE)
            credit.seconds -= seconds

    @contextlib.contextmanager
    def charge(self, uid: int) -> Iterator[None]:
        """Charge a user with the processor time that a block takes."""
        if uid in self.trusted:
            yield
            return
        began = self.processor_time()
        try:
            yield
        finally:
            self._credit(uid).seconds -= self.processor_time() - began

    def _credit(self, uid: int) -> _Credit:
        if uid not in self._credits:
            now = self.clock()
            if len(self._credits) >= MAX_IDLE_USERS:
                for idle, credit in list(self._credits.items()):
                    if credit.refill(now) >= BURST_SECONDS and not credit.turn.locked():
                        del self._credits[idle]
            self._credits[uid] = _Credit(BURST_SECONDS, now)
        return self._credits[uid]
