"""The scripts do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_generated_docs_are_those_of_the_code() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate-docs", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_link_nvidia_names_says_how_it_is_used() -> None:
    done = subprocess.run([ROOT / "scripts" / "link-nvidia-names"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: link-nvidia-names DIR   (a folder that exists)\n")
