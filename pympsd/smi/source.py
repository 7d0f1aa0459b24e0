"""Find the machine to show: that of the pipe directory's daemon; without a daemon, the one in the environment.

A daemon may have been started with another PYMPSD_EMULATED_DEVICES or PYMPSD_STATE_DIRECTORY than this program. It
answers a hello with the body ASKS_MACHINE in both protocols, and writes no line about a command to its log. A daemon
that is neither root's nor this user's is not asked: the answer names files that are read, and with -c written.
"""

import json
import os
from collections.abc import Callable
from typing import Final

from pympsd.cli import control_client
from pympsd.devices.machine import VARIABLE, BadMachine
from pympsd.devices.state_folder import DIRECTORY, add_machine_file, resolve
from pympsd.vocabulary.variables import DRIVER_VARIABLE
from pympsd.wire import frames

SECONDS: Final = 2.0
"""The time in which a daemon has to answer."""
DEFAULT_MACHINE: Final = "H200"


def machine(warn: Callable[[str], None]) -> str:
    """Return the description of the machine; raise BadMachine if the daemon has GPUs.

    If it is a daemon's, PYMPSD_STATE_DIRECTORY and PYMPSD_DRIVER are set in this process to those of the daemon.
    """
    text = add_machine_file(os.environ).get(VARIABLE) or DEFAULT_MACHINE
    answer = _ask(warn)
    if not answer:
        return text
    path, backend = os.fsdecode(control_client.pipe_directory()), answer["backend"]
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
    """Return the daemon's answer; nothing if there is no daemon, or none that answers."""
    daemon = control_client.DaemonConnection()
    path = control_client.control_socket()
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
    except (control_client.DaemonGone, OSError):  # an earlier version, which does not have the question
        return {}
    finally:
        daemon.close()
