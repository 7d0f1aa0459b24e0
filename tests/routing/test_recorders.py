"""Scripts that record on a GPU, run on the emulated one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import SECONDS, DaemonProcess
from row_copies import SIZE, read_record

from tests.routing.conftest import RUN

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_copies_of_rows_are_recorded_with_all_that_they_moved(daemon: DaemonProcess, tmp_path: Path) -> None:
    file = tmp_path / "record"
    environment = {"PATH": "/usr/bin:/bin", **daemon.environment}
    command = [RUN, sys.executable, str(SCRIPTS / "record-row-copies"), str(file), "--cases", "60"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), (done.stdout, done.stderr)
    (about, cases), (_, kept) = read_record(file), read_record()
    assert about["period"] == SIZE
    assert [case[:3] for case in cases] == [case[:3] for case in kept[:60]]
    # Copies of other rows have other digests.
    copies = [case for case in cases if "src" in case.arguments and case.result == 0]
    moved = {case.digest for case in copies if all(case.arguments.get(size, 1) for size in "whd")}
    unmoved = {case.digest for case in copies if not all(case.arguments.get(size, 1) for size in "whd")}
    assert (len(moved) > 30, len(unmoved)) == (True, 1), (len(moved), len(unmoved))
