"""The functions of the driver's error log for callers in C (CUDA driver API, Error Log Management Functions).

The log itself is `pympsd_client._arguments.error_log`. An iterator is the number of the first message that the
program has not read; a dump moves it to the end. Texts, sizes and results are as recorded on a GPU (H200, driver
580.159, CUDA 13.0), which accepts any flags. On the GPU the text in a buffer that is too small ends within a line,
and ``size`` may exceed the buffer. Here the buffer gets only whole lines, and ``size`` is the size of its text.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, Final

from pympsd_client._arguments import error_log
from pympsd_client._arguments.errors import invalid_value
from pympsd_client._arguments.values import check_not_null

_ERROR: Final = 0
"""CU_LOG_LEVEL_ERROR, the level of all messages, because only failed calls have any."""
_LOST: Final = b"%d earlier messages were overwritten: the log keeps %d"
_LEFT_OUT: Final = b"The provided buffer is not large enough to hold all messages. Some messages will be missing\n"
_Callback: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_handles: Final = itertools.count(1)


def _register(function: int, data: int, address: int) -> None:
    """Call a C function with each message from now on; write a handle to ``address`` unless that is NULL."""
    if not function:
        raise invalid_value("callbackFunc cannot be NULL")
    callback, handle = _Callback(function), next(_handles)
    error_log.listeners[handle] = lambda line: callback(data, _ERROR, line, len(line))
    if address:
        ctypes.c_uint64.from_address(address).value = handle


def _unregister(handle: int) -> None:
    """Stop calling the function with a handle; raise INVALID_VALUE for an unknown handle."""
    if error_log.listeners.pop(handle, None) is None:
        raise invalid_value(f"{handle:#x} is not a callback of the error log")


def _current(address: int, flags: int) -> None:
    """Write to ``address`` an iterator that refers to the end of the log."""
    if not address:
        raise invalid_value("Iterator cannot be NULL")
    ctypes.c_uint32.from_address(address).value = error_log.end()


def _dump_to_file(iterator: int, path: str | None, flags: int) -> None:
    """Write the messages from an iterator on, or all, to a file; raise INVALID_VALUE if it cannot be written."""
    if not path:
        raise invalid_value("pathToFile cannot be NULL")
    lines, end = _lines(iterator)
    try:
        with open(path, "wb") as file:
            file.writelines(lines)
    except OSError as error:
        raise invalid_value(f"cannot write {path}: {error.strerror}") from None
    _move(iterator, end)


def _dump_to_memory(iterator: int, buffer: int, size: int, flags: int) -> None:
    """Write the messages from an iterator on, or all, to a buffer, and the size of their text to ``size``.

    ``size`` initially contains the buffer's size; the text's size does not include the final NUL. If the buffer is
    too small, write a line about that and the newest messages; raise INVALID_VALUE if not even that line fits.
    """
    check_not_null("the size", size)
    check_not_null("the buffer", buffer)
    written = ctypes.c_size_t.from_address(size)
    capacity, written.value = written.value, 0
    lines, end = _lines(iterator)
    text = _fit(lines, capacity)
    if text is None:
        raise invalid_value("Provided buffer is not large enough to write any logs to")
    if capacity:
        ctypes.memmove(buffer, text + b"\0", len(text) + 1)
    written.value = len(text)
    _move(iterator, end)


def _lines(iterator: int) -> tuple[list[bytes], int]:
    """Return the lines of the messages from an iterator on (NULL: of all), and the number of the next message."""
    start = ctypes.c_uint32.from_address(iterator).value if iterator else 0
    lines, lost, end = error_log.read(start)
    if start > end:
        raise invalid_value("CUlogIterator is beyond the end of the logs")
    if lost:
        lines.insert(0, _LOST % (lost, error_log.MAX_MESSAGES))
    return [line + b"\n" for line in lines], end


def _fit(lines: list[bytes], capacity: int) -> bytes | None:
    """Return the text of all lines, or _LEFT_OUT and the newest lines that fit; None if not even _LEFT_OUT fits."""
    text = b"".join(lines)
    if not lines or len(text) < capacity:
        return text
    for first in range(1, len(lines) + 1):
        text = b"".join((_LEFT_OUT, *lines[first:]))
        if len(text) < capacity:
            return text
    return None


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
"""The functions by name, with the formats of their parameters."""
