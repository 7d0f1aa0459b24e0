"""``scripts/bench vendor``: pympsd with the driver's own server next to the vendor's daemon, in one run on one GPU.

Both daemons run at the same time, in private directories; each measurement of one is repeated with the other,
with the same unmodified programs. PYMPSD_VENDOR_SERVER names the server where it is not in PATH. Exit status 1 when
a bound is missed or a figure could not be measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from gpu.clients import Failure
from gpu.figures import Figures, Run
from gpu.kernels import COUNTS
from gpu.machine import conditions
from gpu.measure import counts_of
from gpu.processes import adopt_orphans
from gpu.ratios import table

from beside_vendor import rows
from beside_vendor.daemons import Daemon, Programs, both, programs
from beside_vendor.sections import SECTIONS


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit status."""
    given = _parser().parse_args(arguments)
    if given.reprint:
        return _report(Figures.load(given.reprint))
    began = time.monotonic()
    figures = Figures([section for section in SECTIONS if section in given.only])
    run = Run(figures, given.seconds, given.counts, began + given.limit, bool(given.program))
    figures.conditions = {**conditions(given.commit), "seconds": given.seconds, "counts": given.counts}
    figures.conditions |= {"rounds": given.rounds, "rehearsal": run.rehearsal}
    print(", ".join(f"{name}: {value}" for name, value in figures.conditions.items()), flush=True)
    place = given.json or Path(tempfile.mkdtemp(prefix="pympsd-figures-")) / "vendor.json"
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with programs(given.program) as made, both() as daemons:
            for section in figures.sections:
                _measure(run, section, daemons, made, given.rounds)
                figures.save(place)  # a run that is cut short has what it had measured
    except Failure as error:
        figures.fail("everything that follows", str(error))
    finally:
        figures.conditions["took"] = round(time.monotonic() - began, 1)
        figures.save(place)
        print(f"the raw figures are in {place}", flush=True)
    return _report(figures)


def _measure(run: Run, section: str, daemons: tuple[Daemon, Daemon], programs: Programs, rounds: int) -> None:
    print(f"--- {section}", flush=True)
    try:
        run.check_time()
        SECTIONS[section](run, daemons, programs, rounds)
    except Failure as error:
        run.figures.fail(section, str(error))


def _report(figures: Figures) -> int:
    """Print the table and the notes on it; return the exit status."""
    result = rows.rows(figures, tuple(figures.conditions["counts"]))
    short = sum(row.is_short(count) for row in result for count in row.ratios)
    print(f"\n{table(result, tuple(figures.conditions['counts']))}\n")
    for name, notes in (("not measured", figures.failures), ("left out", figures.left_out)):
        for note in notes:
            print(f"{name}: {note['cell']}: {note['reason']}")
    print(f"short of their bounds: {short}; failures: {len(figures.failures)}; took {figures.conditions['took']} s")
    if figures.conditions["rehearsal"]:
        print("this was a rehearsal with fake programs: its figures say nothing of any GPU")
        return 1 if figures.failures else 0
    return 1 if short or figures.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench vendor", description=__doc__)
    parser.add_argument(
        "--only", type=_sections, default=tuple(SECTIONS), help=f"of {','.join(SECTIONS)}, with commas (default: all)"
    )
    parser.add_argument("--seconds", type=float, default=0.45, help="measured for each cell (default 0.45)")
    parser.add_argument(
        "--counts", type=counts_of, default=COUNTS, help="numbers of clients, ascending (default 1,2,4,8,16,32,48)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of launches, new clients in each (default 3)")
    parser.add_argument(
        "--limit", type=float, default=420.0, help="begin nothing after that many seconds (default 420)"
    )
    parser.add_argument("--json", type=Path, help="where the raw figures go (default: a temporary folder)")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--reprint", type=Path, metavar="JSON", help="measure nothing: print the table of a file")
    parser.add_argument("--program", default="", help=argparse.SUPPRESS)
    return parser


def _sections(text: str) -> tuple[str, ...]:
    sections_ = tuple(text.split(","))
    for section in sections_:
        if section not in SECTIONS:
            raise argparse.ArgumentTypeError(f"{section!r} is not one of {', '.join(SECTIONS)}")
    return sections_
