"""Connecting to MPS: the handshake, retried if a daemon or server dies during it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from pympsd.vocabulary import files
from pympsd_client._connect.handshake import BrokenOff, NotWelcomed, connect_to_daemon, request_session
from pympsd_client._connect.session import Session

RETRY_S: Final = 2.0
"""Seconds in which another daemon may replace one that died, for a client that starts meanwhile."""
QUEUE_RETRY_S: Final = 10.0
"""The same for a client that was connected to the daemon that died: it was waiting anyway."""
QUEUED_S: Final = 0.1
"""A conversation of at least these seconds was waiting in the queue, and ended because its daemon did."""
GRANTS_LIMIT: Final = 6
"""The number of servers that may end before their welcome; the daemon gives up after four and says why."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


def connect_with_retry(environment: Mapping[str, str]) -> Session | str:
    """Return a session, or the reason why this process runs without MPS. Raise CudaError: a refusal.

    Retry a conversation that ended before an answer: a client in the queue of a daemon that was killed queues at the
    next one. Give up after a while if a living daemon ends every conversation, and if servers end as soon as they are
    granted, however long the wait for each was.
    """
    lost = False
    grants = 0
    turned_away_since: float | None = None
    pause = _FIRST_PAUSE
    while True:
        connection = connect_to_daemon(environment)
        if isinstance(connection, str) and (lost or _was_killed(environment)):
            give_up = time.monotonic() + (QUEUE_RETRY_S if lost else RETRY_S)
            while isinstance(connection, str) and time.monotonic() < give_up:
                time.sleep(_FIRST_PAUSE)
                connection = connect_to_daemon(environment)
            turned_away_since, pause = None, _FIRST_PAUSE
        if isinstance(connection, str):
            return connection
        began = time.monotonic()
        try:
            return request_session(connection, environment)
        except NotWelcomed:
            lost = True
            grants += 1
            if grants >= GRANTS_LIMIT:
                raise
            turned_away_since, pause = None, _FIRST_PAUSE
        except BrokenOff:
            lost = True
            now = time.monotonic()
            if turned_away_since is None or now - began > QUEUED_S:
                turned_away_since, pause = now, _FIRST_PAUSE
            if now - turned_away_since > RETRY_S:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _was_killed(environment: Mapping[str, str]) -> bool:
    """Return whether a state file exists: a daemon is running, or did not end in order."""
    return os.path.lexists(f"{files.pipe_directory(dict(environment))}/{files.STATE}")
