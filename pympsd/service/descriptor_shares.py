"""Shares of the descriptors this process may have: nobody may take all of them for himself."""

from __future__ import annotations

import resource
from typing import Final

FEWEST: Final = 16
"""However few there are."""
PLENTY: Final = 1 << 20
"""As many count where there is no limit."""


def share_of_descriptors(part: int) -> int:
    """Return how many are one in so many of them."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = PLENTY
    return max(FEWEST, descriptors // part)
