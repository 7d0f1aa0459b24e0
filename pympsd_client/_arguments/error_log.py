"""The log of failed calls, which states in words what was wrong. Programs read it, or register a listener.

Source: CUDA driver API, Error Log Management Functions; CUDA Programming Guide, Error Log Management (the size of the
log); recorded messages (H200, driver 580.159, CUDA 13.0; tests/native_programs/test_error_log.py).

A failed call adds two messages: the reason, and the result with the function's name. As recorded, OUT_OF_MEMORY has
no reason, and calls before cuInit leave no message. A message is stored as a tuple and becomes a line when read. The
log keeps the last 100 messages. They are numbered from 0 in each process; a reader remembers the number of the first
message that it has not read.

The log has no lock, because a fork could leave a lock held; each step is atomic under the GIL. Messages of calls that
fail at the same time may be in any order.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from pympsd.vocabulary.results import Result

MAX_MESSAGES: Final = 100
MAX_LINE_BYTES: Final = 255
"""The maximum length of a line without its newline; with newlines, 100 lines fill the log's 25600 bytes."""
_NOT_LOGGED: Final = (Result.ERROR_NOT_READY, Result.ERROR_NOT_INITIALIZED)
"""Results without messages. ERROR_NOT_READY answers a query and is not a failure."""


class Message(NamedTuple):
    """A message, with the time (seconds since 1970) and the thread (`threading.get_ident`) of the failed call."""

    time: float
    thread: int
    text: str

    @property
    def line(self) -> bytes:
        """The message as a line of a dump, at most MAX_LINE_BYTES long."""
        clock = f"{time.strftime('%H:%M:%S', time.localtime(self.time))}.{int(self.time % 1 * 1000):03}"
        return _join_lines(f"[{clock}][{self.thread}][CUDA][E] {self.text}")


Listener = Callable[[bytes], None]
"""A function that is called with the text of each message, in the thread whose call failed."""
listeners: Final[dict[int, Listener]] = {}
"""The listeners by their handles."""
_messages: Final[deque[tuple[int, Message]]] = deque(maxlen=MAX_MESSAGES)
_numbers: Final = itertools.count()


class _Thread(threading.local):
    is_listening = False


_this_thread: Final = _Thread()


def record(function: str, code: int, result: str, reason: str) -> None:
    """Add the messages of a failed call and call the listeners; ignore the calls that a listener makes.

    ``code`` and ``result`` are the number and name of the CUresult, ``function`` is the name that the program called.
    The two messages are, for example::

        Requested 0 byte allocation
        Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2
    """
    if code in _NOT_LOGGED or _this_thread.is_listening:
        return
    now, thread = time.time(), threading.get_ident()
    texts = [f"Returning {code} ({result}) from {function}"]
    if code != Result.ERROR_OUT_OF_MEMORY:
        texts.insert(0, reason)
    for text in texts:
        _messages.append((next(_numbers), Message(now, thread, text)))
    if not listeners:
        return
    _this_thread.is_listening = True
    try:
        for text in texts:
            for listener in tuple(listeners.values()):
                listener(_join_lines(text))
    finally:
        _this_thread.is_listening = False


def end() -> int:
    """Return the number of the next message."""
    return max((number for number, _ in _messages.copy()), default=-1) + 1


def read(start: int = 0) -> tuple[list[bytes], int, int]:
    """Return the messages from number ``start`` on, how many of them are lost, and the number of the next message."""
    messages = sorted(_messages.copy())
    last = messages[-1][0] + 1 if messages else 0
    lost = last - len(messages) - start
    return [message.line for number, message in messages if number >= start], max(0, lost), last


def _join_lines(text: str) -> bytes:
    return " ".join(text.splitlines()).encode()[:MAX_LINE_BYTES]
