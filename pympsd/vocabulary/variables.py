"""The environment variables that are settings: who reads each, what is allowed, and what a wrong value does.

There is one table, ``VARIABLES``, because a variable has many readers that must agree. The daemon uses it to refuse
or report its own wrong values (`settings`), a server to report those of its clients in server.log, a program with
PYMPSD_EXPLAIN to report its own, and ``python3 -m pympsd_client`` to report all. The manual pages and
docs/settings.md are made from it.

A row's ``check`` looks at a text alone. It cannot look at what the machine has: devices, files, entry points and the
executors' user are checked by whoever uses the setting, and those readers name the variable in their own message.

An empty variable counts as not set. CUDA_VISIBLE_DEVICES is the exception, because CUDA documents that an empty list
hides every device.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Flag, auto
from typing import Final

from attrs import frozen

from pympsd.errors import InputError
from pympsd.process.version import CLIENT_CONTEXTS, CUDA_VERSIONS, DRIVER
from pympsd.vocabulary import limits, shares

BACKENDS: Final = ("auto", "vendor", "cuda", "emulated")
WORKERS: Final = ("auto", "native", "python")
"""auto: native if that helps and is available; native: required; python: never native."""
TIERS: Final = ("auto", "numpy", "compiled")
"""The ways to run kernels of the emulated GPU. auto: machine code for long-running ones; compiled: wherever
possible."""
DIALECTS: Final = ("documented", "r580", "json")
"""The wording of log lines: that of the MPS documents, that of driver 580, or JSON objects."""
USERS: Final = ("in-turn", "together")
"""The ways to serve users: one server at a time, in turn, or the servers of several users together."""
UNMAPPED_USERS: Final = ("refuse", "nobody")
"""What happens to clients whose user ID is not mapped in the daemon's user namespace: refused or served as nobody."""
MAX_CONNECTIONS: Final = 32
"""CUDA's maximum number of hardware queues."""

BACKEND: Final = "PYMPSD_BACKEND"
EMULATED_DEVICES: Final = "PYMPSD_EMULATED_DEVICES"
WORKER: Final = "PYMPSD_WORKER"
LAUNCHES: Final = "PYMPSD_LAUNCHES"
CONNECTIONS: Final = "PYMPSD_DEVICE_CONNECTIONS"
"""The number of hardware queues of an executor. Each makes its start longer, but on the driver's default of 8 queues,
16 clients run no more work at the same time than 8."""
STRICT_BOUNDS: Final = "PYMPSD_STRICT_BOUNDS"
"""1: kernels of the emulated GPU can access exactly the requested bytes; 0: also those up to the hardware's next
unit."""
TIER: Final = "PYMPSD_TIER"
KERNEL_THREADS: Final = "PYMPSD_KERNEL_THREADS"
KERNEL_CACHE: Final = "PYMPSD_KERNEL_CACHE"
DRIVER_VARIABLE: Final = "PYMPSD_DRIVER"
LOG_DIALECT: Final = "PYMPSD_LOG_DIALECT"
OVERTAKING_LIMIT: Final = "PYMPSD_TURN_PATIENCE"
USERS_VARIABLE: Final = "PYMPSD_USERS"
UNMAPPED_USERS_VARIABLE: Final = "PYMPSD_UNMAPPED_USERS"
EXPLAIN: Final = "PYMPSD_EXPLAIN"
RUN: Final = "PYMPSD_RUN"
"""The variable with the id of a run, which pympsd-run sets (not users) and by which it finds its processes'
refusals."""
REQUIRE_MPS: Final = "PYMPSD_REQUIRE_MPS"
LENIENT_LIMITS: Final = "PYMPSD_LENIENT_LIMITS"
LAUNCH_BLOCKING: Final = "CUDA_LAUNCH_BLOCKING"
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
MEMORY_LIMITS: Final = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_DEVICE_MEM_LIMIT")
"""Both names of the variable for limits of memory; the documents use the second one once."""
MEMORY_LIMIT_FORM: Final = "DEVICE=LIMIT, as in 0=1G or GPU-...=512M, several with commas"
PERCENTAGE_FORM: Final = "DEVICE=PERCENTAGE, as in 0=50 or GPU-...=25, several with commas"
_SHOWN: Final = 100
"""The number of characters of a wrong value that are shown."""
_MAX_SECONDS: Final = 1e9
_NUMBER: Final = re.compile(r"\s*\+?0*([0-9]{1,4})\s*", re.ASCII)


