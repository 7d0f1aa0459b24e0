"""What each thread has for itself: its stack of current contexts, its streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pympsd_client._objects.context import Context


class ThreadStreams:
    """The per-thread default streams (CU_STREAM_PER_THREAD) of one thread, by their contexts' serials.

    When the thread ends they are handed to their contexts, which destroy them with their next stream: a
    destructor is no place for a send that might block.
    """

    def __init__(self) -> None:
        self.handles: dict[tuple[Context, int], int] = {}

    def __del__(self) -> None:
        for (context, serial), handle in self.handles.items():
            if context.serial == serial:
                context.orphans.append(handle)


class _Mine(threading.local):
    """One instance's attributes are this thread's own."""

    def __init__(self) -> None:
        self.stack: list[Context] = []
        """Contexts current to this thread, the last one on top (CUDA driver API, Context Management)."""
        self.streams = ThreadStreams()
        self.in_host_function = False
        """Whether this thread runs a host function just now, in which CUDA calls are not permitted."""


mine: Final = _Mine()
