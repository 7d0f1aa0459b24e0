"""Set how ps shows a process: rewrite its argument area, set its comm (procps, pgrep and pidof read these).

The words are written NUL-separated over the process's own argument area, whose bounds are fields 48 and 49 of
/proc/self/stat (proc(5)), and the rest is zeroed; the environment, which follows, stays readable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

_PR_SET_NAME = 15


def show_as(words: Sequence[str]) -> None:
    """Show this process as a command line of ``words``, cut to the argument area (never into the environment)."""
    start, end = _argument_area()
    text = b"\0".join(word.encode() for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
    name = words[0].rpartition("/")[2].encode()[:15]
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _argument_area() -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as stat:
        # The second field, the name in parentheses, may contain blanks: count from its end.
        fields = stat.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46])
