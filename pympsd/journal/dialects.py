"""The three dialects a log can be written in, and how a line of the catalogue says itself in each."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class Dialect(StrEnum):
    """How log lines are worded (--log-dialect, PYMPSD_LOG_DIALECT)."""

    DOCUMENTED = "documented"
    """The forms of the MPS documents; where they give none, driver 580's."""
    R580 = "r580"
    """What driver 580 writes, its spelling included."""
    JSON = "json"
    """One JSON object a line: time, who, pid, event and the event's fields."""


@frozen
class Line:
    """One event's sentences, filled with its fields. None: the event writes no line in that dialect.

    ``r580_who`` and ``r580_pid`` (a field's name): driver 580 writes this line as somebody else.
    """

    documented: str | None
    r580: str | None
    r580_who: str | None = None
    r580_pid: str | None = None

    def sentence(self, dialect: Dialect) -> str | None:
        """Return the sentence of a dialect of text."""
        return self.r580 if dialect is Dialect.R580 else self.documented


def same(text: str, r580_who: str | None = None, r580_pid: str | None = None) -> Line:
    """Return a line that is the same in both."""
    return Line(text, text, r580_who, r580_pid)
