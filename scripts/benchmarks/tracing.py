"""The cost of a trace: launches with a wait each, and the calls alone, without and with a trace.

A trace is that of ``trace start`` or of ``PYMPSD_TRACE``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import daemon
from timing import Report

ROUNDS = 9
WINDOW_SECONDS = 1.0
BURST = 20
CLIENT = """
import sys, time
from pympsd_client import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
module = cuda.cuModuleLoadData(b".version 7.0 .target sm_70 .address_size 64 .visible .entry empty() { ret; }")[1]
empty = cuda.cuModuleGetFunction(module, b"empty")[1]
for line in sys.stdin:
    seconds, launches = line.split()
    begin = time.perf_counter()
    count, launching = 0, 0.0
    while (before := time.perf_counter()) < begin + float(seconds):
        for _ in range(int(launches)):
            cuda.cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)
        count, launching = count + int(launches), launching + time.perf_counter() - before
        assert cuda.cuCtxSynchronize()[0] == 0
    print(count / (launching if launches != "1" else time.perf_counter() - begin), flush=True)
"""


def measure(report: Report) -> None:
    """Measure with a daemon of an emulated GPU."""
    with daemon.running() as (env, _), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        calls = Path(folder, "calls.json")
        plain, traced = _client(env, stack), _client({**env, "PYMPSD_TRACE": str(calls)}, stack)
        for client in (plain, traced):
            _rate(client)

        def with_trace() -> float:
            path = Path(folder, "trace.json")
            subprocess.run([daemon.PYMPSD, "trace", "start", str(path)], env=env, check=True)
            rate = _rate(plain)
            subprocess.run([daemon.PYMPSD, "trace", "stop"], env=env, check=True)
            path.unlink()
            return rate

        report.add("launches without a trace, against those with one", _ratio(plain, with_trace), 2.0, "x")
        report.add(
            "launches without PYMPSD_TRACE, against those with it", _ratio(plain, lambda: _rate(traced)), 2.0, "x"
        )
        alone = _ratio(plain, lambda: _rate(traced, BURST), BURST)
        report.add("the call of a launch without PYMPSD_TRACE, against one with it", alone, 2.0, "x")


def _ratio(plain: subprocess.Popen[str], traced: Callable[[], float], launches: int = 1) -> float:
    """Return the median of the ratios of rates, each next to the next one in time; ``launches`` as in _rate."""
    ratios = []
    before = _rate(plain, launches)
    for _ in range(ROUNDS):
        slow = traced()
        after = _rate(plain, launches)
        ratios.append((before + after) / 2 / slow)
        before = after
    print(f"    (from {min(ratios):.2f} to {max(ratios):.2f})")
    return statistics.median(ratios)


def _client(env: dict[str, str], stack: ExitStack) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    client = stack.enter_context(subprocess.Popen([sys.executable, "-c", CLIENT], env=env, text=True, **pipes))
    stack.callback(client.kill)
    return client


def _rate(client: subprocess.Popen[str], launches: int = 1) -> float:
    """Return launches per second: with a wait after each, or of several before a wait the time of the calls alone."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{WINDOW_SECONDS} {launches}\n")
    client.stdin.flush()
    return float(client.stdout.readline())
