"""The servers and executors of a prepared daemon (see `prepared`): forks of the process that starts them.

A prepared daemon has imported what servers and executors import, so `fork_children` has it start them without
exec(2): `subprocess.Popen`, by which trio starts processes, forks and does in the child what Popen, exec(2) and an
interpreter would do, except the imports.

    daemon, in a thread of trio's     child
         | fork ----------------------> only this thread is left, and is the main thread from now on
         |                              descriptors, directory, session, user, signals, environment as requested
         | <--- PID                     runs FILE with its own words, and exits like an interpreter

The child keeps the memory of the process that it comes from, but uses none of it: nothing there is collected any
more, since what it holds names descriptors that the child has closed. The child of a server is an executor in the
same way.

A test process, a client, or a daemon that was executed or has a GPU starts executed servers, as does everything
outside tests/flows and tests/conformance.
"""

from __future__ import annotations

import atexit
import contextvars
import gc
import inspect
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import prepared

import pympsd_server.backends.emulated.device.device
import pympsd_server.backends.emulated.scheduling.policy
import pympsd_server.executor.main
import pympsd_server.options
import pympsd_server.service.run  # noqa: F401  (imported for the children)
from pympsd.process import title

_PROGRAMS = ("/pympsd_server/__main__.py", "/pympsd_server/executor/__main__.py")
_MAX_WORDS_END = title._memory_map().arg_end
"""Where the area of the command line ends, before a process has shown itself as something shorter."""


def fork_children() -> None:
    """Make this process and its children start servers and executors by a fork."""
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]


class _ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    def _execute_child(self, *arguments: Any) -> None:
        request = inspect.signature(super()._execute_child).bind(*arguments).arguments  # type: ignore[misc]
        if not _can_fork(request["args"], request["env"]):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if not self.pid:
            try:
                _become(request)
                _run(request["args"][2:])
            finally:
                os._exit(255)  # not reached, unless a step of _become failed
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(request[name] for name in pipes))  # type: ignore[attr-defined]


def _can_fork(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    is_theirs = len(words) > 2 and words[:2] == [sys.executable, "-I"] and words[2].endswith(_PROGRAMS)
    return is_theirs and prepared.has_room_for(environment)


def _become(request: Mapping[str, Any]) -> None:
    """Take the state of a process that Popen has executed with these arguments."""
    gc.freeze()
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if request[name] != -1:
            os.dup2(request[name], number)
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    _reset_signals()
    if request["start_new_session"]:
        os.setsid()
    _close_others(request["pass_fds"])
    os.environ.clear()
    os.environ.update(request["env"])
    prepared.show_environment()
    time.tzset()
    area = title._memory_map()
    area.arg_end = _MAX_WORDS_END
    title._set_end(area)
    _change_user(request)
    atexit._clear()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _close_others(kept: Sequence[int]) -> None:
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _change_user(request: Mapping[str, Any]) -> None:
    if request["gids"] is not None:
        os.setgroups(request["gids"])
    if request["gid"] is not None:
        os.setregid(request["gid"], request["gid"])
    if request["uid"] is not None:
        os.setreuid(request["uid"], request["uid"])
    # After an exec: the files in /proc are the user's.
    prepared.set_dumpable()


def _run(words: Sequence[str]) -> NoReturn:
    """Run a file of Python with its words, as an interpreter does, to the end of the process."""
    sys.argv = list(words)
    status: object = 0
    try:
        contextvars.Context().run(runpy.run_path, words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
