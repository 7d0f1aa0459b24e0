"""Copies and fills of rows with every kind of argument, as recorded of a GPU (scripts/record-row-copies)."""

from __future__ import annotations

from typing import Any

import pytest
from row_copies import COPIES, RowCopies, read_record

from pympsd_client import driver as cuda

ABOUT, CASES = read_record()


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("kind", [*COPIES, "set", "pitch"])
def test_copies_fills_and_pitches_are_as_recorded(context: Any, kind: str) -> None:
    copies = RowCopies(cuda, ABOUT["period"])
    cases = [case for case in CASES if case.arguments["f"] == kind]
    assert len(cases) >= 65
    for case in cases:
        assert copies.carry_out(case) == case
