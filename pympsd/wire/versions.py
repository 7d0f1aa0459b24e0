"""Which versions of the conversation this build speaks, and how two sides agree on one."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.version import VERSION

OLDEST: Final = 1
NEWEST: Final = 1
FEATURES: Final[tuple[str, ...]] = ("socket-transport",)


@frozen
class Versions:
    """What a side says of itself in its hello."""

    oldest: int = OLDEST
    newest: int = NEWEST
    features: tuple[str, ...] = FEATURES
    build: str = VERSION


def agree(ours: Versions, theirs: Versions) -> int | None:
    """Return the newest version both speak, or None when the ranges do not meet."""
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None
