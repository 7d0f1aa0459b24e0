"""Start a process, with an OSError for any shortage of resources; reap orphans; fix this process's malloc threshold.

The C library maps each block above a threshold separately. By default it raises the threshold whenever it frees such
a block, so after the first large answers all buffers are in the heap, between small objects that stay. Measured with
1,000 connections of a user who reads no answers: 16 MiB of buffers took 76 MiB of memory; with `map_buffers` they
take 26.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from typing import Any, Final
from weakref import WeakValueDictionary

import trio

__all__ = ["map_buffers", "open_process", "reap_orphans"]

PAUSE_SECONDS: Final = 0.05
"""The pause while a child of this process has ended, or is starting, that is to be reaped by its owner."""
_started: Final = WeakValueDictionary[int, trio.Process]()
"""The processes that were started here, by PID, as long as they are in use."""
_starting: Final = set[object]()
"""An entry for each process that is being started, whose PID is not known yet."""


async def open_process(arguments: list[str], **options: Any) -> trio.Process:
    """Start a process; raise OSError: EAGAIN if no process or thread can be created, ENOMEM without memory."""
    _starting.add(start := object())
    try:
        process = await trio.lowlevel.open_process(arguments, **options)
    except RuntimeError as error:
        # Processes are started in a thread. If the thread cannot be created, Python raises RuntimeError without an
        # error number.
        if "new thread" not in str(error):
            raise
        raise BlockingIOError(errno.EAGAIN, str(error)) from None
    except MemoryError:
        raise OSError(errno.ENOMEM, "no memory to start a process") from None
    else:
        _started[process.pid] = process
        return process
    finally:
        _starting.discard(start)


async def reap_orphans() -> None:
    """Reap, until cancelled, the ended children of this process that `open_process` has not started.

    PID 1 of a container becomes the parent of every process there whose parent ends, such as a killed server's
    executors. Without this each one would keep its PID.
    """
    with trio.open_signal_receiver(signal.SIGCHLD) as signals:
        while True:
            while pid := _find_ended_child():
                if _starting or pid in _started:
                    await trio.sleep(PAUSE_SECONDS)
                else:
                    os.waitpid(pid, os.WNOHANG)
            await anext(signals)


def _find_ended_child() -> int:
    """Return the PID of a child that has ended and is not reaped; 0 if there is none."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if ended is None else ended.si_pid


_M_MMAP_THRESHOLD: Final = -3
_MAPPED_FROM_BYTES: Final = 32 << 10


def map_buffers() -> None:
    """Fix the C library's threshold. Do nothing in a library without mallopt(3)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
