"""Processes of tests, forked from an interpreter that has imported their modules.

Importing trio, NumPy and pympsd takes longer than all other work of most daemons and clients in a test. So a
test process has two *prepared* processes, which import a program and wait: `client_program` and `prepared_daemon`.
A start is a request to one of them: a new process with the requested environment, directory, user and standard
streams continues with the program's own first line.

Others see what they would see of an executed process: a PID, a command line and an environment (/proc/PID/environ)
of its own, and the test process as its parent. What the interpreter and the loader read before the first line of a
program cannot be changed: processes with such variables are executed (`can_start`).

    test process              prepared process               process in the middle       new process
         | request, streams ------> | fork -------------------------> | fork ------------------> |
         |                          | waits for the end <------------ | exit                     |
         | <------------------- PID |                                                 runs the program
         adopts orphans until here, so that it is the new process's parent

Servers and executors are forks of their daemons (`prepared_children`). Outside tests/flows and tests/conformance,
and in modules there that set ``EXECUTED``, all of them are executed. With the variable PYMPSD_TEST_EXECUTED=1
everything is.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from attrs import define, field

HERE = Path(__file__).parent
CLIENT = str(HERE / "client_program.py")
DAEMON = str(HERE / "prepared_daemon.py")
REQUESTS = "PYMPSD_TEST_REQUESTS"
"""In a prepared process: the descriptor on which it gets its requests."""
EXECUTE_ALL = "PYMPSD_TEST_EXECUTED"

_FOR_THE_TITLE = " " * 4096
"""An argument that makes room for the process title of a daemon."""
_MAX_BYTES = 32 * 1024
"""The longest request, and the longest environment."""
_READ_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "OPENBLAS_", "OMP_", "PYMPSD_TEST_DRIVER")
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


@define
class _Prepared:
    """A prepared process, as its test process sees it."""

    requests: socket.socket
    in_use: Lock = field(factory=Lock)


_prepared: dict[str, _Prepared] = {}


@contextmanager
def prepare(program: str) -> Iterator[None]:
    """Have a process that has imported a program for a block: DAEMON, or a client's that calls `serve_requests`.

    Within another block of the same program there is only that one's.
    """
    if program in _prepared or os.environ.get(EXECUTE_ALL) == "1":
        yield
        return
    own_end, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        # The kernel shows a process's environment where it was at first: there has to be room for any.
        environment = {REQUESTS: str(its.fileno()), "PADDING": " " * _MAX_BYTES, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-I", program, _FOR_THE_TITLE] if program == DAEMON else [sys.executable, program]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
    with process, own_end:
        _prepared[program] = _Prepared(own_end)
        try:
            yield
        finally:
            del _prepared[program]
        # It ends at the end of the requests.


@contextmanager
def execute() -> Iterator[None]:
    """Execute every process in a block, without prepared ones."""
    kept = dict(_prepared)
    _prepared.clear()
    try:
        yield
    finally:
        _prepared.update(kept)


def can_start(program: str, environment: Mapping[str, str]) -> bool:
    """Whether a prepared process can start a program with this environment."""
    return program in _prepared and has_room_for(environment)


def has_room_for(environment: Mapping[str, str]) -> bool:
    """Whether a forked process can have this environment: the interpreter and the loader read none of it."""
    size = sum(len(name) + len(value) + 2 for name, value in environment.items())
    return size < _MAX_BYTES // 2 and not any(map(_is_read_early, environment))


def _is_read_early(name: str) -> bool:
    return name.startswith(_READ_EARLY)


class PreparedProcess(subprocess.Popen[str]):
    """A process that a prepared one starts: PreparedProcess([CLIENT, ARGUMENT ...], env=...); else like any Popen."""

    def _execute_child(self, *arguments: Any) -> None:
        """Start the process, instead of subprocess's fork and exec."""
        call = inspect.signature(super()._execute_child).bind(*arguments).arguments  # type: ignore[misc]
        program, *words = call["args"]
        directory = str(call["cwd"] or os.getcwd())
        request = {
            "words": words,
            "environment": call["env"],
            "uid": call["uid"],
            "directory": directory,
        }
        streams = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        process = _prepared[program]
        with process.in_use, _adopting_orphans():
            socket.send_fds(process.requests, [json.dumps(request).encode()], streams)
            self.pid = int(process.requests.recv(64))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in pipes))  # type: ignore[attr-defined]


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    before = ctypes.c_int()
    _libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def serve_requests() -> Sequence[str]:
    """In a prepared process: start processes until the requests end; in each of them return its arguments."""
    gc.freeze()  # else a collection in the new process would copy the pages of all that was imported
    with socket.socket(fileno=int(os.environ[REQUESTS])) as requests:
        while True:
            text, streams, _, _ = socket.recv_fds(requests, _MAX_BYTES, 3)
            if not text:
                os._exit(0)
            pid = _fork_twice()
            if not pid:
                break
            requests.send(str(pid).encode())
            for descriptor in streams:
                os.close(descriptor)
    return _become(streams, **json.loads(text))


def _fork_twice() -> int:
    """Return the PID of a child's child, whose parent has ended; 0 in it."""
    reader, writer = os.pipe()
    try:
        if middle := os.fork():
            os.waitpid(middle, 0)
            return int(os.read(reader, 64))
        if pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        return 0
    finally:
        os.close(reader)
        os.close(writer)


def _become(
    streams: list[int], words: list[str], environment: dict[str, str], uid: int | None, directory: str
) -> list[str]:
    """Take the streams, environment, directory and user of a request; return its arguments."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    show_environment()
    if uid is not None:
        os.setreuid(uid, uid)
        set_dumpable()
    return words


def set_dumpable() -> None:
    """As after an exec, make this process's files in /proc its user's; a change of user takes them away."""
    _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def show_environment() -> None:
    """Write the environment to the memory that /proc shows; the C library has its own copies."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (50, 51))  # as in proc(5), from 3
    text = b"".join(b"%s=%s\0" % entry for entry in os.environb.items())
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
