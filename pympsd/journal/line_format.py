"""Format a log line: ``[YYYY-MM-DD HH:MM:SS.mmm WHO PID] text``, or a JSON object.

The time is local, and the PID is right-aligned in five columns. A `Line` has the sentences of an event in the text
dialects of the logs.
"""

import json
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attrs import frozen

from pympsd.vocabulary.untrusted import ESCAPED

OF_SEVERAL_LINES: Final = frozenset({"answer"})
"""The events whose text may have line ends, as recorded. In all others they are escaped: the text may quote a name, a
setting or a message of any user, who could forge a line.
"""


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
    """One event's sentences, formatted with its fields. None if the event writes no line in that dialect.

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

    def select_author(self, dialect: Dialect) -> str | None:
        """Return the author that the line names in a text dialect; None means the one that wrote it.

        The documents show no line of a server that is starting, which calls itself Other; driver 580's form is used
        for it.
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


@frozen
class LogEntry:
    """An event with its author, its fields and its time in seconds since the epoch."""

    who: str
    pid: int
    event: str
    fields: dict[str, Any]
    when: float
    is_volta: bool = True
    """True if its author serves devices of Volta or newer."""


def render(entry: LogEntry, catalogued: Line, dialect: Dialect) -> bytes | None:
    """Return the line of an event; None if it writes none in the dialect.

    Raise KeyError, IndexError or ValueError for fields that do not fit the sentence.
    """
    if dialect is Dialect.JSON:
        return _json(entry)
    if catalogued.is_volta and not entry.is_volta:
        dialect = Dialect.R580
    text = catalogued.sentence(dialect)
    if text is None:
        return None
    who, pid = catalogued.select_author(dialect) or entry.who, entry.pid
    if dialect is Dialect.R580 and catalogued.r580_pid:
        pid = entry.fields[catalogued.r580_pid]
    place = f" ({entry.fields['place']})" if "place" in entry.fields else ""
    text = text.format(**entry.fields) + place
    if entry.event not in OF_SEVERAL_LINES:
        text = text.replace("\n", "\\n")
    return line(entry.when, who, pid, text)


def _json(entry: LogEntry) -> bytes:
    moment = datetime.fromtimestamp(entry.when).astimezone().isoformat(timespec="milliseconds")
    # JSON is text: undecodable bytes become the replacement character.
    fields = {name: _text(value) if isinstance(value, str) else value for name, value in entry.fields.items()}
    head = {"time": moment, "who": entry.who, "pid": entry.pid, "event": entry.event}
    return json.dumps({**head, "fields": fields}, allow_nan=False).encode() + b"\n"


def _text(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def line(when: float, who: str, pid: int, text: str) -> bytes:
    """Return a whole line; ``when`` in seconds since the epoch.

    Control characters of ``text`` are escaped, as in ``\\x1b``: any user may cause a line, and it must not control
    the terminal that shows it. Its other undecodable bytes, tabs and line ends are preserved.
    """
    text = text.translate(ESCAPED)
    moment = datetime.fromtimestamp(when)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
    return f"[{stamp} {who} {pid:>5}] {text}\n".encode("utf-8", "surrogateescape")


def sanitise(data: bytes, limit: int = 1024) -> str:
    """Return foreign bytes as text for a log line: no control characters, at most ``limit`` characters."""
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()
