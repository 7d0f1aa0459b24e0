"""Fuzzes at length (scripts/fuzz).

By default: 5,000 sessions of the daemon's state machine, 2,000 with a running daemon, 2,000 of a client with a
running server, 250,000 records to a running executor, 2,000 with a daemon that manages the driver's (fake) server,
and 2,000 of our tool with a daemon that lies.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from daemon_machine import fuzz_state_machine
from fake_mps.install import install
from fake_mps.their_daemon import their_daemon
from fuzz_daemon import fuzz_daemon
from fuzz_driver import fuzz_driver_daemon, fuzz_tool
from fuzz_session import fuzz_session
from fuzz_stream import fuzz_stream
from processes import DaemonProcess, adopt_orphans


def main() -> None:
    """Run them all; a failure is a traceback with the seed and the session, or the steps that lead to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=5_000, help="of the state machine")
    parser.add_argument("--live", type=int, default=2_000, help="with a running daemon")
    parser.add_argument("--server", type=int, default=2_000, help="sessions with a running server")
    parser.add_argument("--records", type=int, default=250_000, help="to a running executor")
    parser.add_argument(
        "--vendor", type=int, default=2_000, help="sessions on the vendor's wire, for daemon and tool"
    )
    options = parser.parse_args()
    adopt_orphans()
    if options.sessions:
        began = time.monotonic()
        fuzz_state_machine(options.seed, options.sessions)
        print(f"state machine: {options.sessions} sessions of 40 steps, {time.monotonic() - began:.0f} s", flush=True)
    for name, count, fuzz in (
        ("daemon", options.live, lambda count: _live(lambda daemon: fuzz_daemon(daemon, options.seed, count))),
        ("server", options.server, lambda count: _live(lambda daemon: _at_a_server(daemon, options.seed, count))),
        (
            "vendor",
            options.vendor,
            lambda count: _leading(lambda daemon: fuzz_driver_daemon(daemon, options.seed, count)),
        ),
        ("tool", options.vendor, lambda count: _at_a_tool(options.seed, count)),
        ("executor", options.records, lambda count: fuzz_stream(options.seed, count)),
    ):
        began = time.monotonic()
        if count:
            outcome = fuzz(count)
            print(f"{name}: {count} asked for, {time.monotonic() - began:.0f} s; {outcome}", flush=True)


def _at_a_server(daemon: DaemonProcess, seed: int, sessions: int) -> object:
    client = daemon.client().connect()
    try:
        return fuzz_session(daemon, client, seed, sessions)
    finally:
        client.end()


def _at_a_tool(seed: int, sessions: int) -> object:
    with (
        tempfile.TemporaryDirectory(prefix="pympsd-fuzz-") as folder,
        their_daemon(Path(folder), lambda line: []) as theirs,
    ):
        return fuzz_tool(theirs, Path(folder), seed, sessions)


def _leading(fuzz: Callable[[DaemonProcess], object]) -> object:
    def settings(directory: Path) -> dict[str, str]:
        return {"PYMPSD_BACKEND": "vendor", "PYMPSD_VENDOR_SERVER": str(install(directory))}

    return _live(fuzz, settings)


def _live(
    fuzz: Callable[[DaemonProcess], object], settings: Callable[[Path], dict[str, str]] = lambda directory: {}
) -> object:
    directory = Path(tempfile.mkdtemp(prefix="pympsd-fuzz-"))
    directory.chmod(0o755)
    for name in ("pipe", "log"):
        (directory / name).mkdir()
    daemon = DaemonProcess(directory, settings(directory))
    try:
        assert daemon.start().returncode == 0
        return fuzz(daemon)
    finally:
        daemon.stop()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
