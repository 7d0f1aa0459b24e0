"""Choose the waiting user who gets the next turn: plug-ins of the group ``pympsd.turn_policies``.

``PYMPSD_TURN_POLICY=NAME[:ARGUMENT]`` names one, a callable that takes the argument ("" without one), raises
ValueError if it is wrong, and returns a `TurnPolicy`. Like the rest of the state machine, a policy reads no clock and
keeps no state: its only input is `WaitingUser`. docs/research.md shows how to write one.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from attrs import define, field, frozen


@frozen
class WaitingUser:
    """A user that waits for a server.

    The input of a turn policy: values only, so a policy cannot change the daemon.
    """

    uid: int
    """The user's number."""
    waiting: int
    """The number of the user's clients, and of operators' requests to start the server, that wait."""
    turns: int
    """The number of turns that the user has had since this daemon began."""


TurnPolicy = Callable[[Sequence[WaitingUser]], WaitingUser]
"""A function that returns one of the users. There is at least one; they are in the order in which they came."""


def order(argument: str = "") -> TurnPolicy:
    """Return the default policy: first come, first served. Raises ValueError for an argument.

    >>> order()([WaitingUser(1001, waiting=1, turns=5), WaitingUser(1002, waiting=9, turns=0)]).uid
    1001
    """
    _take_no_argument(argument)
    return lambda users: users[0]


def fewest_turns(argument: str = "") -> TurnPolicy:
    """Return a policy: the user with the fewest turns; of several, the one that came first. Raises ValueError.

    >>> fewest_turns()([WaitingUser(1001, waiting=1, turns=5), WaitingUser(1002, waiting=9, turns=0)]).uid
    1002
    """
    _take_no_argument(argument)
    return lambda users: min(users, key=lambda user: user.turns)


def guard(policy: TurnPolicy, complain: Callable[..., None]) -> TurnPolicy:
    """Return a policy that falls back to first come, first served if the given one raises, or does not return one of
    the users.

    ``complain`` is called the first time, with the event and its reason.
    """
    has_failed = False

    def choose(users: Sequence[WaitingUser]) -> WaitingUser:
        nonlocal has_failed
        try:
            user = policy(users)
            if user in users:
                return user
            reason = f"the policy returned {user!r}, which is not one of the users passed to it"
        except Exception as error:  # a plug-in may raise anything; users must not wait forever
            reason = f"{type(error).__name__}: {error}"
        if not has_failed:
            has_failed = True
            complain("turn_policy_failed", reason=reason)
        return users[0]

    return choose


def _take_no_argument(argument: str) -> None:
    if argument:
        raise ValueError("the policy takes no argument")


@define
class Turns:
    """How users take turns, and the turns that they have had.

    Only a daemon in which users do not share the device at the same time (``--users=in-turn``) has turns.
    """

    policy: TurnPolicy = field(factory=order)
    """The policy that chooses which of the waiting users is next."""
    overtaking_seconds: float = 30.0
    """The seconds for which new clients of the active user may overtake a waiting user; 0 if they never may."""
    counts: Counter[str] = field(factory=Counter)
    """The number of turns since this daemon began, by the name of a user's server."""
