"""Quotas of the file descriptors that this process may open, so that no user can take all of them."""

from __future__ import annotations

import resource
from typing import Final

MINIMUM: Final = 16
"""Granted however low the limit is."""
UNLIMITED: Final = 1 << 20
"""Assumed where RLIMIT_NOFILE sets no limit."""


def fd_quota(divisor: int) -> int:
    """Return the limit of open descriptors divided by ``divisor``, at least MINIMUM."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = UNLIMITED
    return max(MINIMUM, descriptors // divisor)
