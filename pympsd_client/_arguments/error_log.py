"""The log of failed calls: what was wrong, in words, for programs that ask or listen.

Source: CUDA driver API, Error Log Management Functions; CUDA Programming Guide, Error Log Management, which has the
format of a message and the size of the log.

Every failed call adds a message, which costs a tuple: it becomes text when it is read. The log keeps the last 100
messages. They are numbered from 0 in each process; a reader keeps the number of the message that it has not read.

There is no lock, which a fork could leave locked: each step is atomic under the GIL. Calls that fail at the same time
may be in either order.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_MESSAGES: Final = 100
MAX_LINE_BYTES: Final = 255
"""Without its end of line: a log of 25600 bytes in all."""
_NOT_READY: Final = "CUDA_ERROR_NOT_READY"
"""The answer to a question, not a failure."""


class FailedCall(NamedTuple):
    """A failed call: when (seconds since 1970), in which thread, and why."""

    time: float
    thread: int
    function: str
    result: str
    reason: str

    @property
    def line(self) -> bytes:
        """The message as programs get it, of at most MAX_LINE_BYTES."""
        clock = f"{time.strftime('%H:%M:%S', time.localtime(self.time))}.{int(self.time % 1 * 1000):03}"
        text = f"[{clock}][{self.thread}][CUDA][E][{self.function}] {self.result}: {self.reason}"
        return " ".join(text.splitlines()).encode()[:MAX_LINE_BYTES]


Listener = Callable[[bytes], None]
"""Gets each message, in the thread whose call failed."""
listeners: Final[dict[int, Listener]] = {}
"""The listeners by their handles."""
_calls: Final[deque[tuple[int, FailedCall]]] = deque(maxlen=MAX_MESSAGES)
_numbers: Final = itertools.count()


class _Thread(threading.local):
    is_listening = False


_this_thread: Final = _Thread()


def record(function: str, result: str, reason: str) -> None:
    """Add the failure of a call, and call the listeners; not for calls that a listener makes."""
    if result == _NOT_READY or _this_thread.is_listening:
        return
    call = FailedCall(time.time(), threading.get_native_id(), function, result, reason)
    _calls.append((next(_numbers), call))
    if not listeners:
        return
    _this_thread.is_listening = True
    try:
        for listener in tuple(listeners.values()):
            listener(call.line)
    finally:
        _this_thread.is_listening = False


def end() -> int:
    """Return the number of the next message."""
    return max((number for number, _ in _calls.copy()), default=-1) + 1


def read(start: int = 0) -> tuple[list[bytes], int, int]:
    """Return the messages from a number on, how many of them were lost, and the number of the next message."""
    calls = sorted(_calls.copy())
    last = calls[-1][0] + 1 if calls else 0
    lost = last - len(calls) - start
    return [call.line for number, call in calls if number >= start], max(0, lost), last
