"""One client: the latency of calls, and the rate of copies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from gpu import ways
from gpu.clients import Client, Failure, end_all
from gpu.figures import Run
from gpu.kernels import EMPTY

LATENCY: Final = "latency"
COPIES: Final = "copies"
MEBIBYTE: Final = 1 << 20
KINDS: Final = ("pageable to device", "pageable to host", "pinned to device", "pinned to host")
_WAIT_SECONDS: Final = 1.0
_MAX_WAITS: Final = 20_000
_PAIRS: Final = 2000
_BATCH, _BATCHES = 100, 200
_COPIES: Final = 7


def quantile(samples: Sequence[float], part: float) -> float:
    """Return the sample below which ``part`` of all samples lie."""
    ordered = sorted(samples)
    if not ordered:
        raise Failure("there were no samples")
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure_latency(run: Run, way: ways.Way) -> None:
    """Measure the µs of launch and synchronise, of an asynchronous launch (from Python), of allocate and free."""
    figures = run.figures

    def put(what: str, nanoseconds: float) -> None:
        figures.put(nanoseconds / 1000, LATENCY, way.name, what)
        print(f"{f'{what}, {way.name}':<56} {nanoseconds / 1000:>12.2f} µs", flush=True)

    def measure(client: Client) -> None:
        seconds = min(_WAIT_SECONDS, 2 * run.seconds)
        finish = time.monotonic_ns() + int(seconds * 1e9)
        waits = _numbers(client.ask(f"wait {EMPTY.words()} 0 {finish} {_MAX_WAITS}", seconds))
        put("launch and synchronise, p50", quantile(waits, 0.5))
        put("launch and synchronise, p99", quantile(waits, 0.99))
        if way.name in (ways.PYMPSD, ways.BINDINGS):
            batches = 10 if run.rehearsal else _BATCHES
            put("asynchronous launch", median(_numbers(client.ask(f"asynchronous {_BATCH} {batches}"))))
        put("allocate and free", median(_numbers(client.ask(f"allocate {_PAIRS}"))))

    _with_client(run, way, f"latencies, {way.name}", measure)


def measure_copies(run: Run, way: ways.Way) -> None:
    """Measure the GB/s (10^9 bytes) of copies of 256 MiB, the median of seven."""
    size = (16 if run.rehearsal else 256) * MEBIBYTE

    def measure(client: Client) -> None:
        taken = _numbers(client.ask(f"copies {size} {_COPIES}"))
        for kind, start in zip(KINDS, range(0, len(taken), _COPIES), strict=True):
            rate = size / median(taken[start : start + _COPIES])
            run.figures.put(rate, COPIES, way.name, kind)
            print(f"{f'{size // MEBIBYTE} MiB {kind}, {way.name}':<56} {rate:>12.2f} GB/s", flush=True)

    _with_client(run, way, f"copies, {way.name}", measure)


def _numbers(answer: str) -> list[float]:
    return [float(number) for number in answer.split()]


def _with_client(run: Run, way: ways.Way, cell: str, measure) -> None:  # type: ignore[no-untyped-def]
    clients: list[Client] = []
    try:
        run.check_time()
        clients.append(way.start())
        clients[0].answer(60.0)
        way.check()
        measure(clients[0])
    except ways.WrongWorker:
        raise
    except Failure as error:
        run.figures.fail(cell, str(error))
    finally:
        end_all(clients)
