"""``pympsd-run`` with PYMPSD_EXPLAIN=1 under the driver's server: run a program, then print why clients were refused.

An unmodified program gets CUDA_ERROR_MPS_CONNECTION_FAILED from the driver, whose protocol cannot carry a reason. The
daemon keeps the reason; this process requests it when the program has ended:

    pympsd-run PROGRAM              a shell script; with PYMPSD_EXPLAIN=1 routed_run calls this module
        PROGRAM                     a child, with an id of the run (RUN) in its environment, as all of its children
    get_refusal_list RUN --json     the user's own refusals of that run, each printed on standard error

If the daemon has pympsd's own servers, or no daemon runs, the client library explains its calls itself.

The program gets the terminal's signals, because it is in the same process group. Signals that another process sends
to this one are passed on to the program. If this process is killed, the program is killed too. This process ends with
the program's exit status, or by the program's signal.
"""

import ctypes
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from pympsd.cli import daemon_connection
from pympsd.vocabulary.untrusted import printable
from pympsd.vocabulary.variables import RUN

_PYMPSD: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "__main__.py")
_PR_SET_PDEATHSIG: Final = 1
_SIGNALS: Final = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH),
)
"""The signals that are passed on to the program."""


def run_explained(command: Sequence[str], environment: dict[str, str]) -> int | None:
    """Run a command and print why its clients were refused; return its exit status, or end by its signal.

    Return None, without running the command, inside of another explained run, or if no daemon of pympsd manages the
    driver's server here. Raise OSError if the command cannot be executed.
    """
    if RUN in environment or not _leads_drivers_server():
        return None
    run = secrets.token_hex(16)
    status = _run(command, {**environment, RUN: run})
    _explain(run)
    if status < 0:
        _end_by(-status)
    return status


def _leads_drivers_server() -> bool:
    """Return whether pympsd manages the driver's own server here.

    If so, pympsd also has a socket for its own protocol.
    """
    daemon = daemon_connection.DaemonConnection()
    try:
        path, problem = daemon.reach(daemon_connection.TIMEOUT)
        return not problem and path == daemon_connection.own_socket()
    except (TimeoutError, OSError):
        return False
    finally:
        daemon.close()


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command until it ends; return its exit status, or the negative number of its signal. Raise OSError."""
    expected = {*_SIGNALS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, expected)
    prctl: Any = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    program = subprocess.Popen(list(command), env=environment, close_fds=False, preexec_fn=prepare)
    while program.poll() is None:
        received = signal.sigwaitinfo(expected)
        # The kernel sends the terminal's signals to the whole process group, so the program has received these
        # already.
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            program.send_signal(received.si_signo)
    return program.returncode


def _explain(run: str) -> None:
    """Print the daemon's reasons for the refusals of a run, each reason once."""
    # Send the id through standard input, because arguments are visible to other users.
    query = subprocess.run(
        [sys.executable, "-I", "-S", _PYMPSD],
        input=f"get_refusal_list {run} --json\n",
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        refusals = json.loads(query.stdout)
        lines = [f"{refusal['call']}: {refusal['result']}: {refusal['reason']}" for refusal in refusals]
    except (ValueError, TypeError, KeyError):
        problem = " ".join((query.stderr or query.stdout).split()) or "the daemon's answer is not a list of refusals"
        lines = [f"the MPS control daemon cannot be asked why clients were refused: {problem}"]
    for line in dict.fromkeys(lines):
        print(f"pympsd: {printable(line)}", file=sys.stderr, flush=True)


def _end_by(number: int) -> None:
    """End by a signal as the program did, without a core file of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
