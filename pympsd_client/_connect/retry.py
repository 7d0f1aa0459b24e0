"""The way in to MPS: to the daemon's door and through it, once more when the daemon dies meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary import files
from pympsd_client._connect.session import Session, Unanswered, Unwelcomed, knock, reach

PATIENCE: Final = 2.0
"""Seconds in which another daemon may take the place of one that died, for a client that begins meanwhile."""
LINE_PATIENCE: Final = 10.0
"""The same for a client that had knocked at the one that died: it was waiting anyway, and a busy machine is slow."""
IN_LINE: Final = 0.1
"""A conversation that lasted so long was one in the line, and its end the daemon's."""
GRANTS: Final = 6
"""So many servers may end before their welcome; the daemon itself gives up after four and says why."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


def arrive(environment: Mapping[str, str]) -> Session | str:
    """Return a session, or in words why this process goes on without MPS. Raise CudaError: a refusal.

    A conversation that ended before an answer is begun again: whoever waited in the line of a daemon that was killed
    waits in the next one's. A daemon that lives and turns everybody away is asked for as long, and not for ever; nor
    are servers that end as soon as they are granted, however long the wait for each was.
    """
    lost = False
    grants = 0
    turned_away_since: float | None = None
    pause = _FIRST_PAUSE
    while True:
        door = reach(environment)
        if isinstance(door, str) and (lost or _was_killed(environment)):
            give_up = time.monotonic() + (LINE_PATIENCE if lost else PATIENCE)
            while isinstance(door, str) and time.monotonic() < give_up:
                time.sleep(_FIRST_PAUSE)
                door = reach(environment)
            turned_away_since, pause = None, _FIRST_PAUSE
        if isinstance(door, str):
            return door
        began = time.monotonic()
        try:
            return knock(door, environment)
        except Unwelcomed:
            lost = True
            grants += 1
            if grants >= GRANTS:
                raise
            turned_away_since, pause = None, _FIRST_PAUSE
        except Unanswered:
            lost = True
            now = time.monotonic()
            if turned_away_since is None or now - began > IN_LINE:
                turned_away_since, pause = now, _FIRST_PAUSE
            if now - turned_away_since > PATIENCE:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _was_killed(environment: Mapping[str, str]) -> bool:
    """Whether a daemon left what only one that did not end in order leaves, or one that runs."""
    return os.path.lexists(f"{files.pipe_directory(dict(environment))}/{files.STATE}")
