"""The program behind ``pympsd top``."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from pympsd.cli.control_client import NO_OUTPUT, SILENT, print_text
from pympsd.control import CannotAsk, Control, Silent
from pympsd.top.table import QUERIES, SORTS, Answers, lines, rows, summary
from pympsd.vocabulary.mistyped import Parser

KEYS = "keys: up, down select; s next order; / filter; t terminate the selected client; h help; q quit"


def main(arguments: Sequence[str], timeout: float, trust_daemon: bool = False) -> int:
    """Show the table until q is pressed, or once; return the exit status.

    ``trust_daemon``: allow terminating clients even if the daemon is neither root's nor the caller's.
    """
    options = _options(arguments)
    try:
        with Control(timeout=timeout, warn=partial(print, file=sys.stderr), trust_daemon=trust_daemon) as daemon:
            if options.json:
                answers = dict(zip(("servers", "waiting", "machine"), daemon.query(*QUERIES), strict=True))
                return print_text(f"{json.dumps(answers)}\n")
            if options.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
                reply = Answers.of(daemon.query(*QUERIES))
                # A rate needs two answers, one second apart.
                table = lines(rows(reply, options.sort, options.filter), counts_launches=False)
                return print_text("".join(f"{line}\n" for line in (summary(reply), *table)))
            return _show(daemon, options)
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return SILENT if isinstance(error, Silent) else 1
    except KeyboardInterrupt:
        return 0


def _show(daemon: Control, options: argparse.Namespace) -> int:
    from pympsd.top.screen import NoTerminal, show

    try:
        show(daemon, options.interval, options.sort, options.filter)
    except NoTerminal as error:
        print(f"pympsd top: {error}", file=sys.stderr)
        return NO_OUTPUT
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    description = "Show servers, clients and the queue."
    parser = Parser(prog="pympsd top", show=print_text, description=description, epilog=KEYS)
    parser.add_argument("--once", action="store_true", help="print the table once (the default without a terminal)")
    parser.add_argument("--json", action="store_true", help="print the table's data once, as JSON")
    parser.add_argument("--sort", choices=tuple(SORTS), default="server", help="the order of the rows")
    parser.add_argument("--filter", metavar="TEXT", default="", help="show only rows that contain this text")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=1.0, help="time between two updates (default 1)"
    )
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"0.1 to 3600 seconds, not {text!r}")
    return seconds
