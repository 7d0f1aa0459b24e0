"""The events that clients of an executor have shared, by secrets that only the sharers know."""

from __future__ import annotations

import os
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from pympsd.vocabulary.results import Result
from pympsd_server.backends.interface import BackendError, Event


class SharedEvents:
    """Events by their secrets, as long as their clients have them. Safe for threads."""

    def __init__(self) -> None:
        self._events: Final[WeakValueDictionary[int, Event]] = WeakValueDictionary()
        self._secrets: Final[WeakKeyDictionary[Event, int]] = WeakKeyDictionary()
        self._lock: Final = Lock()

    def add(self, event: Event) -> int:
        """Return the secret of an event, the same each time."""
        with self._lock:
            secret = self._secrets.get(event)
            if secret is None:
                secret = self._secrets[event] = int.from_bytes(os.urandom(16), "little")
                self._events[secret] = event
            return secret

    def find(self, secret: int) -> Event:
        """Return the event of a secret; BackendError INVALID_VALUE if it is none, or of one that was destroyed."""
        with self._lock:
            event = self._events.get(secret)
        if event is None:
            raise BackendError(
                Result.ERROR_INVALID_VALUE, "the handle is of no event of this device that still exists"
            )
        return event
