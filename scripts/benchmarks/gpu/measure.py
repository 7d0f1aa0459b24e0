"""``scripts/bench gpu``: everything in one run, then one table of ratios; it changes no setting of the GPU.

pympsd next to native processes that share the GPU by time slicing, next to the vendor's MPS where
nvidia-cuda-mps-control is installed (in directories of its own), and next to one context with a thread for each
client. The raw figures are kept as JSON. Exit status 1 when a target is missed, a figure could not be measured, or
the workers measured are not the native ones.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from gpu import quality, ratios, single, throughput, ways
from gpu.clients import Failure
from gpu.figures import Figures, Run
from gpu.kernels import COUNTS
from gpu.machine import conditions
from gpu.processes import adopt_orphans

MEASURES: Final = {
    throughput.SECTION: throughput.measure,
    single.LATENCY: single.measure_latency,
    single.COPIES: single.measure_copies,
    quality.SECTION: quality.measure,
}
SECTIONS_OF: Final = {
    ways.PYMPSD: tuple(MEASURES),
    ways.BINDINGS: (throughput.SECTION, single.LATENCY),
    ways.SLICING: tuple(MEASURES),
    ways.VENDOR: (throughput.SECTION, quality.SECTION),
    ways.ONE_CONTEXT: (throughput.SECTION,),
}
SHORT_NAMES: Final = {
    "pympsd": ways.PYMPSD,
    "bindings": ways.BINDINGS,
    "slicing": ways.SLICING,
    "vendor": ways.VENDOR,
    "prototype": ways.ONE_CONTEXT,
}
NEED_BASELINE: Final = {ways.SLICING, ways.VENDOR, ways.ONE_CONTEXT}
MEASURED: Final = Path(__file__).parents[3] / "docs" / "measured" / "gpu-h200.json"
"""The source of docs/performance.md."""
EMULATED: Final = "emulated"
NATIVE: Final = "native"

Running = Callable[[], AbstractContextManager[ways.Way]]
"""Starts a way, and ends it."""


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit status."""
    given = _parser().parse_args(arguments)
    if given.reprint:
        return _report(Figures.load(given.reprint))
    began = time.monotonic()
    figures = Figures([section for section in MEASURES if section in given.only])
    if given.ways is None:
        given.ways = (ways.PYMPSD,) if given.backend == EMULATED else tuple(SECTIONS_OF)
    run = Run(figures, given.seconds, given.counts, began + given.limit, given.backend == EMULATED)
    figures.conditions = {
        **conditions(given.commit),
        "seconds": given.seconds,
        "counts": given.counts,
        "ways": given.ways,
    }
    figures.conditions |= {"worker": ways.UNKNOWN, "rehearsal": run.rehearsal}
    print(", ".join(f"{name}: {value}" for name, value in figures.conditions.items()), flush=True)
    place = given.json or Path(tempfile.mkdtemp(prefix="pympsd-figures-")) / "gpu.json"
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _measure(run, given)
    finally:
        figures.conditions["took"] = round(time.monotonic() - began, 1)
        figures.save(place)
        print(f"the raw figures are in {place}", flush=True)
    return _report(figures)


def _measure(run: Run, given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="pympsd-bench-") as directory:
        baseline = _baseline(run, directory) if set(given.ways) & NEED_BASELINE else ""
        starts: dict[str, Running] = {
            ways.PYMPSD: lambda: ways.pympsd(given.backend, given.any_worker or run.rehearsal),
            ways.BINDINGS: ways.bindings,
            ways.SLICING: lambda: ways.slicing(baseline),
            ways.VENDOR: lambda: ways.vendor(baseline),
            ways.ONE_CONTEXT: lambda: ways.one_context(baseline),
        }
        for name in SECTIONS_OF:  # pympsd first: end a run of the wrong worker immediately
            if name in given.ways and (baseline or name not in NEED_BASELINE):
                _measure_way(run, name, starts[name])


