"""The program behind ``pympsd plot``."""

import argparse
import os
import sys
from collections.abc import Sequence

from pympsd.cli.control_client import print_text
from pympsd.plot.tracks import BadTrace, read_tracks
from pympsd.vocabulary.mistyped import Parser

NEEDS = "pympsd plot needs matplotlib: pip install 'pympsd[plot]'"


def main(arguments: Sequence[str]) -> int:
    """Draw traces; return the exit status."""
    options = _options(arguments)
    output = options.output or f"{os.path.splitext(options.traces[0])[0]}.svg"
    try:
        texts = [_text(path) for path in options.traces]
        tracks = read_tracks(texts, options.since, options.until)
    except BadTrace as error:
        return _fail(f"{', '.join(options.traces)}: {error}")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}")
    if not tracks:
        return _fail(f"{', '.join(options.traces)}: nothing happened in that time")
    try:
        from pympsd.plot.drawing import draw
    except ImportError:
        return _fail(NEEDS)
    try:
        draw(tracks, output)
    except (OSError, ValueError) as error:
        return _fail(f"{output}: {getattr(error, 'strerror', '') or error}")
    return print_text(f"{output}\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="pympsd plot",
        show=print_text,
        description="Draw traces of 'pympsd trace start FILE', and of programs that ran with PYMPSD_TRACE=FILE. "
        "Several traces of one machine make one picture.",
    )
    parser.add_argument("traces", metavar="FILE", nargs="+", help="a trace")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the picture, .svg, .png or .pdf; default: next to the first trace",
    )
    parser.add_argument("--since", metavar="MS", type=float, default=0.0, help="from this time on, in milliseconds")
    parser.add_argument("--until", metavar="MS", type=float, default=float("inf"), help="up to this time")
    options = parser.parse_args(arguments)
    if not options.since < options.until:
        parser.error(f"--since {options.since:g} is not before --until {options.until:g}: nothing is between them")
    return options


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _fail(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 1
