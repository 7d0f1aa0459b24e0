"""Argument readers: each takes the words after a command's name and returns a value, or an Answer that refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pympsd.commands.numbers import atoi, leading_integer
from pympsd.vocabulary.answers import Answer, refusal


def required_pid(words: Sequence[str]) -> int | Answer:
    """A server's PID, which must be there and start with digits."""
    pid = leading_integer(words[0]) if words else None
    return refusal("A server PID is required") if pid is None else pid


def loose_pid(words: Sequence[str]) -> int:
    """A server's PID as atoi reads it: 0 when missing."""
    return atoi(words[0] if words else None)


def optional_pid(words: Sequence[str]) -> int | None:
    """A server's PID where a word gives one; a word that does not is overlooked (recorded)."""
    return leading_integer(words[0]) if words else None


def after_option(option: str) -> Callable[[Sequence[str]], int | None]:
    """The number after an option that comes first, as atoi reads it; None when the option is not there."""

    def read(words: Sequence[str]) -> int | None:
        return atoi(words[1] if len(words) > 1 else None) if words and words[0] == option else None

    return read


def flag(option: str) -> Callable[[Sequence[str]], bool]:
    """Whether an option stands anywhere among the words."""
    return lambda words: option in words


def user_id(words: Sequence[str]) -> int | Answer:
    """The user of ``-uid UID`` (the manual also prints ``- uid UID``: accepted)."""
    if list(words[:2]) == ["-", "uid"]:
        words = ["-uid", *words[2:]]
    uid = leading_integer(words[1]) if len(words) > 1 and words[0] == "-uid" else None
    if uid is None:
        return refusal("A user id (UID) is required to start a new server")
    if uid < 0:
        return refusal(diagnostic=f"start_server: {uid} is no user id; a number from 0 up is")
    return uid
