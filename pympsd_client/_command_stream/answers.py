"""Answers of an executor, and the contexts that they may poison."""

from __future__ import annotations

from typing import Protocol

from pympsd.wire.records import FLAG_POISONED

Answer = tuple[int, int, bytes]
"""Flags, result (a CUresult number), operands and tail."""


class Poisonable(Protocol):
    """A context, as far as the command stream knows it."""

    serial: int

    def poison(self, serial: int, code: int, reason: str) -> None:
        """Fail every later call with this error, unless the context was closed, or opened anew, since ``serial``."""


def poison_if_flagged(context: Poisonable, serial: int, answer: Answer) -> None:
    """Poison a context when an answer of its executor says so."""
    flags, result, body = answer
    if flags & FLAG_POISONED:
        context.poison(serial, result, body.decode("utf-8", "replace"))
