"""Lines that cannot be written are counted, and reported in the log when it can be written again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pympsd.journal.files import LogFile
from pympsd.journal.line_format import Dialect
from pympsd.journal.setup import Journal

NO_SPACE = "No space left on device"


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("which", ["control", "server"])
def test_lines_lost_to_a_full_disk_are_counted_and_reported(tmp_path: Path, dialect: Dialect, which: str) -> None:
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
    report, *rest = path.read_text().splitlines()
    assert NO_SPACE in report
    assert '"count": 3' in report if dialect is Dialect.JSON else "] Could not write 3 log lines: " in report
    assert len(rest) == 2
    assert file.dropped == 0
    file.close()


def test_a_partly_written_line_does_not_damage_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
