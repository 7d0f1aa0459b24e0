"""Lines that could not be written are counted, and the log says so when it can be written again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pympsd.journal.dialects import Dialect
from pympsd.journal.files import LogFile
from pympsd.journal.setup import Journal

NO_SPACE = "No space left on device"


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("which", ["control", "server"])
def test_a_full_disk_costs_lines_and_says_how_many(tmp_path: Path, dialect: Dialect, which: str) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    file = LogFile(str(path))
    journal = Journal(file, file, dialect)

    def write() -> None:
        if which == "control":
            journal.write_control("ui_closed", {})
        else:
            journal.write_server("Server", 7, "server_exiting", {})

    for _ in range(3):
        write()
    assert (file.dropped, file.reason) == (3, NO_SPACE)
    path.unlink()
    file.reopen()
    write()
    write()
    told, *rest = path.read_text().splitlines()
    assert NO_SPACE in told
    assert '"count": 3' in told if dialect is Dialect.JSON else "] 3 log lines could not be written: " in told
    assert len(rest) == 2
    assert file.dropped == 0
    file.close()


def test_a_line_that_was_written_in_part_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    file.write(b"whole\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:4]))
    file.write(b"this is cut\n")
    monkeypatch.setattr(os, "write", write)
    assert (file.dropped, file.reason) == (1, NO_SPACE)
    file.write(b"next\n")
    file.write(b"last\n")
    assert path.read_bytes() == b"whole\nthis\nnext\nlast\n"
    file.close()
