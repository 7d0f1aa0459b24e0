"""Tables that cut nothing, CSV that a reader of CSV reads back, JSON of the same rows."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pympsd.commands.v3.output import ABSENT, Column, Format, Row, Shown, cell_text, render
from pympsd.vocabulary.texts import BadText

COLUMNS = (Column("pid", "PID"), Column("maws-ns", "MAWS NS", "maws"), Column("devices", "DEVICES"))
ROWS = (
    Row((3165259, Shown("30.00", 30.0), ("GPU-a", "GPU-b")), {"uid": 7}),
    Row((7, None, ()), {"uid": 8}),
)


def test_a_table_aligns_its_columns() -> None:
    assert render(COLUMNS, ROWS, Format()) == (
        "PID      MAWS NS  DEVICES\n3165259  30.00    GPU-a,GPU-b\n7        -        -"
    )
    assert render(COLUMNS, ROWS, Format(header=False)) == "3165259  30.00  GPU-a,GPU-b\n7        -      -"


def test_csv_quotes_what_contains_commas() -> None:
    assert render(COLUMNS, ROWS, Format("csv")) == 'pid,maws-ns,devices\n3165259,30.00,"GPU-a,GPU-b"\n7,-,-'
    assert render(COLUMNS, (), Format("csv")) == "pid,maws-ns,devices"
    assert render(COLUMNS, (), Format("csv", header=False)) == ""


def test_json_has_numbers_nulls_and_what_the_table_has_no_room_for() -> None:
    assert json.loads(render(COLUMNS, ROWS, Format("json", header=False))) == [
        {"pid": 3165259, "maws": 30.0, "devices": ["GPU-a", "GPU-b"], "uid": 7},
        {"pid": 7, "maws": None, "devices": [], "uid": 8},
    ]


@pytest.mark.parametrize("text", ["xml", "csv,", "csv,header", "noheader", "CSV", ""])
def test_another_format_is_refused(text: str) -> None:
    with pytest.raises(BadText, match="table, csv or json"):
        Format.parse(text)


def test_formats_are_parsed() -> None:
    assert Format.parse("csv,noheader") == Format("csv", header=False)
    assert Format.parse("json") == Format("json")


CELLS = st.one_of(st.text(max_size=12), st.integers(), st.none(), st.booleans())
TABLES = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4)


@settings(max_examples=50)
@given(TABLES)
def test_csv_is_read_back_as_it_was(cells: list[tuple[str | int | None, ...]]) -> None:
    text = render(COLUMNS, [Row(row) for row in cells], Format("csv", header=False))
    expected = [[cell_text(cell) for cell in row] for row in cells]
    # A reader of CSV takes only these line ends for the end of a row.
    assert list(csv.reader(io.StringIO(text, newline=""))) == expected or expected == [["", "", ""]]


@settings(max_examples=50)
@given(TABLES)
def test_a_table_cuts_nothing_and_has_a_line_a_row(cells: list[tuple[str | int | None, ...]]) -> None:
    text = render(COLUMNS, [Row(row) for row in cells], Format())
    lines = text.split("\n")
    assert len(lines) == 1 + len(cells)
    for line, row in zip(lines[1:], cells, strict=True):
        assert all(" ".join(cell_text(cell).splitlines()).strip() in line for cell in row)
    assert render((Column("a", "A"),), [Row((None,))], Format(header=False)) == ABSENT
