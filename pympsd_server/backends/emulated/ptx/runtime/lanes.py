"""A set of threads that run together, and cached facts about it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from pympsd_server.backends.emulated.ptx.datatypes import Array, Value

WARP = 32


class Lanes:
    """Threads of one batch: `ids` is an int64 index array, or None for all of them.

    Facts about the set (special registers, base addresses, shuffle patterns) are computed once and
    kept in `facts`; a loop that does not split its group finds them there.
    """

    __slots__ = ("count", "facts", "ids")

    def __init__(self, ids: Array | None, count: int) -> None:
        self.ids = ids
        self.count = count
        self.facts: dict[Hashable, Any] = {}

    def pick(self, value: Value) -> Value:
        """Return the elements of a per-batch array that belong to these threads."""
        return value if self.ids is None or value.ndim == 0 else value.take(self.ids)

    def fact(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        found = self.facts.get(key)
        if found is None:
            found = self.facts[key] = compute()
        return found

    def indices(self) -> Array:
        if self.ids is None:
            found: Array = self.fact("indices", lambda: np.arange(self.count))
            return found
        return self.ids


def spread(value: Value, count: int) -> Array:
    """Return a uniform value as an array of `count` equal elements; an array as it is."""
    return value if value.ndim else np.full(count, value)
