"""The functions of the driver's error log for callers in C (CUDA driver API, Error Log Management Functions).

The log itself is `pympsd_client._arguments.error_log`. An iterator is the number of the first message that its
program has not read; a dump moves it to the end.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, Final

from pympsd_client._arguments import error_log
from pympsd_client._arguments.errors import check_no_flags, invalid_value
from pympsd_client._arguments.values import check_not_null

_ERROR: Final = 0
"""CU_LOG_LEVEL_ERROR: failed calls are the only messages."""
_LOST: Final = b"%d earlier messages were overwritten: the log keeps %d"
_LEFT_OUT: Final = b"%d messages are left out: the buffer has %d bytes"
_Callback: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_handles: Final = itertools.count(1)


def _register(function: int, data: int, place: int) -> None:
    """Call a C function with each message from now on; write its handle to ``place``, unless that is NULL."""
    check_not_null("the callback", function)
    callback, handle = _Callback(function), next(_handles)
    error_log.listeners[handle] = lambda line: callback(data, _ERROR, line, len(line))
    if place:
        ctypes.c_uint64.from_address(place).value = handle


def _unregister(handle: int) -> None:
    """Stop calling a function; INVALID_VALUE for an unknown handle."""
    if error_log.listeners.pop(handle, None) is None:
        raise invalid_value(f"{handle:#x} is not a callback of the error log")


def _current(place: int, flags: int) -> None:
    """Write an iterator to the end of the log."""
    check_no_flags("cuLogsCurrent", flags)
    check_not_null("the iterator", place)
    ctypes.c_uint32.from_address(place).value = error_log.end()


def _dump_to_file(iterator: int, path: str | None, flags: int) -> None:
    """Write the messages from an iterator on, or all, to a file; INVALID_VALUE if it cannot be written."""
    check_no_flags("cuLogsDumpToFile", flags)
    if not path:
        raise invalid_value("the path of the file is NULL or empty")
    lines, end = _lines(iterator)
    try:
        with open(path, "wb") as file:
            file.writelines(lines)
    except OSError as error:
        raise invalid_value(f"cannot write {path}: {error.strerror}") from None
    _move(iterator, end)


def _dump_to_memory(iterator: int, buffer: int, size: int, flags: int) -> None:
    """Write the messages from an iterator on, or all, to a buffer, and their bytes to ``size``, which has its size.

    If the buffer is too small, the newest are written after a message about that; INVALID_VALUE if not even one fits.
    """
    check_no_flags("cuLogsDumpToMemory", flags)
    check_not_null("the size", size)
    check_not_null("the buffer", buffer)
    room = ctypes.c_size_t.from_address(size)
    text, end = _fit(*_lines(iterator), room.value)
    capacity, room.value = room.value, 0
    if text is None:
        raise invalid_value(f"no message fits into {capacity} bytes")
    if capacity:
        ctypes.memmove(buffer, text + b"\0", len(text) + 1)
    room.value = len(text)
    _move(iterator, end)


def _lines(iterator: int) -> tuple[list[bytes], int]:
    """Return the messages from an iterator (NULL: the first) on as lines, and the number of the next message."""
    start = ctypes.c_uint32.from_address(iterator).value if iterator else 0
    lines, lost, end = error_log.read(start)
    if lost:
        lines.insert(0, _LOST % (lost, error_log.MAX_MESSAGES))
    return [line + b"\n" for line in lines], end


def _fit(lines: list[bytes], end: int, capacity: int) -> tuple[bytes | None, int]:
    """Return the lines, or a first line about those left out and the newest ones, for a buffer; None if none fits."""
    text = b"".join(lines)
    if not lines or len(text) < capacity:
        return text, end
    for first in range(1, len(lines)):
        text = b"".join((_LEFT_OUT % (first, capacity) + b"\n", *lines[first:]))
        if len(text) < capacity:
            return text, end
    return None, end


def _move(iterator: int, end: int) -> None:
    if iterator:
        ctypes.c_uint32.from_address(iterator).value = end


FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "cuLogsRegisterCallback": (_register, "QQQ"),
    "cuLogsUnregisterCallback": (_unregister, "Q"),
    "cuLogsCurrent": (_current, "QI"),
    "cuLogsDumpToFile": (_dump_to_file, "QsI"),
    "cuLogsDumpToMemory": (_dump_to_memory, "QQQI"),
}
"""The functions, and the formats of their parameters."""
