"""How a program reaches a device: through a daemon, natively, or with a private executor.

A program whose pipe directory does not exist runs without MPS, as documented for protocol 2. With a daemon of
protocol 3 the path may name a namespace that is misspelt or has been deleted, and without MPS the program would have
no limits. So a program with a path below the directory of such a daemon is refused, whether or not the daemon runs.
That directory is recognised by the file `files.NAMED_SERVERS`, or by subdirectories with sockets.
"""

import os
import stat
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from attrs import frozen

from pympsd.channel.daemon_owner import TRUST_VARIABLE
from pympsd.vocabulary import files
from pympsd.vocabulary.variables import LENIENT_LIMITS, REQUIRE_MPS, BadSetting, read, selects_emulated
from pympsd_client._arguments.errors import invalid_value

_SWITCHES: Final = (REQUIRE_MPS, LENIENT_LIMITS, TRUST_VARIABLE)
_FORWARDED: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_GPU_MEMORY_LIMIT")
_FORWARDED_PREFIXES: Final = ("CUDA_MPS_", "PYMPSD_")


class Way(Enum):
    """The way in which this process reaches a device without a server of pympsd."""

    REFUSE = "refuse"
    """The program requires MPS or the driver, which is not available."""
    NATIVE = "native"
    PRIVATE = "private"


@frozen
class NoDaemon:
    """The reason why no daemon gives this process a server of pympsd."""

    reason: str
    drivers: bool = False
    """Whether the daemon manages the driver's own server, to which only the native driver connects."""
    limited: bool = False
    """Whether the pipe directory belongs, or may belong, to a server or a namespace, whose limits must apply."""


def control_socket(environment: Mapping[str, str]) -> str:
    """Return the path of the daemon's socket (MPS documents, Environment Variables)."""
    return f"{files.pipe_directory(dict(environment))}/{files.CONTROL}"


def check_switches(environment: Mapping[str, str]) -> None:
    """Raise INVALID_VALUE for a switch with an unknown value, because ``true`` must not count as off."""
    for name in _SWITCHES:
        try:
            read(environment, name)
        except BadSetting as error:
            raise invalid_value(str(error)) from None


def choose_without_daemon(environment: Mapping[str, str], why: NoDaemon, native_driver: Callable[[], bool]) -> Way:
    """Return the way for a program that gets no server of pympsd.

    ``native_driver`` reports whether libcuda loads and initialises. If the settings select the emulated backend, the
    program gets an emulated device even on a machine with a driver.
    """
    if why.drivers:
        return Way.NATIVE if native_driver() else Way.REFUSE
    required = environment.get(REQUIRE_MPS)
    if required == "1" or (why.limited and required != "0"):
        return Way.REFUSE
    return Way.NATIVE if not selects_emulated(environment) and native_driver() else Way.PRIVATE


def refusal(why: NoDaemon) -> str:
    """Return the message of Way.REFUSE."""
    if why.drivers:
        return f"{why.reason}, and this machine's driver is not usable: libcuda does not load, or cuInit fails"
    if why.limited:
        return f"{why.reason}; without MPS this program would have no limits ({REQUIRE_MPS}=0 lets it run so)"
    return f"{why.reason}, and {REQUIRE_MPS}=1 asks for one"


def hello_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a daemon and its server honour, as printable text."""
    return {
        printable(name): printable(value)
        for name, value in environment.items()
        if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES)
    }


def command_line(raw: bytes) -> str:
    """Return a command line as `ps` shows it, from /proc/self/cmdline, cut to 4096 bytes."""
    return raw[:4096].rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")


def is_traced(status: bytes) -> bool:
    """Return whether a process runs under a debugger, from its /proc/PID/status (proc(5), TracerPid)."""
    # Match only at the start of a line: the process's name, which comes first, may contain the word.
    return status.partition(b"\nTracerPid:")[2].partition(b"\n")[0].strip() not in (b"", b"0")


def printable(text: str) -> str:
    """Return a text without the lone surrogates of undecodable bytes, which no message can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


_NONE = "none"


def explain_missing_directory(directory: str) -> str:
    """Return a text that names the missing server or namespace of a pipe directory, and lists those that exist.

    The text is empty if neither of the two directories above has the socket of a daemon of protocol 3 or a server.
    """
    parent, name = os.path.split(os.path.abspath(directory))
    if _has_socket(parent):
        if _has_lock(parent):
            return _explain_missing_server(name, _list_inside(parent)) if _has_named_servers(parent) else ""
        return f"no namespace '{name}' on server '{os.path.basename(parent)}'; there are: {_list_inside(parent)}"
    top, server = os.path.split(parent)
    if _has_socket(top) and _has_named_servers(top):
        return _explain_missing_server(server, _list_inside(top))
    return ""


def is_below_a_daemon(directory: str) -> bool:
    """Return whether a directory belongs to a server or a namespace, whether or not the daemon runs.

    Only a daemon's own directory has a lock, which remains when the daemon ends. In a container the directories above
    may be hidden; then a socket without a lock is enough.
    """
    if _has_lock(directory):
        return False
    parent = os.path.dirname(os.path.abspath(directory))
    return _has_socket(directory) or _has_named_servers(parent) or _has_named_servers(os.path.dirname(parent))


def _has_named_servers(directory: str) -> bool:
    """Return whether a directory belongs to a daemon of protocol 3."""
    if os.path.lexists(os.path.join(directory, files.NAMED_SERVERS)):
        return True
    # Older daemons do not write this file.
    return _has_lock(directory) and _list_inside(directory) != _NONE


def _explain_missing_server(name: str, there: str) -> str:
    # The daemon also lists servers that it could not create, and those have no socket.
    return f"no server '{name}', or it has failed (see server list); there are: {there}"


def _has_lock(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, files.LOCK))


def _list_inside(directory: str) -> str:
    """Return the names of the subdirectories that contain a socket."""
    try:
        names = sorted(name for name in os.listdir(directory) if _has_socket(os.path.join(directory, name)))
    except OSError as error:
        return f"unknown ({error.strerror})"
    return ", ".join(names) or _NONE


def _has_socket(directory: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(os.path.join(directory, files.CONTROL)).st_mode)
    except OSError:
        return False
