"""Find the machine to show: the machine of the pipe directory's daemon, or without a daemon the environment's.

A daemon may have been started with other values of PYMPSD_EMULATED_DEVICES or PYMPSD_STATE_DIRECTORY than this
program. In both protocols it answers a hello with the body ASKS_MACHINE, and does not log this as a command. A daemon
that is neither root's nor this user's is not asked, because the answer names files that this program reads, and with
-c writes.
"""

import json
import os
from collections.abc import Callable
from typing import Final

from pympsd.cli import daemon_connection
from pympsd.devices.machine import VARIABLE, BadMachine
from pympsd.devices.state_folder import DIRECTORY, add_machine_file, resolve
from pympsd.vocabulary.variables import DRIVER_VARIABLE
from pympsd.wire import frames

SECONDS: Final = 2.0
"""The time within which a daemon must answer."""
DEFAULT_MACHINE: Final = "H200"


def machine(warn: Callable[[str], None]) -> str:
    """Return the description of the machine; raise BadMachine if the daemon has GPUs.

    If the machine is a daemon's, set this process's PYMPSD_STATE_DIRECTORY and PYMPSD_DRIVER to the daemon's values.
    ``warn`` gets sentences about variables that differ from the daemon's, and about a daemon that is ignored.
    """
    text = add_machine_file(os.environ).get(VARIABLE) or DEFAULT_MACHINE
    answer = _ask(warn)
    if not answer:
        return text
    path, backend = os.fsdecode(daemon_connection.pipe_directory()), answer["backend"]
    if backend != "emulated":
        reason = f"the daemon of {path} has this machine's GPUs (backend {backend}), and no emulated ones"
        raise BadMachine(f"{reason}: ask the driver's nvidia-smi, or name another CUDA_MPS_PIPE_DIRECTORY")
    for name, own_value in ((VARIABLE, resolve(text)), (DIRECTORY, os.environ.get(DIRECTORY, ""))):
        if os.environ.get(name) and own_value != answer[name]:
            warn(f"{name}={os.environ[name]} is not that of the daemon of {path}, which has {answer[name]}")
    os.environ[DIRECTORY] = answer[DIRECTORY]
    os.environ[DRIVER_VARIABLE] = answer.get(DRIVER_VARIABLE, "")
    return answer[VARIABLE]


def _ask(warn: Callable[[str], None]) -> dict[str, str]:
    """Return the daemon's answer; empty if no daemon runs, or if the daemon does not answer."""
    daemon = daemon_connection.DaemonConnection()
    path = daemon_connection.control_socket()
    try:
        path, reason = daemon.reach(SECONDS)
        if reason:
            return {}
        if warning := daemon.owner_warning(path, SECONDS).decode(errors="replace").strip():
            warn(f"{warning}: ignoring it")
            return {}
        daemon.send(frames.encode(frames.OPERATOR_HELLO, frames.ASKS_MACHINE))
        daemon.end_sending()
        kind, body = daemon.receive()
        answer: dict[str, str] = json.loads(body) if kind == frames.OPERATOR_MACHINE else {}
        return answer
    except TimeoutError:
        place = path.decode(errors="replace")
        warn(f"the daemon at {place} sent nothing for {SECONDS:g} s; showing the machine of the environment")
        return {}
    except (daemon_connection.DaemonGone, OSError):  # an earlier version, which does not support the question
        return {}
    finally:
        daemon.close()
