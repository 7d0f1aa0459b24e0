"""``python -m pympsd_client``: what a program sees here, what is wrong, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import SECONDS

from pympsd.version import VERSION


def report(tmp_path: Path, **settings: str) -> tuple[int, str, str]:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PYMPSD_EMULATED_DEVICES": "2xA100", **settings}
    command = [sys.executable, "-m", "pympsd_client"]
    # Elsewhere than in a checkout, whose sources Python would find first: nothing is compiled there.
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def test_without_a_daemon(tmp_path: Path) -> None:
    status, said, errors = report(tmp_path)
    assert (status, errors) == (1, "")
    assert VERSION in said
    assert f"at {tmp_path}/control: no daemon (No such file or directory)" in said
    assert "a private executor, without MPS" in said
    assert "backend:       emulated" in said
    assert said.count("NVIDIA A100") == 2
    (wrong,) = [line for line in said.splitlines() if line.startswith("wrong: ")]
    assert "start a daemon (pympsd -d)" in wrong


def test_what_cuinit_refuses_is_said(tmp_path: Path) -> None:
    status, said, errors = report(tmp_path, PYMPSD_REQUIRE_MPS="1")
    assert (status, errors) == (1, "")
    assert "CUDA_ERROR_MPS_CONNECTION_FAILED" in said
    assert "PYMPSD_REQUIRE_MPS=1 asks for one" in said.splitlines()[-1]


def test_a_report_that_cannot_be_printed(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "PYMPSD_REQUIRE_MPS": "1"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pympsd_client"],
            env=environment, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS,
        )  # fmt: skip
    said = "standard output: No space left on device: not all could be printed\n"
    assert (done.returncode, done.stderr) == (74, said)
