"""The answer of an operation that completes at once."""

from __future__ import annotations

from typing import Any

from attrs import frozen


def words(secret: int) -> tuple[int, int]:
    """Return a secret of 128 bits as two operands."""
    return secret >> 64, secret & ((1 << 64) - 1)


@frozen(eq=False)
class Answer:
    """Operands in the order of the operation's answer layout; ``fds`` are closed once they are sent."""

    operands: tuple[float, ...] = ()
    tail: bytes = b""
    fds: tuple[int, ...] = ()
    created: Any = None
    """The object that the operation's new handle stands for."""
