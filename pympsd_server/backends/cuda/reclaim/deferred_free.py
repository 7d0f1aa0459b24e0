"""What one of a client's contexts has given up, and work in its others may still be about: it goes after that work.

One batch is waited for at a time, and what is given up meanwhile is the next one: however much a client gives up, no
more points of its streams are watched. Only its worker asks for them, for the driver may keep long who does.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from pympsd_server.backends.cuda.driver.internal_errors import call_apart
from pympsd_server.backends.cuda.reclaim.janitor import Janitor
from pympsd_server.backends.cuda.submission.completions import Countdown
from pympsd_server.backends.interface import BackendError

if TYPE_CHECKING:
    from pympsd_server.backends.cuda.objects.context import CudaContext

Act = Callable[[], None]


class Retired:
    """Of one client. Safe to use from several threads."""

    def __init__(self, janitor: Janitor) -> None:
        self.contexts: dict[CudaContext, None] = {}
        """Those the device knows: also what was destroyed and still runs. Guarded by the device's lock."""
        self._janitor = janitor
        self._lock = Lock()
        self._waiting: list[Act] = []
        self._is_asked = False
        """A batch waits for the work that was there when it was asked for."""
        self._is_tried = False

    def add(self, act: Act, context: CudaContext) -> None:
        """Have ``act`` called when no context but the given one is at work on what was there; at once if none is."""
        if self._is_idle(context):
            act()
            return
        with self._lock:
            self._waiting.append(act)
            if self._is_tried:
                return
            self._is_tried = True
        self._janitor.try_until(self._try)

    def ask(self) -> None:
        """Have what waits go when the work so far is done. The client's worker calls it."""
        with self._lock:
            if self._is_asked or not self._waiting:
                return
            batch, self._waiting, self._is_asked = self._waiting, [], True
        contexts = tuple(self.contexts)
        left = Countdown(1 + len(contexts), lambda: self._pass(batch))
        for context in contexts:
            try:
                context.after_work(left.one_less)
            except BackendError:  # nothing to make a point of
                self._janitor.add(context.is_through, left.one_less)
        left.one_less()

    def _pass(self, batch: list[Act]) -> None:
        with self._lock:
            self._is_asked = False
        # A context may have held very many: not in the thread that sees everybody's work done.
        self._janitor.add(lambda: True, lambda: _do_all(batch))

    def _try(self) -> bool:
        """Whoever's worker does not ask has it when all its contexts are idle."""
        with self._lock:
            waiting, count = self._waiting, len(self._waiting)
            if not count:
                self._is_tried = False
                return True
        if not self._is_idle(None):
            return False
        with self._lock:
            if self._waiting is not waiting:  # its worker has asked
                return False
            # What was added since may be about work that has begun since.
            self._waiting = waiting[count:]
        _do_all(waiting[:count])
        return False

    def _is_idle(self, besides: CudaContext | None) -> bool:
        return all(each.is_through() for each in tuple(self.contexts) if each is not besides)


def _do_all(batch: list[Act]) -> None:
    for act in batch:
        call_apart("the end of what a client had given up", act)  # the others are to go all the same
