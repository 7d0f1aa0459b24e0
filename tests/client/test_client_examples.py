"""The examples in the client's docstrings do what they show, each in a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from examples import modules_with_examples
from processes import SECONDS

PROGRAM = """
import doctest, importlib, sys, warnings
warnings.simplefilter("ignore")  # there is no daemon: cuInit warns of its private device
report = doctest.testmod(importlib.import_module(sys.argv[1]), optionflags=doctest.ELLIPSIS)
print(report.attempted)
sys.exit(report.failed)
"""


@pytest.mark.parametrize("module", modules_with_examples("pympsd_client"))
def test_the_examples_of_docstrings(module: str, tmp_path: Path) -> None:
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "PYMPSD_BACKEND": "emulated",
        "PYMPSD_EMULATED_DEVICES": "H200",
    }
    command = [sys.executable, "-c", PROGRAM, module]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert int(ran.stdout) > 0
