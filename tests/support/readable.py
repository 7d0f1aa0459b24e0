"""Wait for a descriptor, whatever its number is: select(2) takes no more than 1023."""

from __future__ import annotations

import select
from typing import Any


def is_readable(source: Any, seconds: float = 0.0) -> bool:
    """Return whether a descriptor, or an object that has one, can be read, or is at its end, within this time."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
