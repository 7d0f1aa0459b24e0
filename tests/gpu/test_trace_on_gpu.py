"""A trace of a GPU: when kernels and copies of clients ran there, by its own clock and this machine's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from processes import ClientProcess, DaemonProcess

RIGHT = "CUDA_SUCCESS CUDA_SUCCESS wrong=0"
BUSY_MS = 50
SLACK = 100.0
"""Microseconds by which the clocks may differ."""
Start = Callable[..., ClientProcess]


def trace(daemon: DaemonProcess, file: Path, do: Callable[[], None]) -> tuple[list[Any], float, float]:
    """Trace an action; return the events, and its start and end in microseconds."""
    done = daemon.run(["trace", "start", str(file)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    daemon.wait_for_server_messages()
    began = time.monotonic()
    do()
    ended = time.monotonic()
    done = daemon.run(["trace", "stop"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return json.loads(file.read_text()), began * 1e6, ended * 1e6


def work_of(events: list[Any], client: ClientProcess) -> list[tuple[str, float, float]]:
    """Return the work in a client's streams: names and times."""
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == client.pid]
    return [
        (entry["name"], entry["ts"], entry["ts"] + entry["dur"]) for entry in slices if "waited_us" in entry["args"]
    ]


def test_kernels_and_copies_are_timed(daemon: DaemonProcess, start: Start, directory: Path) -> None:
    first_client, second = start(), start()

    def work() -> None:
        assert first_client.call(f"busy {BUSY_MS}").startswith("CUDA_SUCCESS")
        for client in (first_client, second):
            assert client.call("sync") == "CUDA_SUCCESS"
            assert client.call("add") == RIGHT

    events, began, ended = trace(daemon, directory / "trace.json", work)
    for client in (first_client, second):
        done = sorted(work_of(events, client), key=lambda entry: entry[1])
        assert {"add_one", "copy"} <= {name for name, _, _ in done}
        assert all(began - SLACK <= first <= last <= ended + SLACK for _, first, last in done)
        assert all(first[2] <= later[1] + SLACK for first, later in pairwise(done)), "they are of one stream"
    (busy,) = (last - first for name, first, last in work_of(events, first_client) if name == "busy")
    assert BUSY_MS * 900 < busy < ended - began
    for client in (first_client, second):
        assert client.call("add") == RIGHT, "natively again"
