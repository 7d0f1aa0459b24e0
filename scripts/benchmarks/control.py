"""The control plane: starting the daemon, asking it, starting a server."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import daemon
from timing import Report, median_seconds


def measure(report: Report) -> None:
    """Measure the control plane."""
    starts = []
    for _ in range(5):
        with daemon.running() as (_, taken):
            starts.append(taken * 1000)
    report.add("pympsd -d, until it returns (median of 5)", statistics.median(starts), 400, "ms")
    with daemon.running() as (env, _):
        _ask(report, env)
    readies = [_server_start() for _ in range(5)]
    report.add("start_server to Ready, 8 emulated devices (median of 5)", statistics.median(readies), 600, "ms")


def _ask(report: Report, env: dict[str, str]) -> None:
    bare = [sys.executable, "-I", "-S", "-c", "pass"]

    def ask() -> None:
        subprocess.run([daemon.PYMPSD], env=env, input=b"get_server_list\n", stdout=subprocess.PIPE, check=True)

    def nothing() -> None:
        subprocess.run(bare, env=env, input=b"get_server_list\n", stdout=subprocess.PIPE, check=True)

    asked, base = median_seconds(ask, 60), median_seconds(nothing, 60)
    report.add("echo get_server_list | pympsd, against the bare interpreter (-I -S -c pass)", asked / base, 2.2, "x")
    print(f"    ({asked * 1000:.1f} ms against {base * 1000:.1f} ms)")


def _server_start() -> float:
    with daemon.running("8xH200") as (env, _):
        log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "control.log")
        start = time.perf_counter()
        daemon.say(env, "start_server -uid 0\n")
        while ": Ready" not in log.read_text():
            time.sleep(0.002)
        return (time.perf_counter() - start) * 1000
