"""``PYMPSD_TRACE=FILE``: a trace of this program's driver calls, with their times.

Without the variable calls do no extra work. Several programs may write to one file, and a child to its parent's.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Final

from pympsd.channel.trace_file import TraceFile

VARIABLE: Final = "PYMPSD_TRACE"
_named: Final[set[tuple[int, int]]] = set()
"""The processes and threads whose names have been written to the trace."""


def trace(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also writes its calls to the trace, or ``function`` itself if there is no trace."""
    if _trace() is None:
        return function

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        began, result = time.monotonic_ns(), ""
        try:
            answer = function(*arguments, **keywords)
            if type(answer) is tuple and answer and answer[0]:
                result = getattr(answer[0], "name", str(answer[0]))
            return answer
        except BaseException as error:
            result = str(error)
            raise
        finally:
            ended, process, thread = time.monotonic_ns(), os.getpid(), threading.get_native_id()
            _write(process, thread, name, began, ended, result)

    return call


def _write(process: int, thread: int, name: str, began: int, ended: int, result: str) -> None:
    if (trace := _trace()) is None:
        return
    if (process, thread) not in _named:
        _named.add((process, thread))
        trace.name(process, f"client {process}: {' '.join(sys.orig_argv)}"[:200])
        trace.name(process, f"calls of thread {thread}", thread)
    if result:
        trace.slice(process, thread, name, began, ended, result=result)
    else:
        trace.slice(process, thread, name, began, ended)


@cache
def _trace() -> TraceFile | None:
    """Return the trace of this process; None if it cannot be written, which is reported on standard error."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return None
    try:
        return TraceFile.open(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or error
        _complain(f"{VARIABLE}={path}: {reason}; the program continues without a trace\n")
        return None


def _report_loss() -> None:
    """Report at the program's end that the trace is incomplete."""
    if (trace := _trace()) is not None and trace.error:
        path = os.environ.get(VARIABLE, "")
        _complain(f"{VARIABLE}={path}: {trace.error}; the trace lacks the calls from then on\n")


def _complain(sentence: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # standard error may be missing or closed
        sys.stderr.write(sentence)


atexit.register(_report_loss)
os.register_at_fork(after_in_child=lambda: _trace.cache_clear())  # another thread may have held the trace's lock
