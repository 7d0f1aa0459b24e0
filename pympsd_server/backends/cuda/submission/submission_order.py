"""What is issued to the driver when: at once, unless a call to the host holds something before it. Pure.

The driver orders what is issued to it. What comes after a call to the host must not be issued before that call is
finished: a stream that waits on the device would occupy one of the few hardware queues and hold other clients' work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from pympsd_server.backends.interface import BackendError


class Line(Protocol):
    """A stream, as far as order goes."""

    @property
    def blocking(self) -> bool:
        """Whether it and the default stream wait for each other; true for the default stream itself."""


class Step:
    """Something that is issued once those before it are passed; ``held`` ones pass when somebody says so."""

    __slots__ = ("held", "issue", "line", "passed", "successors", "waiting")

    def __init__(self, line: Line | None, issue: Callable[[], None], held: bool = False) -> None:
        self.line = line
        self.issue = issue
        self.held = held
        self.waiting = 0
        self.passed = False
        self.successors: list[Step] = []


class Order:
    """The steps of one context that are not passed. Its owner locks it."""

    def __init__(self, refused_late: Callable[[BackendError], None]) -> None:
        self.default: Line | None = None
        self._tails: dict[Line, Step] = {}
        self._refused_late = refused_late

    @property
    def holds(self) -> bool:
        """Whether anything is not passed."""
        return bool(self._tails)

    def before(self, line: Line | None) -> list[Step]:
        """Return the last steps that new work in a line (None: in all lines) comes after."""
        tails = self._tails
        if line is None:
            return list(tails.values())
        if line is self.default:
            return [step for each, step in tails.items() if each.blocking]
        lines = (line, self.default) if line.blocking else (line,)
        return [tails[each] for each in lines if each in tails]

    def submit(self, step: Step, after: Iterable[Step] = (), alone: bool = False) -> None:
        """Issue a step, now or when it may be; BackendError only when it is issued now and refused.

        It comes after what is before it in its line, unless it is ``alone``, and after those named.
        """
        before = [] if alone else self.before(step.line)
        first = {id(each): each for each in (*before, *after) if not each.passed}
        if not first:
            step.issue()
            if step.held:
                self._put_last(step)
            else:
                step.passed = True
            return
        step.waiting = len(first)
        for each in first.values():
            each.successors.append(step)
        self._put_last(step)

    def _put_last(self, step: Step) -> None:
        if step.line is not None:
            self._tails[step.line] = step

    def release(self, step: Step) -> None:
        """A held step is passed: issue what may follow. Nothing happens the second time."""
        ready = deque(self._passed(step))
        while ready:
            following = ready.popleft()
            try:
                following.issue()
            except BackendError as error:
                self._refused_late(error)
                return
            if not following.held:
                ready.extend(self._passed(following))

    def _passed(self, step: Step) -> list[Step]:
        if step.passed:
            return []
        step.passed = True
        if step.line is not None and self._tails.get(step.line) is step:
            del self._tails[step.line]
        free = []
        for successor in step.successors:
            successor.waiting -= 1
            if not successor.waiting:
                free.append(successor)
        step.successors = []
        return free

    def drop(self) -> None:
        """Forget everything; nothing of it is ever issued."""
        self._tails.clear()
