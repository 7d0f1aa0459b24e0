"""One log line: ``[YYYY-MM-DD HH:MM:SS.mmm WHO PID] text`` in local time, the PID right-aligned in 5; or JSON."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from attrs import frozen

from pympsd.journal.dialects import Dialect, Line


@frozen
class LogEvent:
    """What somebody says: an event with its fields, at a time in seconds since the epoch."""

    who: str
    pid: int
    event: str
    fields: dict[str, Any]
    when: float


def render(said: LogEvent, catalogued: Line, dialect: Dialect) -> bytes | None:
    """Return the line of what was said, None when the event writes none in the dialect.

    Raise KeyError, IndexError or ValueError for fields that do not fit the sentence.
    """
    if dialect is Dialect.JSON:
        return _json(said)
    text = catalogued.sentence(dialect)
    if text is None:
        return None
    who, pid = said.who, said.pid
    if dialect is Dialect.R580:
        who = catalogued.r580_who or who
        pid = said.fields[catalogued.r580_pid] if catalogued.r580_pid else pid
    return line(said.when, who, pid, text.format(**said.fields))


def _json(said: LogEvent) -> bytes:
    moment = datetime.fromtimestamp(said.when).astimezone().isoformat(timespec="milliseconds")
    # Bytes that are no text become the usual replacement: JSON is text.
    fields = {name: _text(value) if isinstance(value, str) else value for name, value in said.fields.items()}
    head = {"time": moment, "who": said.who, "pid": said.pid, "event": said.event}
    return json.dumps({**head, "fields": fields}).encode() + b"\n"


def _text(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def line(when: float, who: str, pid: int, text: str) -> bytes:
    """Return a whole line; ``when`` in seconds since the epoch. Undecodable bytes of ``text`` survive."""
    moment = datetime.fromtimestamp(when)
    stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
    return f"[{stamp} {who} {pid:>5}] {text}\n".encode("utf-8", "surrogateescape")


def sanitised(data: bytes, limit: int = 1024) -> str:
    """Return foreign bytes as one harmless piece of a line: no control characters, at most ``limit`` characters."""
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()
