"""What each thread has for itself: its stack of current contexts, its streams."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, Protocol


class StreamOwner(Protocol):
    """A context, as far as the streams of a thread that ends concern it."""

    serial: int
    ended_threads_streams: deque[int]


class ThreadStreams:
    """The per-thread default streams (CU_STREAM_PER_THREAD) of one thread, by their contexts' serials.

    When the thread ends they are handed to their contexts, which destroy them with their next stream: a
    destructor is no place for a send that might block.
    """

    def __init__(self) -> None:
        self.handles: dict[tuple[StreamOwner, int], int] = {}

    def __del__(self) -> None:
        for (context, serial), handle in self.handles.items():
            if context.serial == serial:
                context.ended_threads_streams.append(handle)


class _ThreadState(threading.local):
    """One instance's attributes are this thread's own."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        """Contexts current to this thread, the last one on top (CUDA driver API, Context Management)."""
        self.streams = ThreadStreams()
        self.in_host_function = False
        """Whether this thread runs a host function just now, in which CUDA calls are not permitted."""


this_thread: Final = _ThreadState()
