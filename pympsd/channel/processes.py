"""Starting a process where the system may have no room for one: whatever is short, OSError says so."""

from __future__ import annotations

import errno
from typing import Any

import trio


async def open_process(arguments: list[str], **options: Any) -> trio.Process:
    """Start a process; raise OSError: EAGAIN without a process or thread to be had, ENOMEM without memory."""
    try:
        return await trio.lowlevel.open_process(arguments, **options)
    except RuntimeError as error:
        # Processes are started in a thread; Python has only words for one that cannot be.
        if "new thread" not in str(error):
            raise
        raise BlockingIOError(errno.EAGAIN, str(error)) from None
    except MemoryError:
        raise OSError(errno.ENOMEM, "no memory to start a process") from None
