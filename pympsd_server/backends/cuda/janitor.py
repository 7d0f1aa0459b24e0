"""What must be let go later: a thread that looks now and then whether it can be.

Unloading a module or unregistering host memory waits for every running kernel, and unregistering also holds up the
other clients' launches: they are done when nothing is under way. What a client left behind that still runs keeps its
memory until it has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from attrs import frozen

from pympsd_server.backends.interface import BackendError

_SECONDS: Final = 0.01


@frozen(eq=False)
class _Task:
    ready: Callable[[], bool]
    act: Callable[[], None]


class Janitor:
    """Does things when they can be done without waiting."""

    def __init__(self) -> None:
        self._new: deque[_Task] = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._thread.start()

    def add(self, ready: Callable[[], bool], act: Callable[[], None]) -> None:
        """Have ``act`` called once ``ready()`` is true; BackendError in either ends the matter."""
        self._new.append(_Task(ready, act))
        self._wake.set()

    def close(self) -> None:
        """Do nothing any more."""
        self._closed.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        tasks: list[_Task] = []
        while not self._closed.is_set():
            if not tasks:
                self._wake.wait()
            self._wake.clear()
            while self._new:
                tasks.append(self._new.popleft())
            tasks = [task for task in tasks if not _done(task)]
            if tasks:
                self._closed.wait(_SECONDS)


def _done(task: _Task) -> bool:
    with suppress(BackendError):  # a ruined device lets go of everything with its process
        if not task.ready():
            return False
        task.act()
    return True
