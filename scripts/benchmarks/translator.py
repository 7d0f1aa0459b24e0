"""The PTX translator against the feasibility study's prototype, on its five kernels, in one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timing import Report

ROOT = Path(__file__).resolve().parents[2]
BENCH = "tests.emulated.bench_against_study"


def measure(report: Report, study: str | None) -> None:
    """Run both on each kernel; each ratio is this translator's time over the study's."""
    if study is None:
        sys.exit("translator needs --study FILE, the prototype it is held against")
    words = [sys.executable, "-m", BENCH, str(Path(study).resolve())]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    for line in done.stdout.splitlines():
        kernel, ratio = line.split()[0], float(line.split()[-1])
        report.add(f"{kernel}, against the study's prototype", ratio, 1.0, "x")
        print(f"    ({line})")
