"""The cost of monitoring: ``pympsd top`` with 48 clients, and a client's loss of speed by a scrape each second."""

from __future__ import annotations

import os
import pty
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack

import daemon
from timing import Report

CLIENTS = 48
WATCH_SECONDS = 10.0
ROUNDS = 9
WINDOW_SECONDS = 2.0
PORT = 19400
IDLE = """
import sys
from pympsd_client import driver as cuda
cuda.cuInit(0)
assert cuda.cuDevicePrimaryCtxRetain(0)[0] == 0
print(flush=True)
sys.stdin.read()
"""
BUSY = """
import sys, time
from pympsd_client import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
for line in sys.stdin:
    end, count = time.perf_counter() + float(line), 0
    while time.perf_counter() < end:
        assert cuda.cuMemFree(cuda.cuMemAlloc(4096)[1])[0] == 0
        count += 1
    print(count, flush=True)
"""


def measure(report: Report) -> None:
    """Measure with a daemon that serves metrics."""
    with daemon.running(more=("--metrics", str(PORT))) as (env, _), ExitStack() as stack:
        clients = [stack.enter_context(_client(env, IDLE)) for _ in range(CLIENTS - 1)]
        for client in clients:
            assert _answer(client) == "\n"
        try:
            busy = stack.enter_context(_client(env, BUSY))
            _rate(busy, 1.0)
            report.add(f"pympsd top with {CLIENTS} clients, of a core", 100 * _top(env), 1, "%")
            report.add(
                "round trips without scraping, against those with a scrape each second",
                _compare_scraped(busy),
                1.1,
                "x",
            )
        finally:
            for client in (*clients, busy):
                client.kill()


def _client(env: dict[str, str], program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _top(env: dict[str, str]) -> float:
    """Return the processor time of top on a terminal, without its start, in each second."""
    pid, terminal = pty.fork()
    if not pid:
        os.execve(daemon.PYMPSD, [daemon.PYMPSD, "top"], {**env, "TERM": "xterm", "LINES": "60", "COLUMNS": "120"})
    reader = threading.Thread(target=_read_out, args=(terminal,), daemon=True)
    reader.start()
    time.sleep(2)  # its start
    before, start = _processor_seconds(pid), time.perf_counter()
    time.sleep(WATCH_SECONDS)
    share = (_processor_seconds(pid) - before) / (time.perf_counter() - start)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return share


def _read_out(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        pass  # its end


def _processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def _compare_scraped(busy: subprocess.Popen[str]) -> float:
    """Return the median of the ratios of rates without and with scraping, each next to the next one in time."""
    ratios = []
    before = _rate(busy, WINDOW_SECONDS)
    for _ in range(ROUNDS):
        ended = threading.Event()
        scraper = threading.Thread(target=_scrape, args=(ended,))
        scraper.start()
        scraped = _rate(busy, WINDOW_SECONDS)
        ended.set()
        scraper.join()
        after = _rate(busy, WINDOW_SECONDS)
        ratios.append((before + after) / 2 / scraped)
        before = after
    print(f"    (from {min(ratios):.2f} to {max(ratios):.2f})")
    return statistics.median(ratios)


def _scrape(ended: threading.Event) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
            assert answer.read().endswith(b"# EOF\n")
        if ended.wait(1):
            return


def _rate(busy: subprocess.Popen[str], seconds: float) -> float:
    assert busy.stdin is not None
    busy.stdin.write(f"{seconds}\n")
    busy.stdin.flush()
    return int(_answer(busy)) / seconds


def _answer(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline()
