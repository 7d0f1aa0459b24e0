"""The protocol versions that this build supports, and how two sides agree on one."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.version import VERSION

OLDEST: Final = 2
NEWEST: Final = 2
"""2: the opcodes of the command stream by chapter, and FILL with rows."""
FEATURES: Final[tuple[str, ...]] = ("socket-transport",)


@frozen
class Versions:
    """What each side announces in its hello."""

    oldest: int = OLDEST
    newest: int = NEWEST
    features: tuple[str, ...] = FEATURES
    build: str = VERSION


def agree(ours: Versions, theirs: Versions) -> int | None:
    """Return the newest version that both support, or None if the ranges do not overlap."""
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None
