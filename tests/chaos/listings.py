"""The daemon's lists of clients, compared with what the clients themselves report. Nothing here asks a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.chaos.history import History, Life
from tests.chaos.recoveries import SLACK
from tests.chaos.schedule import Kind

NOTICED_SECONDS: Final = 1.0
"""The maximum time from a client's end until lists lack it."""
ENDS: Final = frozenset({Kind.CLIENT_KILL, Kind.CLIENT_TERMINATE})
FAULTS: Final = frozenset({Kind.CLIENT_FAULT, Kind.EXECUTOR_KILL})


def pids(listing: str, server: int, column: int | None) -> set[int]:
    """Return the PIDs in a list; if it has a ``column`` of servers, only those in the rows of this server."""
    rows = [line.split() for line in listing.splitlines() if line[:1].isdigit()]
    return {int(row[0]) for row in rows if column is None or row[column] == str(server)}


def differences(history: History, uid: int, shown: set[int], requested_at: float, answered: float) -> Iterator[str]:
    """Yield the errors in a list of a user's clients that was requested and answered at these times."""
    own = [life for life in history.lives if life.uid == uid]
    stayed = {life.pid for life in own if _stays(history, life, requested_at, answered)}
    if missing := stayed - shown:
        yield f"lacks {sorted(missing)}, which have contexts: {sorted(shown)}"
    if others := shown - {life.pid for life in own if life.ended >= requested_at - NOTICED_SECONDS}:
        yield f"has {sorted(others)}, which had ended: {sorted(shown)}"


def _stays(history: History, life: Life, requested_at: float, answered: float) -> bool:
    """Whether a client surely had a context all the time.

    This is not sure of a client that was killed or terminated, or that a fault may have reached: its server may
    detect the end before the client does. Nor is it sure of a context that was closed soon after the answer.
    """
    struck = any(
        incident.client == life.plan.number
        if incident.kind in ENDS
        else incident.kind in FAULTS and incident.uid == life.uid
        for incident in history.around(life).incidents
    )
    failed = any(step.code for step in life.steps)
    until = answered + SLACK / 2
    has_context = any(span.opened < requested_at and span.ended > until for span in life.contexts.values())
    return has_context and life.ended > answered and not (struck or failed)
