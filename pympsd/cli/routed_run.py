"""``pympsd-run``: prepare a program's environment so that its CUDA calls reach pympsd, and execute the program.

Theory of operation. Two mechanisms route a program. Both are environment variables, so the program's children inherit
them:

- PYMPSD_ROUTING and PYTHONPATH, which the launcher has set, route cuda.bindings in every Python
  (`pympsd_client.routing`). There the import hook decides when CUDA is imported.
- LD_LIBRARY_PATH, which is set here, puts the folder of pympsd's libcuda, libcudart, libnvidia-ml, libnvrtc and
  libnvJitLink before all others (docs/native.md). This module decides before the program starts, because the dynamic
  loader cannot.

That folder is left out if programs should reach the driver: if the daemon manages the driver's own server (backend
vendor), or if there is a driver and no daemon, so that the program runs natively. In the second case a program that
names a pipe directory, requires MPS or selects the emulated GPU gets the folder nevertheless: pympsd's library then
refuses it with the reason, or gives it an emulated GPU of its own.

The loader ignores LD_LIBRARY_PATH for some programs, and a program with NVIDIA's runtime inside cannot be served
(docs/native.md explains why). Both would fail with an error far from its cause, or run on the wrong device, so the
ELF file is read before it is executed. An obstacle is an error for a program that is known to use CUDA. For any other
program, which may start one that does, PYMPSD_EXPLAIN=1 reports the obstacle.

The program replaces this process, and so has its PID, gets its signals and determines its exit status. This module
imports almost nothing, because a program waits for it (docs/performance.md).
"""

import _signal  # type: ignore[import-not-found]
import errno
import os
import posix
import sys

from pympsd.channel.drivers_daemon import DRIVER, NOBODY, find_listener
from pympsd.cli.elf import is_elf
from pympsd.cli.native_program import examine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""The exit statuses of a shell for a program that is not found, or cannot be executed."""
_LIBRARY_PATH, _INTERPRETER, _LIBPYTHON = "LD_LIBRARY_PATH", "PYMPSD_PYTHON", "PYMPSD_LIBPYTHON"
_LIBRARIES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "pympsd_client/native/libraries"
)
_DRIVER_DEVICE = "/dev/nvidiactl"


def main(command: "Sequence[str]") -> int:
    """Execute a command, routed. Return an exit status only if that fails, or if the command was run as a child."""
    environment = _original_environment()
    explains = environment.get("PYMPSD_EXPLAIN", "") not in ("", "0")
    path = find_program(command[0], environment.get("PATH", os.defpath))
    natively = _reason_not_to_route(environment)
    program = examine(path, _LIBRARIES)
    if natively:
        if explains and program.uses_cuda:
            _say(command[0], f"its CUDA libraries are not replaced: {natively}")
        if explains:
            from pympsd.cli.explained_run import run_explained

            try:
                status = run_explained(command, environment)
            except OSError as error:
                return _report(command, error)
            if status is not None:
                return status
        return execute(command, path, environment)
    if program.obstacle and (program.uses_cuda or explains):
        _say(command[0], program.obstacle)
    if program.obstacle and program.uses_cuda:
        return NOT_EXECUTABLE
    if explains and program.uses_cuda:
        _say(command[0], f"CUDA is routed to pympsd: {', '.join(program.libraries)} from {_LIBRARIES}")
    _add_libraries(environment)
    return execute(command, path, environment)


def find_program(name: str, search_path: str) -> str:
    """Return the path of the file that a shell would execute for a name; empty if none is found."""
    if "/" in name:
        return name if os.path.exists(name) else ""
    paths = [os.path.join(folder or ".", name) for folder in search_path.split(":")]
    files = [path for path in paths if os.path.isfile(path)]
    return next((path for path in files if posix.access(path, posix.X_OK)), files[0] if files else "")


def execute(command: "Sequence[str]", path: str, environment: "Mapping[str, str]") -> int:
    """Execute a command in place of this process; if that fails, report the error and return an exit status."""
    for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):  # the program must not inherit that Python ignores them
        _signal.signal(ignored, _signal.SIG_DFL)
    try:
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            os.execve(path, list(command), environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC or is_elf(path):
                raise
            os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environment)  # as execvp(3) does
    except OSError as error:
        return _report(command, error)


def _report(command: "Sequence[str]", error: OSError) -> int:
    _say(command[0], error.strerror or str(error))
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _say(name: str, text: str) -> None:
    sys.stderr.write(f"pympsd-run: {name}: {text}\n")
    sys.stderr.flush()


def _original_environment() -> "dict[str, str]":
    """Return the environment of this process without the locale that Python itself sets (PEP 538)."""
    environment = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            before = [entry[9:] for entry in file.read().split(b"\0") if entry.startswith(b"LC_CTYPE=")]
    except OSError:
        return environment
    environment.pop("LC_CTYPE", None)
    if before:
        environment["LC_CTYPE"] = os.fsdecode(before[0])
    return environment


def _reason_not_to_route(environment: "Mapping[str, str]") -> str:
    """Return why the program uses the driver's libraries; empty if it uses pympsd's."""
    listener = find_listener(environment)
    if listener == DRIVER:
        return "the daemon manages the driver's own server, to which the driver connects"
    if listener != NOBODY or environment.get("CUDA_MPS_PIPE_DIRECTORY") or not os.path.exists(_DRIVER_DEVICE):
        return ""
    from pympsd.vocabulary.variables import REQUIRE_MPS, selects_emulated  # imports much, and is rarely needed

    requested = environment.get(REQUIRE_MPS) == "1" or selects_emulated(environment)
    return "" if requested else "there is a driver and no daemon"


def _add_libraries(environment: "dict[str, str]") -> None:
    """Put pympsd's libraries before all others, and name the interpreter that their libcuda embeds."""
    if not os.path.exists(f"{_LIBRARIES}/libcuda.so.1"):
        return
    before = environment.get(_LIBRARY_PATH, "")
    if before.split(":")[0] != _LIBRARIES:
        # An empty entry would stand for the current directory.
        environment[_LIBRARY_PATH] = f"{_LIBRARIES}:{before}" if before else _LIBRARIES
    environment[_INTERPRETER] = sys.executable
    version = f"{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    library = f"{sys.base_prefix}/lib/libpython{version}.so.1.0"
    if os.path.exists(library):
        environment.setdefault(_LIBPYTHON, library)
