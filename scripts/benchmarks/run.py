"""Run the benchmarks named on the command line (default: all possible); exit status 1 if one is over its bound."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import client
import control
import monitoring
import named
import native
import provisioning
import routing
import tracing
import translator
from beside_vendor import run as beside_vendor
from emulated import measure as emulated
from gpu import measure
from timing import Report

WHAT = (
    *("control", "named", "client", "routing", "native", "provisioning", "monitoring", "tracing"),
    *("translator", "emulated"),
)


def main() -> int:
    """Measure and print; ``gpu`` and ``vendor`` are separate, each with its own options."""
    if sys.argv[1:2] == ["gpu"]:
        return measure.main(sys.argv[2:])
    if sys.argv[1:2] == ["vendor"]:
        return beside_vendor.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"{', '.join(WHAT)}; or gpu or vendor, first (see gpu --help)")
    parser.add_argument("--study", help="the PTX study's file, for translator")
    given = parser.parse_args()
    unknown = [name for name in given.what if name not in WHAT]
    if unknown:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(WHAT)}; gpu or vendor comes first, by itself")
    what = given.what or [
        "control",
        "named",
        "client",
        "routing",
        "native",
        "provisioning",
        "monitoring",
        "tracing",
        *(["translator"] if given.study else []),
    ]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, Linux {platform.release()}")
    report = Report()
    if "control" in what:
        control.measure(report)
    if "named" in what:
        named.measure(report)
    if "client" in what:
        client.measure(report)
    if "routing" in what:
        routing.measure(report)
    if "native" in what:
        native.measure(report)
    if "provisioning" in what:
        provisioning.measure(report)
    if "monitoring" in what:
        monitoring.measure(report)
    if "tracing" in what:
        tracing.measure(report)
    if "emulated" in what:
        emulated.measure(report)
    if "translator" in what:
        translator.measure(report, given.study)
    return 1 if report.over else 0


if __name__ == "__main__":
    sys.exit(main())
