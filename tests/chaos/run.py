"""Soaks pympsd (scripts/soak): clients of several users work while processes of every kind are killed at random.

The summary goes to --json (default: standard output), a journal of what was done and when next to it. Exit status 1
if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tests.chaos.rounds import soak  # noqa: E402
from tests.chaos.schedule import DEFAULT_KINDS, Backend, Kind  # noqa: E402 - found by the path above


def main() -> int:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--kinds", type=_kinds, default=DEFAULT_KINDS, help=f"of {', '.join(Kind)}, with commas; or all"
    )
    parser.add_argument(
        "--backend",
        choices=(*Backend, "all"),
        default="all",
        help="rounds with this one alone",
    )
    parser.add_argument("--pace", type=float, default=1.0, help="2: twice as many clients, twice as much chaos")
    parser.add_argument("--json", type=Path, help="where the summary goes")
    options = parser.parse_args()
    place = options.json or Path(tempfile.mkdtemp(prefix="pympsd-journal-")) / "soak.json"
    journal, logs = place.with_suffix(".journal.jsonl"), place.with_suffix(".logs")
    print(f"seed {options.seed}, {options.minutes:g} minutes; journal: {journal}", flush=True)
    began = time.monotonic()
    backends = tuple(Backend) if options.backend == "all" else (Backend(options.backend),)
    summary = soak(options.seed, 60 * options.minutes, options.kinds, journal, logs, options.pace, backends)
    summary = {"commit": _commit(), "duration": round(time.monotonic() - began, 1), **summary}
    text = json.dumps(summary, indent=2)
    place.write_text(text + "\n")
    print(text)
    return 1 if summary["problems"] else 0


def _kinds(text: str) -> frozenset[Kind]:
    return frozenset(Kind) if text == "all" else frozenset(map(Kind, text.split(",")))


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