def _baseline(run: Run, directory: str) -> str:
    """Return the path of the native client, empty if it cannot be built."""
    try:
        return ways.build_baseline(directory)
    except Failure as error:
        run.figures.fail("every native figure", str(error))
        return ""


def _measure_way(run: Run, name: str, running: Running) -> None:
    sections = [section for section in SECTIONS_OF[name] if run.is_requested(section)]
    if not sections:
        return
    print(f"--- {name}", flush=True)
    try:
        run.check_time()
        with running() as way:
            for section in sections:
                MEASURES[section](run, way)
            if name == ways.PYMPSD:
                run.figures.conditions["worker"] = way.check()
    except ways.WrongWorker as error:
        run.figures.conditions["worker"] = error.kind
        raise SystemExit(f"{error}: nothing else is measured; --any-worker continues") from None
    except ways.NotInstalled as error:
        run.figures.leave_out(name, str(error))
    except Failure as error:
        run.figures.fail(name, str(error))


def _report(figures: Figures) -> int:
    """Print the table and the notes on it; return the exit status."""
    counts = tuple(figures.conditions["counts"])
    rows = ratios.rows(figures, counts)
    short = sum(row.is_short(count) for row in rows for count in row.ratios)
    print(f"\n{ratios.table(rows, counts)}\n")
    for name, notes in (("not measured", figures.failures), ("left out", figures.left_out)):
        for note in notes:
            print(f"{name}: {note['cell']}: {note['reason']}")
    worker = figures.conditions["worker"]
    print(f"workers: {worker}; ratios short of their targets: {short}; failures: {len(figures.failures)}")
    if figures.conditions["rehearsal"]:
        print("this was a rehearsal on the emulated GPU: its figures say nothing of any GPU")
        return 1 if figures.failures else 0
    wrong = ways.PYMPSD in figures.conditions["ways"] and worker != NATIVE
    if wrong:
        print(f"the workers measured are not the native ones but {worker}: this run does not count")
    return 1 if short or figures.failures or wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument(
        "--only", type=_sections, default=tuple(MEASURES), help=f"of {','.join(MEASURES)}, with commas (default: all)"
    )
    parser.add_argument("--ways", type=_ways, help=f"of {','.join(SHORT_NAMES)}, with commas (default: all)")
    parser.add_argument("--seconds", type=float, default=0.45, help="measured for each cell (default 0.45)")
    parser.add_argument(
        "--counts", type=counts_of, default=COUNTS, help="numbers of clients, ascending (default 1,2,4,8,16,32,48)"
    )
    parser.add_argument(
        "--limit", type=float, default=540.0, help="begin nothing after that many seconds (default 540)"
    )
    parser.add_argument("--json", type=Path, help="where the raw figures go (default: a temporary folder)")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--any-worker", action="store_true", help="go on where the workers are not the native ones")
    parser.add_argument(
        "--reprint", type=Path, nargs="?", const=MEASURED, metavar="JSON",
        help="measure nothing: print the table of a file (default: docs/measured/gpu-h200.json)",
    )  # fmt: skip
    parser.add_argument("--backend", choices=("cuda", EMULATED), default="cuda", help=argparse.SUPPRESS)
    return parser


def _sections(text: str) -> tuple[str, ...]:
    requested = tuple(text.split(","))
    for section in requested:
        if section not in MEASURES:
            raise argparse.ArgumentTypeError(f"{section!r} is not one of {', '.join(MEASURES)}")
    return requested


def _ways(text: str) -> tuple[str, ...]:
    unknown = sorted(set(text.split(",")) - set(SHORT_NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(SHORT_NAMES)}")
    return tuple(SHORT_NAMES[name] for name in text.split(","))


def counts_of(text: str) -> tuple[int, ...]:
    """Read numbers of clients; raise ArgumentTypeError."""
    try:
        counts = tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if list(counts) != sorted(set(counts)) or counts[0] < 1:
        raise argparse.ArgumentTypeError("numbers of clients ascend from at least 1")
    return counts