class Reader(Flag):
    """The programs that read a variable. An executor runs in its daemon's environment, so its settings are the
    daemon's.
    """

    DAEMON = auto()
    CLIENT = auto()
    SMI = auto()


Check = Callable[[str], str]
"""A function that returns the required form of a text, as a sentence continues after "must be"; nothing if valid."""


@frozen
class Setting:
    """A setting."""

    name: str
    readers: Reader
    meaning: str
    """The description for the manual page and docs/settings.md; names in backquotes."""
    effect: str = ""
    """The effect of a wrong value."""
    check: Check | None = None
    page: str = ""
    """The page of docs/ with the details."""
    default: str = ""
    """The value that an empty or missing variable has for `read`; `meaning` states it in words."""

    def problem(self, text: str) -> str:
        """Return what is wrong with a value, and what is allowed; nothing if it is valid or empty."""
        allowed = self.check(text) if text and self.check is not None else ""
        return f"{self.name} must be {allowed}, not {text[:_SHOWN]!r}" if allowed else ""


def _check_choice(*values: str) -> Check:
    return lambda text: "" if text in values else f"one of {', '.join(values)}"


def _switch(text: str) -> str:
    return "" if text in ("0", "1") else "0 or 1"


def _whole_number(most: int) -> Check:
    allowed = frozenset(map(str, range(1, most + 1)))
    return lambda text: "" if text in allowed else f"a number from 1 to {most}"


def _connections(text: str) -> str:
    match = _NUMBER.fullmatch(text)
    return "" if match and 0 < int(match[1]) <= MAX_CONNECTIONS else f"a number from 1 to {MAX_CONNECTIONS}"


def _seconds(text: str) -> str:
    try:
        is_valid = 0.0 <= float(text) < _MAX_SECONDS
    except ValueError:
        is_valid = False
    return "" if is_valid else "a number of seconds, 0 or more"


def _percentage(text: str) -> str:
    if "=" in text:
        return _check_by_device(
            text, limits.ThreadPercentage.parse, PERCENTAGE_FORM, "a percentage is above 0, up to 100"
        )
    try:
        percentage = limits.ThreadPercentage.parse(text)
    except limits.BadLimit:
        return "a number above 0, up to 100"
    # pympsd accepts it, as its command does; whether a driver does is not known.
    return f"a number without a percent sign (pympsd reads {percentage.value:g})" if "%" in text else ""


def _priority(text: str) -> str:
    try:
        limits.ClientPriority.parse(text)
    except limits.BadLimit:
        return "0 (normal) or 1 (below normal)"
    return ""


def _memory_limits(text: str) -> str:
    return _check_by_device(
        text, limits.PinnedMemory.parse, MEMORY_LIMIT_FORM, "a limit is a whole number and G or M, or 0 for none"
    )


def _check_by_device(text: str, parse: Callable[[str], object], form: str, allowed: str) -> str:
    """Return the required form of a text of entries by device; nothing if it is valid."""
    for entry in filter(None, (part.strip() for part in text.split(","))):
        device, equals, value = (part.strip() for part in entry.partition("="))
        if not (device and equals):
            return form
        try:
            parse(value)
        except limits.BadLimit:
            return f"{form}; {allowed}"
    return ""


def _shares(text: str) -> str:
    try:
        shares.read_shares([text])
    except shares.BadResourceShare as error:
        return f"RESOURCE=VALUE, several with commas ({error})"
    return ""


_DRIVERS: Final = " or ".join(f"`{branch}`" + " (default)" * (branch == DRIVER) for branch in CUDA_VERSIONS)
_BOTH: Final = Reader.DAEMON | Reader.CLIENT
_DOES_NOT_START: Final = "the daemon does not start"
_CUINIT_FAILS: Final = "cuInit fails"

