"""The three dialects of the logs, and the sentences of a log line in each."""

from enum import StrEnum

from attrs import frozen


class Dialect(StrEnum):
    """The wording of log lines (--log-dialect, PYMPSD_LOG_DIALECT)."""

    DOCUMENTED = "documented"
    """The forms of the MPS documents; if they have none, driver 580's."""
    R580 = "r580"
    """The lines of driver 580, its spelling included."""
    JSON = "json"
    """One JSON object per line: time, who, pid, event and the event's fields."""


@frozen
class Line:
    """One event's sentences, formatted with its fields. None: the event writes no line in that dialect.

    ``r580_who`` and ``r580_pid`` (a field's name): the process that driver 580 names as the line's author.
    ``is_volta``: the documents show it among the lines of Volta MPS, in which a server calls itself Other.
    """

    documented: str | None
    r580: str | None
    r580_who: str | None = None
    r580_pid: str | None = None
    is_volta: bool = False

    def sentence(self, dialect: Dialect) -> str | None:
        """Return the sentence in a text dialect."""
        return self.r580 if dialect is Dialect.R580 else self.documented

    def who(self, dialect: Dialect) -> str | None:
        """Return the author that the line names in a text dialect; None: the one that wrote it.

        Of a server that starts, which calls itself Other, the documents have no line, so that driver 580's is taken.
        """
        if dialect is Dialect.DOCUMENTED:
            return "Other" if self.is_volta or self.r580_who == "Other" else None
        return self.r580_who


def same(text: str, r580_who: str | None = None, r580_pid: str | None = None) -> Line:
    """Return a line with the same sentence in both text dialects."""
    return Line(text, text, r580_who, r580_pid)


def volta(documented: str, r580: str | None) -> Line:
    """Return a line that the documents show of Volta MPS; a server before Volta writes driver 580's instead."""
    return Line(documented, r580, is_volta=True)
