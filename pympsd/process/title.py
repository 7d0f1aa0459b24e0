"""Set how ps shows a process: rewrite its argument area and its comm, which procps, pgrep and pidof read.

The words are written NUL-separated over the process's own argument area, which is in /proc/self/stat (proc(5)). Then
the kernel is informed that the area ends with the last word (prctl(2), PR_SET_MM): otherwise programs that split
/proc/PID/cmdline at its NULs see an empty argument for each byte that is left. The environment, which follows, stays
readable. Kernels differ in what they permit: PR_SET_MM_MAP needs no privilege but CONFIG_CHECKPOINT_RESTORE, which
distributions set, and PR_SET_MM_ARG_END needs CAP_SYS_RESOURCE. If both are denied, the rest of the area is zeros.
"""

import ctypes
from collections.abc import Sequence

_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_ARG_END, _PR_SET_MM_MAP = 35, 9, 14
_NO_FILE = 0xFFFFFFFF


class _MemoryMap(ctypes.Structure):
    """struct prctl_mm_map (linux/prctl.h)."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show_as(words: Sequence[str]) -> None:
    """Show this process as a command line of ``words``, cut to the argument area so that the environment stays."""
    area = _memory_map()
    start, end = area.arg_start, area.arg_end
    text = b"\0".join(word.encode() for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
    area.arg_end = start + len(text) + 1
    _set_end(area)
    name = words[0].rpartition("/")[2].encode()[:15]
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _set_end(area: _MemoryMap) -> None:
    """Set the end of the argument area to that of ``area``; change nothing else."""
    libc = ctypes.CDLL(None)
    sbrk, prctl = libc.sbrk, libc.prctl
    sbrk.restype = ctypes.c_void_p
    prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
    size, address = ctypes.sizeof(area), ctypes.addressof(area)
    # Read last, because an allocation in between may move it. No other thread allocates while this runs.
    area.brk = sbrk(0)
    if prctl(_PR_SET_MM, _PR_SET_MM_MAP, address, size, 0):
        prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, area.arg_end, 0, 0)


def _memory_map() -> _MemoryMap:
    with open("/proc/self/stat", "rb") as stat:
        # The second field, the name in parentheses, may contain blanks: count from its end, which is field 2.
        fields = [b"", b"", b"", *stat.read().rpartition(b")")[2].split()]
    numbers = {
        "start_code": 26,
        "end_code": 27,
        "start_stack": 28,
        "start_data": 45,
        "end_data": 46,
        "start_brk": 47,
        "arg_start": 48,
        "arg_end": 49,
        "env_start": 50,
        "env_end": 51,
    }
    return _MemoryMap(exe_fd=_NO_FILE, **{name: int(fields[number]) for name, number in numbers.items()})
