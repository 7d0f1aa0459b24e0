"""A minimal debugger: it attaches to a process by ptrace, lets it run, and stays until it has ended.

It prints a line when it is attached. After any stop the process continues as without a debugger (ptrace(2)).
"""

from __future__ import annotations

import ctypes
import os
import sys

_PTRACE_CONT = 7
_PTRACE_SEIZE = 0x4206
_ALL_THREADS = 0x4000_0000
"""__WALL of waitpid(2)."""


def main(pid: int) -> None:
    """Trace a process to its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(_PTRACE_SEIZE, pid, None, None):
        raise OSError(ctypes.get_errno(), "PTRACE_SEIZE")
    print("attached", flush=True)
    while True:
        _, status = os.waitpid(pid, _ALL_THREADS)
        if not os.WIFSTOPPED(status):
            return
        signal = 0 if status >> 16 else os.WSTOPSIG(status)
        libc.ptrace(_PTRACE_CONT, pid, None, signal)


if __name__ == "__main__":
    main(int(sys.argv[1]))
