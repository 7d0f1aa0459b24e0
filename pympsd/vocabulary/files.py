"""The file names in the pipe and log directories. Imports nothing, so that commands start fast."""

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
SYSTEM_PIPE_DIRECTORY = "/run/nvidia-mps"
"""The pipe directory of root's daemon of protocol 3."""
DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"

CONTROL = "control"
CONTROL_PRIVILEGED = "control_privileged"
OWN_CONTROL = "pympsd.control"
"""The socket of pympsd's own command line when ``control`` speaks the protocol of the driver's server."""
LOCK = "control_lock"
KEEPER = "pympsd.keeper"
"""The socket at which the next daemon gets the sockets of one that was killed."""
LOG_FIFO = "log"
PID = "nvidia-cuda-mps-control.pid"
STATE = "pympsd.state"
"""The state that the next daemon needs if this one is killed; it exists as long as a daemon runs."""
NEW_STATE = f"{STATE}.new"
"""The new state, which becomes the state file when it is complete."""
NAMED_SERVERS = "pympsd.named-servers"
"""An empty file in the directory of a daemon of protocol 3, which remains when the daemon ends. A path below it is
that of a server or a namespace, and a program there must not run without its limits."""

NVML = "pympsd.nvml"
"""The file from which libnvidia-ml.so.1 reads the devices and who uses them (`pympsd.devices.nvml_text`)."""
NEW_NVML = f"{NVML}.new"

OF_THE_DAEMON = (
    *(CONTROL, CONTROL_PRIVILEGED, OWN_CONTROL, LOCK, KEEPER, LOG_FIFO, PID, STATE, NEW_STATE),
    *(NAMED_SERVERS, NVML, NEW_NVML),
)
"""The names in the pipe directory that nothing else may have."""

OF_A_RUNNING_DAEMON = (STATE, KEEPER)
"""Files of a running or killed daemon in its pipe directory; the directories of servers and namespaces do not have
them."""

CONTROL_LOG = "control.log"
SERVER_LOG = "server.log"

CLIENTS_ONLY_MODES = {CONTROL: 0o222, OWN_CONTROL: 0o600}
"""The file modes of ``control`` if the daemon refuses operators there: they show that operators need another
socket."""

MAX_SOCKET_PATH = 107
"""The maximum number of bytes in a Unix socket's path: sun_path less its terminating NUL (unix(7))."""

MAX_LIBCUDA_SOCKET_PATH = 106
"""The maximum number of bytes in a path that libcuda can take: with one more a program's standard input breaks
(measured on driver 580)."""


def machine_places(environment: "dict[str, str]") -> "tuple[str, ...]":
    """Return the paths where the file of an emulated machine is looked for, the user's before the machine's.

    Callers may strip variables, so the user's file is looked for by HOME too.
    """
    home = environment.get("HOME")
    folders = environment.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"), "/etc"
    return tuple(f"{folder}/pympsd/machine.toml" for folder in folders if folder)


def pipe_directory(environment: "dict[str, str]") -> str:
    """Return the pipe directory that an environment names, or the documented default."""
    return environment.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY


def log_directory(environment: "dict[str, str]") -> str:
    """Return the log directory that an environment names, or the documented default."""
    return environment.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOG_DIRECTORY