VARIABLES: Final = (
    Setting(
        "CUDA_MPS_PIPE_DIRECTORY",
        _BOTH | Reader.SMI,
        "directory of the daemon's sockets, lock and PID file; default `/tmp/nvidia-mps`, and "
        "`/run/nvidia-mps` for root's daemon in protocol 3",
        "the daemon does not start; a client finds no daemon",
    ),
    Setting(
        "CUDA_MPS_LOG_DIRECTORY",
        Reader.DAEMON,
        "directory of control.log and server.log; default `/var/log/nvidia-mps`",
        "a warning, and no logs",
    ),
    Setting(
        "CUDA_MPS_PROTOCOL_VERSION",
        Reader.DAEMON,
        "`2` (default) or `3`: the protocol of a daemon that is started; takes precedence over `--protocol`",
        _DOES_NOT_START,
        _check_choice("2", "3"),
        "v3.md",
    ),
    Setting(
        "CUDA_VISIBLE_DEVICES",
        _BOTH,
        "devices that the daemon (or the client, in the daemon's numbering) sees, by index or UUID; if empty, none",
        "the list ends before the first wrong entry; if no device is left, the daemon does not start, and cuInit "
        "fails",
    ),
    Setting(
        PERCENTAGE,
        _BOTH,
        "active thread percentage, above 0 and up to 100: the daemon's default for servers, or a client's own, which "
        "only lowers it; a client may set it by device, `0=50,GPU-...=25`",
        "reported, then ignored; `50%` is reported, and read as 50; if an entry by device is wrong, a client's "
        "cuInit fails",
        _percentage,
    ),
    Setting(
        PRIORITY,
        _BOTH,
        "`0` (normal) or `1` (below normal): the daemon's default for clients, or a client's own priority",
        "reported, then ignored",
        _priority,
    ),
    Setting(
        MEMORY_LIMITS[0],
        _BOTH,
        "`0=1G,GPU-...=512M`: limits of device memory, the daemon's defaults or a client's own",
        "the daemon reports a wrong entry and ignores it; a client's cuInit fails",
        _memory_limits,
    ),
    Setting(
        MEMORY_LIMITS[1],
        _BOTH,
        f"another name of `{MEMORY_LIMITS[0]}`; that one takes precedence",
        f"as for `{MEMORY_LIMITS[0]}`",
        _memory_limits,
    ),
    Setting(
        "NVIDIA_GPU_MEMORY_LIMIT",
        Reader.CLIENT,
        "MiB that a container's client may hold on each device; schedulers set it",
        _CUINIT_FAILS,
        lambda text: "" if text.isascii() and text.isdecimal() else "a whole number of MiB",
        "provisioning.md",
    ),
    Setting(
        limits.PER_CONTEXT_PARTITIONING,
        Reader.CLIENT,
        f"`1`: each context of the client has the percentage that `{PERCENTAGE}` contains when the context is "
        "created",
        "reported, then ignored",
        _switch,
    ),
    Setting(
        "CUDA_MPS_SM_PARTITION",
        Reader.CLIENT,
        "the client's static SM partition, or one for each device, separated by commas: `GPU-74d43ed3/D0f3c...`, as "
        "`sm_partition add` prints it (protocol 2 with `-S`), `0/large` (protocol 3)",
        "contexts fail with the reason",
        None,
        "provisioning.md",
    ),
    Setting(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        Reader.CLIENT,
        f"1 to {MAX_CONNECTIONS}, default 2; above 2, the client's contexts take more of a device's "
        f"{CLIENT_CONTEXTS[DRIVER]} connections ({CLIENT_CONTEXTS[580]} with driver 580)",
        "reported; above 32 counts as 32, any other value is ignored",
        _connections,
    ),
    Setting(
        "CUDA_FORCE_API_VERSION",
        Reader.CLIENT,
        "the API version that a program requests, such as `3020`; before CUDA 4.0 (`4000`) it gets no context",
        "ignored, as in C",
    ),
    Setting(
        BACKEND,
        _BOTH,
        "`vendor` (the driver's own MPS server), `cuda` (pympsd's server on a GPU), `emulated`, or `auto` (default): "
        "the first of them that the machine has, or `emulated` if `PYMPSD_EMULATED_DEVICES` is set",
        _DOES_NOT_START,
        _check_choice(*BACKENDS),
        default=BACKENDS[0],
    ),
    Setting(
        "PYMPSD_VENDOR_SERVER",
        Reader.DAEMON,
        "path of the driver's MPS server; default: the first `nvidia-cuda-mps-server` in `PATH` that is not pympsd's",
        _DOES_NOT_START,
    ),
    Setting(
        WORKER,
        Reader.DAEMON,
        "what executes records on a GPU: `auto` (default), `native` (no executor starts without it) or `python`",
        _DOES_NOT_START,
        _check_choice(*WORKERS),
        default=WORKERS[0],
    ),
    Setting(
        LAUNCHES,
        Reader.CLIENT,
        "whether repeated launches skip the interpreter: `auto` (default), `native` (cuInit fails without it) or "
        "`python`",
        _CUINIT_FAILS,
        _check_choice(*WORKERS),
        default="auto",
    ),
    Setting(
        CONNECTIONS,
        Reader.DAEMON,
        f"hardware queues of an executor on a GPU, 1 to {MAX_CONNECTIONS} (default); with fewer, an executor starts "
        "faster",
        "backend `cuda`: the daemon does not start; others: reported",
        _whole_number(MAX_CONNECTIONS),
        "operations.md",
        default=str(MAX_CONNECTIONS),
    ),
    Setting(
        EMULATED_DEVICES,
        _BOTH | Reader.SMI,
        "the emulated machine: `H200`, `3xH200`, `2xH200,1xP100`, or the path of a TOML file; default: "
        "`$XDG_CONFIG_HOME/pympsd/machine.toml` (`~/.config` without it), `/etc/pympsd/machine.toml`, else one H200",
        "the daemon does not start; a program has no device and prints the reason; pympsd-smi exits with status 9",
    ),
    Setting(
        "PYMPSD_STATE_DIRECTORY",
        _BOTH | Reader.SMI,
        "directory of the compute modes and servers of machines that are given in short form or described in `/etc`; "
        "default `/run/pympsd`, or `/tmp` if root has not created that",
        "reported; modes cannot be set, and pympsd-smi shows only its own daemon's processes",
        None,
        "security.md",
    ),
    Setting(
        LENIENT_LIMITS,
        Reader.CLIENT,
        "`1`: invalid entries of the client's memory limits are ignored and logged; `0` (default): cuInit fails",
        _CUINIT_FAILS,
        _switch,
    ),
    Setting(
        USERS_VARIABLE,
        Reader.DAEMON,
        "`in-turn` (default) or `together`, as `--users`",
        _DOES_NOT_START,
        _check_choice(*USERS),
        default=USERS[0],
    ),
    Setting(
        OVERTAKING_LIMIT,
        Reader.DAEMON,
        "seconds, as `--turn-patience`; default 30",
        _DOES_NOT_START,
        _seconds,
        default="30",
    ),
    Setting(
        "PYMPSD_TURN_POLICY",
        Reader.DAEMON,
        "which waiting user is next: `order` (default), `fewest-turns`, or a plug-in",
        _DOES_NOT_START,
        None,
        "research.md",
    ),
    Setting(
        "PYMPSD_SCHEDULING_POLICY",
        Reader.DAEMON,
        "whose work an emulated device runs next: `fair` (default), `memory`, `deadline:MILLISECONDS`, or a plug-in",
        _DOES_NOT_START,
        None,
        "research.md",
    ),
    Setting(
        UNMAPPED_USERS_VARIABLE,
        Reader.DAEMON,
        "`refuse` (default) or `nobody`: clients of users whose user ID is not mapped in the daemon's user namespace "
        "are refused, or served as one user, 65534",
        _DOES_NOT_START,
        _check_choice(*UNMAPPED_USERS),
        default=UNMAPPED_USERS[0],
    ),
    Setting(
        shares.VARIABLE,
        Reader.DAEMON,
        "maxima for each user other than root, `servers=16,namespaces=64,buffers=16M`, as "
        f"`{shares.OPTION}`; `share list` prints all",
        _DOES_NOT_START,
        _shares,
        "security.md",
    ),
    Setting(
        "PYMPSD_UNMAPPED_DAEMON",
        Reader.CLIENT,
        "`refuse` (default) or `trust`: whether programs and the command line use a daemon whose user is not mapped "
        "in their user namespace, and which cannot prove that it is root's or theirs",
        _CUINIT_FAILS,
        _check_choice("refuse", "trust"),
        "security.md",
    ),
    Setting(
        LOG_DIALECT,
        Reader.DAEMON,
        "`documented` (default), `r580` or `json`: the dialect of the logs",
        _DOES_NOT_START,
        _check_choice(*DIALECTS),
        default=DIALECTS[0],
    ),
    Setting(
        DRIVER_VARIABLE,
        Reader.DAEMON | Reader.SMI,
        f"the driver branch whose versions, commands and number of client contexts pympsd uses: {_DRIVERS}, as "
        "`--driver`; also `driver = 580` in the file of an emulated machine",
        _DOES_NOT_START,
        _check_choice(*map(str, CUDA_VERSIONS)),
    ),
    Setting(
        STRICT_BOUNDS,
        Reader.DAEMON,
        "`1`: on the emulated GPU an access one byte beyond an allocation is a fault; by default kernels reach the "
        "rest of its 2-MiB page, as on a GPU",
        "backend `emulated`: the daemon does not start; others: reported",
        _switch,
        default="0",
    ),
    Setting(
        TIER,
        Reader.DAEMON,
        "what runs the kernels of the emulated GPU. `numpy`: NumPy. `compiled`: machine code, 10 to 100 times "
        "faster, from the first launch on. `auto` (default): NumPy, and machine code for kernels that take longer "
        "than 20 ms, which are compiled meanwhile. Machine code needs LLVM (`pip install 'pympsd[compiled]'`); "
        "kernels that cannot be compiled run in NumPy",
        "backend `emulated`: the daemon does not start; others: reported",
        _check_choice(*TIERS),
        default="auto",
    ),
    Setting(
        KERNEL_THREADS,
        Reader.DAEMON,
        "maximum number of threads that run the blocks of a compiled kernel, 1 to 1024; default: the number of "
        "processors that the executor may use. It is never more than the multiprocessors that the client may use. "
        "With `1`, atomics of floats happen in the same order each time",
        "backend `emulated`: the daemon does not start; others: reported",
        _whole_number(1024),
    ),
    Setting(
        KERNEL_CACHE,
        Reader.DAEMON,
        "directory in which the emulated GPU keeps compiled kernels for later runs, or `off`. Each user gets a "
        "folder of mode 0700 in it. Default: `~/.cache/pympsd/kernels` of the server's user (for the daemon's own "
        "user, below `$XDG_CACHE_HOME` if that is set). It takes at most 256 MB, and may be deleted",
        "backend `emulated`: the daemon does not start; others: reported",
        lambda text: "" if text == "off" or text.startswith("/") else "the absolute path of a directory, or off",
    ),
    Setting(
        LAUNCH_BLOCKING,
        Reader.CLIENT,
        "`1`: a launch returns when its kernel has ended, with the kernel's error, except while a stream captures; "
        "`0` (default): it returns immediately",
        "reported, and counts as `0`",
        _switch,
    ),
    Setting(
        EXPLAIN,
        Reader.CLIENT,
        "`1`: explain each failing call and each wrong setting on stderr (with the driver's own server, under "
        "pympsd-run: each refusal of a client). `0`: explain nothing. Default: under pympsd-run, report once each "
        "function that pympsd does not support",
        "reported, and counts as `1`",
        _switch,
    ),
    Setting(
        "PYMPSD_TRACE",
        Reader.CLIENT,
        "file to which every driver call is written, with its time",
        "reported, and nothing is written",
        None,
        "timelines.md",
    ),
    Setting(
        REQUIRE_MPS,
        Reader.CLIENT,
        "`1`: a client fails without a daemon; `0`: it runs without MPS",
        _CUINIT_FAILS,
        _switch,
    ),
)

