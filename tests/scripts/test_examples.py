"""Runs the examples of the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SECONDS

from pympsd.control import Daemon

PROGRAMS = Path(__file__).parents[2] / "docs" / "programs.md"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_provisioning_shows_what_its_page_says() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "provisioning.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    output = re.sub(r"\b\d{2,}(?= ran on| of user)", "N", done.stdout)
    assert "Each client sees 66 and 66 of 132 SMs." in output
    assert re.findall(r"ran on SMs (\S+)\.", output) in (["0-65", "66-131"], ["66-131", "0-65"])
    assert "Client N of user 10002 is waiting for its turn, behind user 10001" in output
    assert output.endswith("All was as it should be.\n")


@pytest.mark.long
def test_the_clients_program_runs_anywhere_and_prints_its_data(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PROGRAMS.read_text(), re.DOTALL)
    expected = re.findall(r"^print\(numbers\)  # (.*)$", block, re.MULTILINE)
    with Daemon(machine="H200") as daemon:

        def run(program: str) -> subprocess.CompletedProcess[str]:
            environment = {"CUDA_MPS_PIPE_DIRECTORY": daemon.pipe_directory, "PYMPSD_REQUIRE_MPS": "1"}
            command = [sys.executable, "-Ic", program]
            return subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
            )

        done = run(block)
        assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", expected)
        for right, wrong in (
            ("cuInit(0)", "cuInit(1)"),
            ('b"add_one")', 'b"gone")'),
            ("(add_one, 16", "(add_one, 0"),
        ):
            assert right in block
            done = run(block.replace(right, wrong))
            assert (done.returncode, done.stdout) == (1, ""), "a call that fails ends it"
            assert "RuntimeError: CUDA_ERROR_" in done.stderr


def test_sharing_reports_what_it_needs(tmp_path: Path) -> None:
    def get_refusal(*arguments: object) -> str:
        command = [sys.executable, EXAMPLES / "sharing.py", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    trace = tmp_path / "trace.json"
    assert "sharing.py POLICY TRACE" in get_refusal()
    assert get_refusal("nonsense", trace).startswith("PYMPSD_SCHEDULING_POLICY must be one of ")
    trace.write_text("mine")
    assert get_refusal("fair", trace) == f"{trace} exists: remove it, or name another file\n"
