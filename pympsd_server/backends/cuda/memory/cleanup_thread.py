"""The cleanup thread: actions that are postponed until they can be done without waiting.

Unloading a module or unregistering host memory waits for every running kernel, and unregistering also delays the
other clients' launches, so both are done when no work runs. The memory of a client's unfinished kernels stays until
they have ended. Nothing signals these conditions, so the thread tries each action every 10 ms, and sleeps while it
has no action.

An action is tried until it reports that it is done, or raises an exception, which must not keep the other actions
from being tried. A BackendError means that the device is faulted; the end of the process then releases everything.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from pympsd_server.backends.cuda.driver.calls import report_internal_error
from pympsd_server.backends.interface import BackendError

_SECONDS: Final = 0.01


class CleanupThread:
    """Performs actions when they can be done without waiting."""

    def __init__(self) -> None:
        self._new: deque[Callable[[], bool]] = deque()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cleanup", daemon=True)
        self._thread.start()

    def add(self, ready: Callable[[], bool], act: Callable[[], None]) -> None:
        """Call ``act`` when ``ready()`` is true. If either raises an error, ``act`` is not called again."""

        def attempt() -> bool:
            if not ready():
                return False
            act()
            return True

        self.try_until(attempt)

    def try_until(self, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` until it returns true, or raises an error."""
        self._new.append(attempt)
        self._wake.set()

    def close(self) -> None:
        """Stop the thread, and drop the actions that are not done."""
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
            tasks = [task for task in tasks if not _is_over(task)]
            if tasks:
                self._closed.wait(_SECONDS)


def _is_over(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except BackendError:  # a faulted device: the end of the process releases everything
        return True
    except Exception as error:  # must not keep the other tasks from being done
        report_internal_error("the cleanup thread", error)
        return True
