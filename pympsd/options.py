"""The command line: which of daemon, foreground daemon, version, help, or talk to a daemon. Imports almost nothing.

The launcher passes the name it was started under as ``--argv0=NAME`` first, so that the texts and the process names
say nvidia-cuda-mps-control when it was started as that.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_NAME = "pympsd"
DROP_IN_NAME = "nvidia-cuda-mps-control"
START_OPTIONS = {"-d": "background", "-f": "foreground"}
READY = ("-q", "--ready-devices")
MULTIUSER = ("-multiuser-server", "--multiuser-server", "-M")


def main(arguments: "Sequence[str]") -> int:
    """Do what the arguments say; return the exit status."""
    name, words = _name(arguments)
    if not words or not words[0].startswith("-"):
        return _talk(words)
    return _with_options(name, words)


def _with_options(name: str, words: "Sequence[str]") -> int:
    start = ""
    for word in words:
        if word in ("-h", "--help"):
            return _say(_title() + "\n" + _usage(name))
        if word in ("-v", "--version"):
            return _say(_version())
        if word in MULTIUSER:
            sys.stderr.write(f"{name}: {word} is not supported yet: one server serves one user\n")
            return 1
        if word in START_OPTIONS:
            start = START_OPTIONS[word]
        elif word.startswith("-") and word not in READY:
            sys.stderr.write(f"{name}: there is no option {word}; see the usage\n")
            return _say("Unrecognized option \n" + _title() + "\n" + _usage(name))
    if not start:
        return _talk([])
    from pympsd.daemonize import start_daemon

    return start_daemon(name, list(words), foreground=start == "foreground")


def _name(arguments: "Sequence[str]") -> "tuple[str, Sequence[str]]":
    if arguments and arguments[0].startswith("--argv0="):
        name = arguments[0].partition("=")[2].rpartition("/")[2]
        return (name if name == DROP_IN_NAME else OWN_NAME), arguments[1:]
    return OWN_NAME, arguments


def _talk(words: "Sequence[str]") -> int:
    from pympsd.talk import talk

    return talk(words)


def _say(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _title() -> str:
    return "CUDA MPS Control for Linux/Unix/QNX."


def _version() -> str:
    from pympsd.version import CUDA_VERSION, VERSION

    return f"{_title()} Binary version: {CUDA_VERSION}\npympsd {VERSION}, an open reimplementation (Apache-2.0)\n"


def _usage(name: str) -> str:
    return f"""
usage: {name} [-d | -f | -v | -h]
       {name} COMMAND [ARGUMENT ...]

  -d                   start the control daemon in the background
  -f                   start the control daemon in the foreground; its log goes to standard output
  -v, --version        print the version
  -h, --help           print this
  -q, --ready-devices  accepted; device queries are always ready
  without an option    read commands from standard input and print the daemon's answers

commands:
  get_server_list                     list the PIDs of the servers
  get_server_status PID               print INITIALIZING, ACTIVE or FAULT
  start_server -uid UID               start a server for a user
  get_client_list PID                 list the PIDs of a server's clients
  get_device_client_list [PID]        list the devices in use and their client contexts
  ps [-p PID]                         show the client processes
  device_query [PID] [--csv]          show the devices
  quit [-t SECONDS]                   stop the servers and the daemon, by force after SECONDS

The daemon is found in CUDA_MPS_PIPE_DIRECTORY (default /tmp/nvidia-mps), the logs are in CUDA_MPS_LOG_DIRECTORY
(default /var/log/nvidia-mps).
"""
