"""The last refusals of clients, with their reasons, for the users whose clients were refused.

The driver's wire protocol cannot carry a reason: libcuda returns CUDA_ERROR_MPS_CONNECTION_FAILED, and its user may
not read control.log. So the daemon keeps the last refusals, a few of each user, for the query ``get_refusal_list``.
``pympsd-run`` asks it with PYMPSD_EXPLAIN=1 when the program has ended: it puts an id of the run into the environment
of the program and its children, and finds their refusals by that id, even after the processes have ended.

Invariants: one user's refusals never replace another's; there are at most MAX_USERS * MAX_OF_USER of them; a user
sees only its own. They are not kept for the next daemon.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

from attrs import define, field, frozen

MAX_OF_USER: Final = 16
"""The number of refusals that are kept for each user, the latest ones."""
MAX_USERS: Final = 256
"""The number of users whose refusals are kept, those with the latest refusals."""
MAX_REASON: Final = 1000
"""The number of characters of a reason that are kept."""


@frozen
class RefusedClient:
    """A refused client, as get_refusal_list lists it."""

    pid: int
    """The client's PID; 0 if it is not visible to the daemon."""
    uid: int
    at: float
    """The time of the refusal, in seconds since 1970."""
    call: str
    """The driver function that fails in the client."""
    code: int
    """The CUresult that the program gets."""
    reason: str
    run: str = ""
    """The id of the run by pympsd-run that the process belongs to; empty if there is none."""


@define
class Refusals:
    """The latest refusals of each user, at most 16 of a user."""

    _of_users: dict[int, deque[RefusedClient]] = field(factory=dict, init=False)
    """The refusals by user; the user whose client was refused last comes last."""

    def add(self, refusal: RefusedClient) -> None:
        """Keep a refusal. If there is no room, drop the user's oldest one, or the user whose last refusal is
        oldest.
        """
        own = self._of_users.pop(refusal.uid, None) or deque(maxlen=MAX_OF_USER)
        own.append(refusal)
        self._of_users[refusal.uid] = own
        if len(self._of_users) > MAX_USERS:
            del self._of_users[next(iter(self._of_users))]

    def __iter__(self) -> Iterator[RefusedClient]:
        """Iterate over all refusals, the oldest first."""
        return iter(sorted(chain.from_iterable(self._of_users.values()), key=lambda refusal: refusal.at))
