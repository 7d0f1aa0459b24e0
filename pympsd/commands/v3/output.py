"""Write the output of ``list`` and ``describe``: a table, CSV (RFC 4180) or JSON. Cells are never cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import field, frozen

from pympsd.commands.grammar.registry import Decision
from pympsd.commands.grammar.syntax import CommandRefused
from pympsd.vocabulary.answers import Answer, AnswerPart
from pympsd.vocabulary.texts import BadText

ABSENT: Final = "-"
STYLES: Final = ("table", "csv", "json")
_BLANKS_BETWEEN: Final = 2
_QUOTED: Final = frozenset(',"\r\n')


@frozen
class Format:
    """The style of output that ``--format`` chooses."""

    style: str = STYLES[0]
    header: bool = True

    @classmethod
    def parse(cls, text: str) -> Format:
        """Return the style that a text names, optionally followed by ``,noheader``."""
        style, comma, option = text.partition(",")
        if style not in STYLES or (comma and option != "noheader"):
            raise BadText("table, csv or json, optionally followed by ,noheader,", text)
        return cls(style, not comma)


@frozen
class Column:
    """A column: its name in CSV and JSON, and its heading in a table."""

    name: str
    heading: str
    key: str = ""
    """The name of the column in JSON, if it differs from ``name``; otherwise empty."""


@frozen
class Shown:
    """A cell whose text differs from that of its value: ``30.00`` for 30.0, ``unlimited`` for None."""

    text: str
    value: Any


Cell = str | int | float | bool | None | Shown | tuple[str, ...]
"""The value of a cell. A tuple is a list of words: an array in JSON, otherwise separated by commas."""


@frozen
class Row:
    """The cells of a row, in the order of the columns, and additional values for JSON."""

    cells: tuple[Cell, ...]
    extra: dict[str, Any] = field(factory=dict)


def columns(*names: str, heading: Callable[[str], str] = str.upper) -> tuple[Column, ...]:
    """Return the columns with these names; ``heading`` converts a column's name to its heading."""
    return tuple(Column(name, heading(name)) for name in names)


def render_heading(name: str) -> str:
    """Return a column's heading, such as ``SERVER STATUS`` for ``server-status``."""
    return name.upper().replace("-", " ")


def is_json(style: Format | None) -> bool:
    """Return whether a list is printed as JSON, so that rows need additional values, which may take longer."""
    return style is not None and style.style == "json"


def listing(columns: Sequence[Column], rows: Sequence[Row], style: Format | None) -> Decision:
    """Return rows as the answer, which is not logged because monitors query repeatedly."""
    return data(render(columns, rows, style or Format()))


def data(text: str) -> Decision:
    """Return a text as the answer to a query. For an empty text, nothing is printed."""
    return Decision(Answer((AnswerPart(text, logged=False),) if text else ()))


def confirm(*notes: str) -> Answer:
    """Return the answer to a successful change: no output, and a line on standard error for each note."""
    return Answer(diagnostic="\n".join(filter(None, notes)))


def render(columns: Sequence[Column], rows: Sequence[Row], format: Format) -> str:
    """Return the text of rows, without a newline at the end; empty without rows and without a header."""
    if format.style == "json":
        return json.dumps([_record(columns, row) for row in rows])
    if format.style == "csv":
        heading = [[column.name for column in columns]] if format.header else []
        return "\n".join(",".join(map(_csv_cell, line)) for line in (*heading, *_texts(rows)))
    return _table([column.heading for column in columns] if format.header else [], _texts(rows))


def find_field(kind: str, fields: Sequence[str], word: str) -> str:
    """Return the field that a word names, in which ``_`` may stand for ``-``; raise CommandRefused."""
    field = word.replace("_", "-")
    if field not in fields:
        raise CommandRefused(f"A {kind} has no field '{word}'. Fields: {', '.join(fields)}.")
    return field


def cell_text(cell: Cell) -> str:
    """Return a cell's text, as ``get`` prints it."""
    match cell:
        case None | ():
            return ABSENT
        case Shown(text, _):
            return text
        case bool():
            return "true" if cell else "false"
        case tuple():
            return ",".join(cell)
    return str(cell)


def _texts(rows: Sequence[Row]) -> list[list[str]]:
    return [[cell_text(cell) for cell in row.cells] for row in rows]


def _record(columns: Sequence[Column], row: Row) -> dict[str, Any]:
    record = {column.key or column.name: _value(cell) for column, cell in zip(columns, row.cells, strict=True)}
    return {**record, **row.extra}


def _value(cell: Cell) -> Any:
    match cell:
        case Shown(_, value):
            return value
        case tuple():
            return list(cell)
    return cell


def _csv_cell(text: str) -> str:
    if not _QUOTED.intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # A line end in a cell, such as a command line's, would begin a new row.
    lines = [list(heading), *([" ".join(cell.splitlines()) for cell in row] for row in rows)]
    filled = [line for line in lines if line]
    widths = [max(map(len, cells)) + _BLANKS_BETWEEN for cells in zip(*filled, strict=True)]
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in filled
    )
