"""What must be let go later: a thread that looks now and then whether it can be.

Unloading a module or unregistering host memory waits for every running kernel, and unregistering also holds up the
other clients' launches: they are done when nothing is under way. What a client left behind that still runs keeps its
memory until it has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from pympsd_server.backends.cuda.driver.internal_errors import tell_defect
from pympsd_server.backends.interface import BackendError

_SECONDS: Final = 0.01


class Janitor:
    """Does things when they can be done without waiting."""

    def __init__(self) -> None:
        self._new: deque[Callable[[], bool]] = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._thread.start()

    def add(self, ready: Callable[[], bool], act: Callable[[], None]) -> None:
        """Have ``act`` called once ``ready()`` is true; an error in either ends the matter."""

        def attempt() -> bool:
            if not ready():
                return False
            act()
            return True

        self.try_until(attempt)

    def try_until(self, attempt: Callable[[], bool]) -> None:
        """Have something tried until it says that it was done; an error ends the matter."""
        self._new.append(attempt)
        self._wake.set()

    def close(self) -> None:
        """Do nothing any more."""
        self._closed.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        tasks: list[Callable[[], bool]] = []
        while not self._closed.is_set():
            if not tasks:
                self._wake.wait()
            self._wake.clear()
            while self._new:
                tasks.append(self._new.popleft())
            tasks = [task for task in tasks if not _over(task)]
            if tasks:
                self._closed.wait(_SECONDS)


def _over(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except BackendError:  # a ruined device lets go of everything with its process
        return True
    except Exception as error:  # a defect of ours: the others' things are to go all the same
        tell_defect("the janitor", error)
        return True
