"""What an operation that is done at once answers."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen(eq=False)
class Answer:
    """Operands as the operation's answer layout names them; ``fds`` are closed once they are sent."""

    operands: tuple[float, ...] = ()
    tail: bytes = b""
    fds: tuple[int, ...] = ()
    created: Any = None
    """The object that the operation's new handle stands for."""