BY_NAME: Final = {variable.name: variable for variable in VARIABLES}


class BadSetting(InputError, ValueError):
    """Raised for a setting that prevents a start; the message names the variable and what is allowed."""


def plain(text: str) -> str:
    """Return a text of the table for a terminal or a manual page: without its backquotes."""
    return text.replace("`", "")


def read(environment: Mapping[str, str], name: str) -> str:
    """Return a variable's value, or its row's default if it is empty or not set.

    Raises:
        BadSetting: The value is wrong. The message names the variable and what is allowed.

    >>> read({"PYMPSD_USERS": "together"}, "PYMPSD_USERS"), read({}, "PYMPSD_TURN_PATIENCE")
    ('together', '30')
    """
    text = environment.get(name) or BY_NAME[name].default
    if problem := BY_NAME[name].problem(text):
        raise BadSetting(problem)
    return text


def selects_emulated(environment: Mapping[str, str]) -> bool:
    """Return whether the emulated backend is selected whatever the machine has: by name, or by a described machine.

    >>> selects_emulated({"PYMPSD_EMULATED_DEVICES": "2xH200"})
    True
    >>> selects_emulated({"PYMPSD_EMULATED_DEVICES": "2xH200", "PYMPSD_BACKEND": "cuda"})
    False
    """
    backend = environment.get(BACKEND) or "auto"  # a wrong one is reported by `read`
    return backend == "emulated" or (backend == "auto" and bool(environment.get(EMULATED_DEVICES)))


def problems(
    environment: Mapping[str, str], readers: Reader | None = None, but_for: Iterable[str] = ()
) -> dict[str, str]:
    """Return what is wrong with an environment, by variable, in the table's order.

    ``readers``: only variables that these programs read; by default all. ``but_for``: variables to leave out.
    """
    looked_at = (
        variable
        for variable in VARIABLES
        if variable.name not in but_for and (readers is None or readers & variable.readers)
    )
    problems_by_name = {variable.name: variable.problem(environment.get(variable.name, "")) for variable in looked_at}
    return {name: problem for name, problem in problems_by_name.items() if problem}
