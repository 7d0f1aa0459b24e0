"""Quotas of the file descriptors that this process may open, so that no user can take all of them."""

from __future__ import annotations

import os
import resource
from typing import Final

from pympsd.channel.descriptors import close_all

MINIMUM: Final = 16
"""Granted however low the limit is."""
SPARE: Final = 32
"""What a daemon needs to open besides what an earlier one left."""
UNLIMITED: Final = 1 << 20
"""Assumed where RLIMIT_NOFILE sets no limit."""


def raise_fd_limit() -> None:
    """Raise the soft limit of open descriptors to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fd_limit() -> int:
    """Return the number of descriptors that this process may have open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors


def fd_quota(divisor: int) -> int:
    """Return the limit of open descriptors divided by ``divisor``, at least MINIMUM."""
    return max(MINIMUM, fd_limit() // divisor)


def can_open(count: int) -> bool:
    """Return whether this process may open ``count`` more files."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(count))
    except OSError:
        return False
    finally:
        close_all(opened)
    return True
