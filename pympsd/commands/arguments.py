"""Argument readers: each returns a value from the words after a command's name, or a refusing Answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pympsd.commands.numbers import atoi, leading_integer
from pympsd.vocabulary.answers import Answer, refusal

A_PID: Final = r"\d+"
MAYBE_A_PID: Final = rf"({A_PID})?"
"""The pattern of a PID among the arguments that a query knows; what its reader refuses is refused before."""


def required_pid(words: Sequence[str]) -> int | Answer:
    """Read a server's PID; refuse a missing one, and one that does not start with digits."""
    pid = leading_integer(words[0]) if words else None
    return refusal("A server PID is required") if pid is None else pid


def loose_pid(words: Sequence[str]) -> int:
    """Read a server's PID as atoi does: 0 if missing."""
    return atoi(words[0] if words else None)


def optional_pid(words: Sequence[str]) -> int | None:
    """Read an optional server PID; a word that is no number is ignored (recorded)."""
    return leading_integer(words[0]) if words else None


def after_option(option: str) -> Callable[[Sequence[str]], int | None]:
    """Make a reader of the number after an option in first place, as atoi does; None without the option."""

    def read(words: Sequence[str]) -> int | None:
        return atoi(words[1] if len(words) > 1 else None) if words and words[0] == option else None

    return read


def flag(option: str) -> Callable[[Sequence[str]], bool]:
    """Make a reader that tells whether an option is anywhere among the words."""
    return lambda words: option in words


def user_id(words: Sequence[str]) -> int | Answer:
    """Read the user of ``-uid UID``, or of ``- uid UID`` as the manual also prints it."""
    if list(words[:2]) == ["-", "uid"]:
        words = ["-uid", *words[2:]]
    uid = leading_integer(words[1]) if len(words) > 1 and words[0] == "-uid" else None
    if uid is None:
        return refusal("A user id (UID) is required to start a new server")
    if uid < 0:
        return refusal(diagnostic=f"start_server: {uid} is no user id; a number from 0 up is")
    return uid
