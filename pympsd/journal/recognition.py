"""Find the event of the catalogue, and its fields, for a line of driver 580's own MPS server.

The patterns are derived from the catalogue's sentences.
"""

import re
from collections.abc import Callable
from functools import partial
from string import Formatter
from typing import Any, Final

from attrs import define, field, frozen

from pympsd.journal.catalogue import SERVER_LINES

WHOLE_NUMBERS: Final = frozenset(
    ("pid", "context", "device", "left", "count", "workers", "most", "limit", "status", "priority", "version")
)
"""Fields that are whole numbers. A field with a format of its own (``#x``, ``.0f``) is read in that format."""
FOLLOWERS: Final = {
    "fault_devices": "fault_device",
    "fault_clients": "fault_client",
    "server_failed": "server_failed_reason",
}
"""The events whose sentence is only a field, such as "0", by the event of the line before them.

Only that line shows which event such a sentence belongs to.
"""
DOCUMENTED_AS: Final = {"server_context_dropped": "server_context_destroyed"}
"""For an event of the driver's own server without a documented sentence: the event whose sentence replaces it.

pympsd's own servers report both events, at different times. The first has only a sentence of driver 580, the second
only a documented one.
"""


@frozen
class Recognised:
    """An event and its fields."""

    event: str
    fields: dict[str, Any]

    @property
    def documented(self) -> str:
        """The event of the documented sentence that means the same as the driver's line."""
        return DOCUMENTED_AS.get(self.event, self.event)


_Reader = Callable[[str], object]
_READERS: Final[dict[str, tuple[str, _Reader]]] = {
    "text": ("(.*)", str),
    "whole": (r"(-?\d{1,20})", int),
    "#x": ("(0x[0-9a-f]{1,16})", partial(int, base=16)),
    ".0f": (r"(-?\d{1,20})", float),
}


@define
class _Pattern:
    """The sentence of an event, by which texts are read. It reads exactly the texts that it would write."""

    event: str
    sentence: str
    author: str | None
    """The field that is the author's PID."""
    is_bare: bool = field(default=True, init=False)
    """True if the sentence is only one field."""
    _readers: dict[str, _Reader] = field(factory=dict, init=False)
    _expression: re.Pattern[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        expression = ""
        for literal, name, form, _ in Formatter().parse(self.sentence):
            expression += re.escape(literal)
            self.is_bare = self.is_bare and not literal
            if name is None:
                continue
            if name in self._readers:
                expression += f"(?P={name})"
                continue
            kind = form or ("whole" if name in WHOLE_NUMBERS else "text")
            group, self._readers[name] = _READERS[kind]
            expression += group.replace("(", f"(?P<{name}>", 1)
        self._expression = re.compile(expression)

    def read(self, pid: int, text: str) -> Recognised | None:
        """Return the event that process ``pid`` reported with a text; None if the text does not fit the sentence."""
        match = self._expression.fullmatch(text)
        if match is None:
            return None
        fields = {name: read(match[name]) for name, read in self._readers.items()}
        if self.sentence.format(**fields) != text:
            return None
        if self.author is not None:
            fields[self.author] = pid
        return Recognised(self.event, fields)


_PATTERNS: Final = {
    event: _Pattern(event, line.r580, line.r580_pid) for event, line in SERVER_LINES.items() if line.r580 is not None
}
_LITERAL: Final = tuple(pattern for pattern in _PATTERNS.values() if not pattern.is_bare)


@define
class Recogniser:
    """Recognises the lines of servers, in the order in which each wrote them."""

    _pending: dict[int, str] = field(factory=dict, init=False)
    """The event of each server's next line, by the server's PID, unless that line fits a sentence with words."""

    def recognise(self, pid: int, text: str) -> Recognised | None:
        """Return the event of a line of server ``pid``; None if the catalogue has none."""
        for pattern in _LITERAL:
            if recognised := pattern.read(pid, text):
                self._pending.pop(pid, None)
                if recognised.event in FOLLOWERS:
                    self._pending[pid] = FOLLOWERS[recognised.event]
                # A process's first connection, number 0, is its own; its contexts have the remaining ones.
                if recognised.event == "client_connected" and recognised.fields["context"] != 0:
                    return Recognised("context_connected", recognised.fields)
                return recognised
        pending = self._pending.get(pid)
        recognised = _PATTERNS[pending].read(pid, text) if pending else None
        if recognised is None:
            self._pending.pop(pid, None)
        return recognised
