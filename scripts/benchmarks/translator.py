"""The PTX translator against the feasibility study's prototype, on its five kernels, in one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timing import Report

BENCH = Path(__file__).resolve().parents[2] / "tests" / "emulated" / "bench_against_study.py"


def measure(report: Report, study: str) -> None:
    """Run both on each kernel; each ratio is ours over the study's."""
    done = subprocess.run([sys.executable, BENCH, study], capture_output=True, text=True, check=True)
    print(done.stdout)
