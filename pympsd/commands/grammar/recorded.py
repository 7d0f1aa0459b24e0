"""Treat words as driver 580 does in cases that a `Syntax` cannot declare (recorded: grammar.jsonl).

The driver reads numbers as C does, takes a missing PID for 0, ignores further words, and has a special answer for a
few commands without an argument. Programs depend on these answers, so protocol 2 gives them too. This module has the
readers of numbers, the table `RECORDED` of single commands, and the words of later drivers.

If the driver would misread a word so that the command concerns another process or user, the reader refuses the word:
the driver reads ``847x`` as the server 847, and ``4294967295`` as C's largest int.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

from attrs import field, frozen

from pympsd.commands.grammar.syntax import Argument, CommandRefused
from pympsd.vocabulary.identities import NO_USER
from pympsd.vocabulary.limits import BadLimit, ThreadPercentage

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
MAX_QUOTED: Final = 80
"""The maximum number of characters of a word that a message quotes."""
_MAX_DIGITS: Final = 10
"""The maximum number of digits of a PID and of a user id."""


@frozen
class Recorded:
    """The ways in which driver 580 treats a command differently from its other commands."""

    missing: str = ""
    """The line for a missing argument, or for one that does not begin with a number."""
    missing_is_logged_only: bool = False
    """True if the line ``missing`` is logged but not printed."""
    prints_anyway: bool = False
    """True if the answer is printed although further words follow."""
    spellings: Mapping[tuple[str, ...], str] = field(factory=dict)
    """Other forms of an argument: words at the beginning of the arguments, and the one word that replaces them."""


AS_DECLARED: Final = Recorded()
"""The value of `Recorded` for a command that the driver reads as its syntax declares."""
_FORMAT: Final = Recorded(missing="Invalid command format.", missing_is_logged_only=True)
RECORDED: Final = {
    "get_server_status": Recorded(missing="A server PID is required"),
    "start_server": Recorded(
        missing="A user id (UID) is required to start a new server",
        spellings={("-", "uid"): "-uid"},  # the manual also prints it with the blank
    ),
    "get_default_active_thread_percentage": Recorded(prints_anyway=True),
    "set_default_device_pinned_mem_limit": _FORMAT,
    "get_default_device_pinned_mem_limit": _FORMAT,
    "set_device_pinned_mem_limit": _FORMAT,
    "get_device_pinned_mem_limit": _FORMAT,
}

WITHOUT_EFFECT: Final = {"-mlopart": "no device of this machine has locality domains"}
"""The options of later drivers that are accepted but have no effect, each with the reason."""

BY_FIRST_WORD: Final = {"sm_partition rm": "sm-partition delete P --server=NAME --device=UUID"}
"""The equivalent commands of protocol 3 for commands of protocol 2 whose equivalent depends on their first argument.

The key is the command and its first argument.
"""


# --- numbers as C reads them: the leading digits of a word; the rest is ignored


def read_leading_integer(word: str) -> int | None:
    """Return the number that strtol reads at the start of a word, clamped to a C int; None if it reads nothing."""
    text = word.lstrip(" \t\r\n\v\f")
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = len(sign)
    while digits < len(text) and text[digits] in "0123456789":
        digits += 1
    if digits == len(sign):
        return None
    # Python refuses to read numbers with thousands of digits; digits past the 20th cannot change a clamped number.
    value = int(f"{sign}{text[len(sign) : digits].lstrip('0')[:20] or '0'}")
    return max(INT_MIN, min(INT_MAX, value))


_DECIMAL = re.compile(r"[ \t\r\n\v\f]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_HEXADECIMAL = re.compile(
    r"[ \t\r\n\v\f]*([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
)


def read_leading_float(word: str) -> float | None:
    """Return the number that strtod reads at the start of a word; None if it reads no finite number."""
    if match := _HEXADECIMAL.match(word):
        try:
            return float.fromhex(match[1])
        except OverflowError:
            return None
    match = _DECIMAL.match(word)
    number = float(match[1]) if match else float("nan")
    return number if isfinite(number) else None


# --- readers of arguments; a missing argument is an empty word


def read_optional_pid(word: str) -> int | None:
    """Return a PID; None for a word that does not begin with a number.

    Raise CommandRefused for a word that begins with a number and continues differently, or whose number is too large.
    """
    pid = read_leading_integer(word)
    digits = word.removeprefix("-").removeprefix("+")
    is_exact = digits.isascii() and digits.isdecimal() and len(digits.lstrip("0")) <= _MAX_DIGITS
    if pid and (not is_exact or abs(int(digits)) > INT_MAX):
        raise CommandRefused(f"{word[:MAX_QUOTED]!r} is not a PID: only digits, at most {INT_MAX}")
    return pid


def read_pid(word: str) -> int:
    """Return a PID as atoi does, 0 for a word that does not begin with a number.

    Raise CommandRefused for a misread one.
    """
    return read_optional_pid(word) or 0


def read_word(word: str) -> str | None:
    """Return the word; None if it is missing."""
    return word or None


def read_user_id(word: str) -> int | None:
    """Return a uid; None for a word that does not begin with a number.

    Raise CommandRefused for a word that C reads as another user's uid: C reads 0x10 and 0.5 as root's.
    """
    if read_leading_integer(word) is None:
        return None
    is_number = word.isascii() and word.isdecimal() and len(word.lstrip("0")) <= _MAX_DIGITS
    if not is_number or int(word) >= NO_USER:
        raise CommandRefused(f"{word[:MAX_QUOTED]!r} is not a user id; a number from 0 to {NO_USER - 1} is")
    return int(word)


@frozen
class LoosePercentage:
    """A percentage as the driver reads it: from the first characters of a word."""

    value: ThreadPercentage | None
    """The percentage; None if it is missing or invalid."""
    note: str
    """A note about following characters that C does not read, as in ``33,3``, which is 33; empty without them."""


ONE_PERCENTAGE: Final = "in protocol 2 an active thread percentage must be one number for all devices"


def read_percentage(word: str) -> LoosePercentage:
    """Return the percentage with which a word begins.

    Raise CommandRefused for a percentage by device, because C reads ``1=50`` as 1.
    """
    if "=" in word:
        raise CommandRefused(f"{ONE_PERCENTAGE}, not {word[:MAX_QUOTED]!r}")
    number = read_leading_float(word)
    if number is None:
        return LoosePercentage(None, "")
    try:
        is_whole = "%" not in word and ThreadPercentage.parse(word).value == number
    except BadLimit:
        is_whole = False
    note = "" if is_whole else f"{word[:MAX_QUOTED]!r} is read as {number:g}"
    try:
        return LoosePercentage(ThreadPercentage(number), note)
    except BadLimit:
        return LoosePercentage(None, note)


PRIORITIES: Final = "a client priority must be 0 (normal) or 1 (below normal)"


def read_priority(word: str) -> int | None:
    """Return the number with which a word begins, or None.

    Raise CommandRefused for a word that C misreads as 0 or 1.
    """
    level = read_leading_integer(word)
    if level in (0, 1) and word not in ("0", "1"):
        raise CommandRefused(f"{PRIORITIES}, not {word[:MAX_QUOTED]!r}")
    return level


PID: Final = Argument("pid", read_pid, "PID")
OPTIONAL_PID: Final = Argument("pid", read_optional_pid, "PID")
DEVICE: Final = Argument("device", read_word, "DEVICE")
