"""Run ``pympsd-smi memory-limits``, which shows and sets the daemon's limits for the memory of a cgroup's clients.

The command line is that of nvidia-smi's memory-limits, whose *namespace* is a cgroup (MPS documents, Memory
Partitioning).
"""

import argparse
import sys
from functools import partial
from typing import Final, NoReturn

import msgspec

from pympsd.control.connection import CannotAsk, Control
from pympsd.control.records import Count, convert
from pympsd.smi.options import UnsupportedRequest
from pympsd.vocabulary.answers import NO_LIMITS
from pympsd.vocabulary.limits import MAX_MEMORY
from pympsd.vocabulary.mistyped import Parser
from pympsd.vocabulary.rules import expand_cgroups
from pympsd.vocabulary.untrusted import printable

INVALID, UNAVAILABLE, NO_PERMISSION = 2, 3, 4
"""Exit statuses, as nvidia-smi's manual page lists them."""
_MOUNT: Final = "/sys/fs/cgroup"
_MIB: Final = 1 << 20
_MAX_MIB: Final = MAX_MEMORY // _MIB
"""The maximum limit in MiB, for which a soft limit may have ``max``."""


class _Limits(msgspec.Struct, rename="kebab"):
    """A row of ``memacct list``: the limits of a cgroup on a device, in bytes."""

    cgroup: str
    used: Count
    soft_limit: Count | None
    hard_limit: Count | None


class _Parser(Parser):
    def error(self, message: str) -> NoReturn:
        raise UnsupportedRequest(f"{message}\n\n{self.format_usage()}", INVALID)


def _show(text: str) -> NoReturn:
    raise UnsupportedRequest(text, 0)  # status 0: printed like an answer


def answer(arguments: list[str], name: str) -> tuple[str, int]:
    """Run ``memory-limits`` with these arguments; return the text to print and the exit status.

    The status is 0, 3 if the daemon does not answer or refuses, or 4 if the caller may not set limits. With a status
    other than 0, the text is a message.

    Args:
        arguments: The words after ``memory-limits``.
        name: The name under which the program was started, for messages.

    Raises:
        UnsupportedRequest: The arguments are invalid (status 2), or ask for help (status 0).
    """
    parser = _Parser(prog=f"{name} memory-limits", allow_abbrev=False, show=_show)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", action="store_true", help="set limits (the default)")
    which.add_argument("--get", action="store_true", help="show the limits and the memory in use")
    parser.add_argument("-i", "--id", required=True, metavar="DEVICE", help="the device: its index or UUID")
    parser.add_argument(
        "-n", "--namespace", required=True, metavar="CGROUP", help=f"the cgroup, such as {_MOUNT}/batch"
    )
    parser.add_argument("--soft-limit", metavar="MIB", help="guaranteed memory in MiB, or max, or default (none)")
    parser.add_argument(
        "--hard-limit", metavar="MIB", help="maximum memory in MiB, or max or default (all of the device's)"
    )
    options = parser.parse_args(arguments)
    soft, hard = _mebibytes(options, "soft_limit"), _mebibytes(options, "hard_limit")
    if options.get != (options.soft_limit is None and options.hard_limit is None):
        raise UnsupportedRequest(f"--get, or --soft-limit, --hard-limit or both\n\n{parser.format_usage()}", INVALID)
    if any(word.isspace() for word in (*options.namespace, *options.id)):
        raise UnsupportedRequest("names of cgroups and devices have no spaces\n", INVALID)
    try:
        with Control(warn=partial(print, file=sys.stderr)) as daemon:
            if options.get:
                return _render(daemon, options.namespace, options.id), 0
            if soft == "max" and hard is None:
                soft = _hard_limit(daemon, options.namespace, options.id) or soft
            daemon.command(f"memacct limit {options.namespace} --device={options.id}{_options(soft, hard)}")
            return "", 0
    except CannotAsk as error:
        status = NO_PERMISSION if "Insufficient privileges" in str(error) else UNAVAILABLE
        return f"Unable to {'get' if options.get else 'set'} memory limit: {error}\n", status


def _mebibytes(arguments: argparse.Namespace, option: str) -> int | str | None:
    """Return the value of an option: a number of MiB, ``max`` or ``default``; None if the option is not given."""
    text: str | None = getattr(arguments, option)
    if text is None or text in ("max", "default"):
        return text
    minimum = 1 if option == "hard_limit" else 0
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and minimum <= int(text) <= _MAX_MIB):
        allowed = "a MebiByte value above 0" if minimum else "a non-negative MebiByte value"
        raise UnsupportedRequest(
            f"--{option.replace('_', '-')} must be {allowed}, max or default, not {text!r}\n", INVALID
        )
    return int(text)


def _options(soft: int | str | None, hard: int | str | None) -> str:
    """Return the options of ``memacct limit``."""
    options = ""
    if soft is not None:
        if soft == "max":
            soft = hard if isinstance(hard, int) else _MAX_MIB
        options += f" --soft-limit={soft}M" if soft not in (0, "default") else " --soft-limit=none"
    if hard is not None:
        options += f" --hard-limit={hard}M" if isinstance(hard, int) else " --hard-limit=unlimited"
    return options


def _hard_limit(daemon: Control, cgroup: str, device: str) -> int | None:
    """Return a cgroup's own hard limit in MiB; None without one. Raise CannotAsk."""
    rows = _find_own_limits(daemon, cgroup, device)
    return rows[0].hard_limit // _MIB if rows and rows[0].hard_limit else None


def _find_own_limits(daemon: Control, cgroup: str, device: str) -> list[_Limits]:
    """Return the row with a cgroup's own limits on a device, or an empty list. Raise CannotAsk."""
    try:
        return convert(list[_Limits], daemon.listing(f"memacct list {cgroup} --device={device}"))
    except CannotAsk as error:
        if NO_LIMITS.partition("{}")[2] not in str(error):
            raise
        return []


def _render(daemon: Control, cgroup: str, device: str) -> str:
    """Return the text of a cgroup's limits, or else of the limits of the nearest cgroup above it. Raise CannotAsk."""
    rows = _find_own_limits(daemon, cgroup, device)
    if not rows:
        above = expand_cgroups([cgroup.removeprefix(_MOUNT)])
        limits = convert(list[_Limits], daemon.listing(f"memacct list --device={device}"))
        rows = [row for row in limits if row.cgroup in above]
    if not rows:
        raise CannotAsk(f"neither {cgroup} nor a cgroup above it has one")
    row = max(rows, key=lambda limits_row: len(limits_row.cgroup))
    soft, hard = row.soft_limit or 0, row.hard_limit
    texts = {
        "namespace": f"{_MOUNT}{printable(row.cgroup)}".rstrip("/"),
        "soft limit": "max" if soft == MAX_MEMORY else f"{soft // _MIB} MiB",
        "hard limit": "max" if hard is None else f"{hard // _MIB} MiB",
        "current used": f"{row.used // _MIB} MiB",
    }
    return "".join(f"{name}: {text}\n" for name, text in texts.items())
