"""The answer of an operation that completes at once."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(eq=False)
class Answer:
    """Operands in the order of the operation's answer layout; ``fds`` are closed once they are sent."""

    operands: tuple[float, ...] = ()
    tail: bytes = b""
    fds: tuple[int, ...] = ()
    created: Any = None
    """The object that the operation's new handle stands for."""
