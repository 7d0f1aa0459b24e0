"""Starting a process; any shortage of resources is an OSError."""

from __future__ import annotations

import errno
from typing import Any

import trio


async def open_process(arguments: list[str], **options: Any) -> trio.Process:
    """Start a process; raise OSError: EAGAIN if no process or thread can be created, ENOMEM without memory."""
    try:
        return await trio.lowlevel.open_process(arguments, **options)
    except RuntimeError as error:
        # Processes are started in a thread; if it cannot be created Python gives only a message.
        if "new thread" not in str(error):
            raise
        raise BlockingIOError(errno.EAGAIN, str(error)) from None
    except MemoryError:
        raise OSError(errno.ENOMEM, "no memory to start a process") from None
