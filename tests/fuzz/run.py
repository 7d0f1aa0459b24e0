"""Fuzzes at length: 100,000 sessions at the mind and 2,000 at a live daemon, unless told otherwise (scripts/fuzz)."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from fuzz_daemon import fuzz_daemon
from fuzz_mind import fuzz_mind
from processes import DaemonProcess, adopt_orphans


def main() -> None:
    """Run both; a failure is a traceback with the session's number and the seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=100_000, help="at the mind")
    parser.add_argument("--live", type=int, default=2_000, help="at a daemon that runs")
    given = parser.parse_args()
    began = time.monotonic()
    events = fuzz_mind(given.seed, given.sessions)
    print(f"mind: {given.sessions} sessions, {events} events, {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    found = _live(given.seed, given.live)
    print(f"daemon: {given.live} sessions, {time.monotonic() - began:.0f} s; {found}")


def _live(seed: int, sessions: int) -> object:
    adopt_orphans()
    directory = Path(tempfile.mkdtemp(prefix="pympsd-fuzz-"))
    directory.chmod(0o755)
    for name in ("pipe", "log"):
        (directory / name).mkdir()
    daemon = DaemonProcess(directory)
    try:
        assert daemon.start().returncode == 0
        return fuzz_daemon(daemon, seed, sessions)
    finally:
        daemon.stop()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
