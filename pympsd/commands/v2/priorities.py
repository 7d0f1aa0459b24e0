"""Commands for the client priority: the default of later connections, those to a running server included."""

from __future__ import annotations

from collections.abc import Sequence

from pympsd.commands.numbers import leading_integer
from pympsd.commands.privileges import may_change_settings
from pympsd.commands.registry import Caller, Decision, command
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, lines, refusal
from pympsd.vocabulary.limits import BadLimit, ClientPriority

ALLOWED = "a client priority is 0 (normal) or 1 (below normal)"


def _level(words: Sequence[str]) -> int | Answer | None:
    level = leading_integer(words[0]) if words else None
    if level in (0, 1) and words[0] not in ("0", "1"):
        return refusal(diagnostic=f"{ALLOWED}, not {words[0][:80]!r}")
    return level


@command("set_default_client_priority", level=_level)
def set_default_client_priority(daemon: Daemon, caller: Caller, level: int | None) -> Decision:
    """Set the priority of later clients: 0 normal, 1 below normal."""
    if (denied := may_change_settings(daemon, caller)) is not None:
        return Decision(denied)
    if level is None:
        # Recorded: nothing is printed. The vendor reads it as 0; here it changes nothing.
        return Decision(Answer(diagnostic=f"{ALLOWED}; it stays {daemon.defaults.client_priority}", refused=True))
    try:
        daemon.defaults.client_priority = ClientPriority(level)
    except BadLimit:
        return Decision(refusal("Invalid priority value - must be 0 or 1!"))
    return Decision(lines())


@command("get_default_client_priority", takes="")
def get_default_client_priority(daemon: Daemon, caller: Caller) -> Decision:
    """Print the priority of later clients."""
    level = daemon.defaults.client_priority
    return Decision(lines(str(level)), data={"client_priority": level.level})
