"""Ask the GPU driver for its devices, and find its MPS server.

A short-lived child asks, because a driver may hang or crash.

The daemon never loads the driver. The child's program belongs to the server's backend, and is started by its path, as
servers are.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from pympsd.channel.own_libraries import remove_routing
from pympsd.devices.discovery import Probed

SECONDS: Final = 60.0
"""The number of seconds after which a driver that has not answered is considered unusable."""
SERVER_NAME: Final = "nvidia-cuda-mps-server"
OWN_SERVER: Final = "pympsd-server"
"""The name of pympsd's own server program.

A file under the driver's name that is a link to it is not the driver's server.
"""
_PLACE: Final = ("backends", "cuda", "driver", "probe.py")


def ask_driver() -> Probed:
    """Ask the driver for its devices, in a child process, and return its answer.

    Every failure of the child, also a crash or 60 s without an answer, is returned as an unusable driver.
    """
    server = find_spec("pympsd_server")
    if server is None or server.origin is None:
        return Probed(unusable="the package pympsd_server, which queries it, is not installed here")
    script = os.path.join(os.path.dirname(server.origin), *_PLACE)
    return run_probe([sys.executable, "-I", script])


def run_probe(command: list[str], seconds: float = SECONDS) -> Probed:
    """Run a command that prints a `Probed` as JSON, as probe.py does, and return what it printed.

    Args:
        command: The program and its arguments.
        seconds: The time that it may take.

    Returns: Its output, or a `Probed` whose ``unusable`` states why there is no answer. Nothing is raised.
    """
    try:
        environment = remove_routing(os.environ)  # pympsd's programs may also be started under pympsd-run
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Probed(unusable=f"the driver did not report its devices within {seconds:g} s")
    except OSError as error:
        return Probed(unusable=f"the program that queries it could not be started: {error}")
    try:
        return msgspec.json.decode(done.stdout, type=Probed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return Probed(
            unusable=f"the program that queries it ended with status {done.returncode}: {last or 'no word'}"
        )


def driver_version() -> str:
    """Return the version of the loaded driver, such as ``580.65.06``, which its kernel module reports.

    ``of unknown version`` if /proc/driver/nvidia/version does not exist or has another form.
    """
    try:
        words = Path("/proc/driver/nvidia/version").read_text().partition("Module")[2].split()
    except OSError:
        words = []
    return next((word for word in words if word[0].isdigit()), "of unknown version")


def find_driver_server(configured_path: str, environment: Mapping[str, str]) -> str:
    """Return the path of the driver's server: the given path, or the first one in PATH that is not a link to pympsd's
    server. Return an empty text if there is none.
    """
    if configured_path:
        return configured_path if _is_program(configured_path) else ""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, SERVER_NAME)
        if os.path.isabs(path) and _is_program(path) and os.path.basename(os.path.realpath(path)) != OWN_SERVER:
            return path
    return ""


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
