"""Argument readers: each returns a value from the words after a command's name, or a refusing Answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pympsd.commands.numbers import INT_MAX, atoi, leading_integer
from pympsd.vocabulary.answers import Answer, refusal
from pympsd.vocabulary.identities import NO_USER

_MAX_PID_DIGITS: Final = 10
_MAX_UID_DIGITS: Final = 10
A_PID: Final = r"\d+"
MAYBE_A_PID: Final = rf"({A_PID})?"
"""The pattern of a PID among the arguments that a query knows; what its reader refuses is refused before."""


def required_pid(words: Sequence[str]) -> int | Answer:
    """Read a server's PID; refuse a missing one, and one that does not start with digits."""
    if not words or leading_integer(words[0]) is None:
        return refusal("A server PID is required")
    return read_loose_pid(words)


def read_loose_pid(words: Sequence[str]) -> int | Answer:
    """Read a server's PID as atoi does: 0 if the PID is missing or not a number. Refuse one that atoi misreads."""
    return pid_at(0)(words)


def read_optional_pid(words: Sequence[str]) -> int | Answer | None:
    """Read an optional server PID; a word that is no number is ignored (recorded)."""
    return read_loose_pid(words) if words and leading_integer(words[0]) is not None else None


def pid_at(position: int) -> Callable[[Sequence[str]], int | Answer]:
    """Make a reader of the PID at a position of the words.

    A word without a number is 0, as recorded. A word that only begins with a number, or has one that is too large,
    is refused: the command would be for another process.
    """

    def read(words: Sequence[str]) -> int | Answer:
        word = words[position] if len(words) > position else ""
        pid = atoi(word)
        digits = word.removeprefix("-").removeprefix("+")
        is_exact = digits.isascii() and digits.isdecimal() and len(digits.lstrip("0")) <= _MAX_PID_DIGITS
        if pid and (not is_exact or abs(int(digits)) > INT_MAX):
            return refusal(diagnostic=f"{word[:80]!r} is not a PID: only digits, at most {INT_MAX}")
        return pid

    return read


def after_option(option: str) -> Callable[[Sequence[str]], int | Answer | None]:
    """Make a reader of the PID after an option in first place, as pid_at does; None without the option."""

    def read(words: Sequence[str]) -> int | Answer | None:
        return pid_at(1)(words) if words and words[0] == option else None

    return read


def flag(option: str) -> Callable[[Sequence[str]], bool]:
    """Make a reader that tells whether an option is anywhere among the words."""
    return lambda words: option in words


def user_id(words: Sequence[str]) -> int | Answer:
    """Read the user of ``-uid UID``, or of ``- uid UID`` as the manual also prints it."""
    if list(words[:2]) == ["-", "uid"]:
        words = ["-uid", *words[2:]]
    word = words[1] if len(words) > 1 and words[0] == "-uid" else ""
    if leading_integer(word) is None:
        return refusal("A user id (UID) is required to start a new server")
    # As C reads it, 0x10 and 0.5 would be root, and a number that is too large another user.
    is_number = word.isascii() and word.isdecimal() and len(word.lstrip("0")) <= _MAX_UID_DIGITS
    if not is_number or int(word) >= NO_USER:
        return refusal(
            diagnostic=f"start_server: {word[:80]!r} is not a user id; a number from 0 to {NO_USER - 1} is"
        )
    return int(word)
