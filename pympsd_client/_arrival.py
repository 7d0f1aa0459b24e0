"""The way in to MPS: to the daemon's door and through it, once more when the daemon dies meanwhile."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary import files
from pympsd_client._session import Session, Unanswered, knock, reach

PATIENCE: Final = 2.0
"""Seconds in which another daemon may take the place of one that died."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


def arrive(environment: Mapping[str, str]) -> Session | str:
    """Return a session, or in words why this process goes on without MPS. Raise CudaError: a refusal.

    A conversation that ended before an answer is begun again: whoever waited in the line of a daemon that was killed
    waits in the next one's.
    """
    give_up: float | None = None
    pause = _FIRST_PAUSE
    while True:
        door = _reach(environment, give_up)
        if isinstance(door, str):
            return door
        began = time.monotonic()
        try:
            return knock(door, environment)
        except Unanswered:
            now = time.monotonic()
            if give_up is None or now - began > PATIENCE:
                give_up = now + PATIENCE
            elif now > give_up:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _reach(environment: Mapping[str, str], give_up: float | None) -> socket.socket | str:
    """Reach the daemon, with patience until ``give_up``; None: only where one was killed."""
    while isinstance(door := reach(environment), str):
        if give_up is None and _was_killed(environment):
            give_up = time.monotonic() + PATIENCE
        if give_up is None or time.monotonic() > give_up:
            return door
        time.sleep(_FIRST_PAUSE)
    return door


def _was_killed(environment: Mapping[str, str]) -> bool:
    """Whether a daemon left what only one that did not end in order leaves."""
    return os.path.lexists(f"{files.pipe_directory(dict(environment))}/{files.STATE}")
