"""Parse the command line of pympsd-smi; the refusals are those of nvidia-smi 580 (recorded).

The tables here have all options of nvidia-smi: those that pympsd-smi carries out, and those that it refuses by name
because an emulated GPU has nothing to which they apply. `usage`, the manual page and shells' completions name the
same options.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NoReturn

from attrs import frozen

from pympsd.errors import InputError
from pympsd.vocabulary.mistyped import suggest

BAD_VALUE: Final = 2
NOT_SUPPORTED: Final = 3
BAD_OPTION: Final = 255
DEFAULT_LOOP_SECONDS: Final = 5.0
_CSV_MODIFIERS: Final = frozenset({"csv", "noheader", "nounits"})
_MAX_INTERVAL: Final = 1 << 31
"""The maximum of an interval, in the unit of its option; nvidia-smi takes a 32-bit number."""


class UnsupportedRequest(InputError):
    """Raised for a request that pympsd-smi does not carry out, or answers with a text such as its help.

    Args:
        text: The message to print, with its line ends and with ``{program}`` in place of the program's name.
        status: The exit status. With 0 the text is an answer, such as a help text, for standard output.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class UnknownOption(UnsupportedRequest):
    """Raised for an option that does not exist, or that is written differently.

    Under the name ``nvidia-smi`` the message is nvidia-smi's, about ``word``. Under pympsd's own name the message is
    ``own_text``, which suggests an option with a name similar to ``option``.
    """

    def __init__(self, word: str, option: str) -> None:
        super().__init__(f"ERROR: Option {word} is not recognized. Please run '{{program}} -h'.\n\n", BAD_OPTION)
        option_names = (*SHORT, *VALUED, *PLAIN)
        self.own_text = f"there is no option {word}{suggest(word, () if option in option_names else option_names)}\n"
        """The message under pympsd's own name."""


class Action(Enum):
    """The action that a command line requests, by the long form of its option.

    A command line has at most one action; without one it requests the summary.
    """

    SUMMARY = ""
    LIST = "--list-gpus"
    QUERY = "--query"
    QUERY_GPU = "--query-gpu"
    QUERY_APPS = "--query-compute-apps"
    SET_MODE = "--compute-mode"
    SET_PERSISTENCE = "--persistence-mode"
    RESET = "--gpu-reset"
    HELP = "--help"
    GPU_FIELDS = "--help-query-gpu"
    APP_FIELDS = "--help-query-compute-apps"
    VERSION = "--version"


@frozen
class SmiRequest:
    """A parsed command line.

    ``ids`` is the value of ``-i`` (None means all devices); ``value`` is the value of the action's option, such as
    the fields of ``--query-gpu``.

    >>> parse(["--query-gpu=name,memory.used", "--format=csv,noheader", "-i", "0"]).value
    'name,memory.used'
    """

    action: Action = Action.SUMMARY
    ids: str | None = None
    value: str = ""
    form: frozenset[str] = frozenset()
    """The given modifiers: any of csv, noheader and nounits."""
    xml: bool = False
    file: str = ""
    """The path of the output; empty for standard output."""
    interval: float | None = None
    """The number of seconds between two outputs; None for a single output."""


SHORT: Final = {
    "-L": "--list-gpus",
    "-q": "--query",
    "-c": "--compute-mode",
    "-pm": "--persistence-mode",
    "-r": "--gpu-reset",
    "-h": "--help",
    "-i": "--id",
    "-d": "--display",
    "-x": "--xml-format",
    "-f": "--filename",
    "-l": "--loop",
    "-lms": "--loop-ms",
}
VALUED: Final = {
    "--id": "ID",
    "--display": "WHAT",
    "--format": "FORMAT",
    "--filename": "FILE",
    "--loop": "SECONDS",
    "--loop-ms": "MILLISECONDS",
    "--compute-mode": "MODE",
    "--persistence-mode": "MODE",
    "--query-gpu": "FIELDS",
    "--query-compute-apps": "FIELDS",
}
PLAIN: Final = (
    "--list-gpus",
    "--query",
    "--xml-format",
    "--gpu-reset",
    "--help",
    "--help-query-gpu",
    "--help-query-compute-apps",
    "--version",
)
_ONLY_LONG: Final = """
--dtd --debug --query-supported-clocks --query-accounted-apps --query-retired-pages --query-remapped-rows
--help-query-supported-clocks --help-query-accounted-apps --help-query-retired-pages --help-query-remapped-rows
--gom --auto-boost-default --auto-boost-permission
"""
UNSUPPORTED: Final = {
    **dict.fromkeys(_ONLY_LONG.split(), ""),
    "--unit": "-u",
    "--list-excluded-gpus": "-B",
    "--ecc-config": "-e",
    "--reset-ecc-errors": "-p",
    "--driver-model": "-dm",
    "--force-driver-model": "-fdm",
    "--lock-gpu-clocks": "-lgc",
    "--reset-gpu-clocks": "-rgc",
    "--lock-memory-clocks": "-lmc",
    "--reset-memory-clocks": "-rmc",
    "--lock-memory-clocks-deferred": "-lmcd",
    "--reset-memory-clocks-deferred": "-rmcd",
    "--applications-clocks": "-ac",
    "--reset-applications-clocks": "-rac",
    "--power-limit": "-pl",
    "--scope": "-sc",
    "--cuda-clocks": "-cc",
    "--accounting-mode": "-am",
    "--clear-accounted-apps": "-caa",
    "--gpu-target-temp": "-gtt",
    "--gpu-virt-mode": "-vm",
    "--multi-instance-gpu": "-mig",
    "--toggle-led": "-tl",
}
"""The options of nvidia-smi that an emulated GPU cannot carry out, each with its short form."""
UNSUPPORTED_COMMANDS: Final = (
    *("drain", "nvlink", "clocks", "encodersessions", "fbcsessions", "mig", "daemon", "replay", "vgpu"),
    *("boost-slider", "power-hint", "conf-compute", "compute-policy", "power-smoothing", "power-profiles", "c2c"),
)
_ACTIONS: Final = {action.value: action for action in Action if action is not Action.SUMMARY}
_QUERIES: Final = (Action.QUERY_GPU, Action.QUERY_APPS)
_IMMEDIATE: Final = (Action.HELP, Action.VERSION, Action.GPU_FIELDS, Action.APP_FIELDS)
"""The actions for which all other options are ignored."""
_REPEATED: Final = (Action.SUMMARY, Action.LIST, Action.QUERY, *_QUERIES)
"""The actions that may be repeated at an interval."""
_ALLOWED: Final = {
    "--id": tuple(action for action in Action if action is not Action.LIST),
    "--display": (Action.QUERY,),
    "--xml-format": (Action.QUERY,),
    "--format": _QUERIES,
    "--filename": _REPEATED,
    "--loop": _REPEATED,
    "--loop-ms": _REPEATED,
}
"""The actions with which an option is allowed, by the option."""


def parse(arguments: Sequence[str]) -> SmiRequest:
    """Parse a command line without the commands ``dmon``, ``pmon``, ``topo`` and ``memory-limits``.

    >>> parse(["-i", "1", "-c", "EXCLUSIVE_PROCESS"]).action
    <Action.SET_MODE: '--compute-mode'>

    Raises:
        UnknownOption: An option does not exist.
        UnsupportedRequest: An option lacks its value, has an invalid value, is not supported by emulated devices, or
            cannot be combined with the others.
    """
    by_option = _read(list(arguments))
    requested = [option for option in by_option if option in _ACTIONS]
    for early in _IMMEDIATE:
        if early.value in requested:
            return SmiRequest(early)
    if len(requested) > 1:
        _refuse_option(by_option[requested[1]][0])
    action = _ACTIONS[requested[0]] if requested else Action.SUMMARY
    for option, actions in _ALLOWED.items():
        if option in by_option and action not in actions:
            _refuse_option(by_option[option][0])
    values = {option: value for option, (_, value) in by_option.items()}
    value = values[requested[0]] if requested else ""
    return SmiRequest(
        action,
        values.get("--id"),
        values.get("--display", "") if action is Action.QUERY else value,
        _form(values),
        "--xml-format" in by_option,
        values.get("--filename", ""),
        _interval(by_option),
    )


def _read(arguments: list[str]) -> dict[str, tuple[str, str]]:
    """Return each option's spelling and value by long name; the last of repeated options counts."""
    values: dict[str, tuple[str, str]] = {}
    while arguments:
        word = arguments.pop(0)
        written, equals, value = word.partition("=")
        option = SHORT.get(written, written)
        if option in PLAIN and not equals:
            values[option] = (written, "")
        elif option in VALUED and (written in SHORT) <= (not equals):
            if not equals and not (option == "--loop" and not _is_number(arguments[:1])):
                value = arguments.pop(0) if arguments else ""
            if not value and option != "--loop":
                refuse(f"Option {written} is missing its value. Please run '{{program}} -h' for help.", BAD_OPTION)
            values[option] = (written, value)
        elif option in UNSUPPORTED or option in UNSUPPORTED.values():
            refuse(f"Option {written} is not supported by emulated GPUs.", NOT_SUPPORTED)
        else:
            raise UnknownOption(word, written)
    return values


def _is_number(words: Sequence[str]) -> bool:
    return bool(words) and not words[0].startswith("-")


def _form(values: dict[str, str]) -> frozenset[str]:
    words = [word.strip() for word in values["--format"].split(",")] if "--format" in values else []
    if not _CSV_MODIFIERS.issuperset(words):
        raise UnsupportedRequest("Format modifier is not recognized.\n", BAD_VALUE)
    return frozenset(words)


def _interval(values: dict[str, tuple[str, str]]) -> float | None:
    """Return the interval of -l or -lms in seconds; -lms takes precedence. Raise UnsupportedRequest."""
    for option, unit in (("--loop-ms", 0.001), ("--loop", 1.0)):
        if option not in values:
            continue
        written, text = values[option]
        if not text:
            return DEFAULT_LOOP_SECONDS
        return interval(written, text) * unit
    return None


def interval(option: str, text: str) -> int:
    """Return the value of an option for an interval or a count.

    Args:
        option: The option as the user typed it, for the message.
        text: The value: a whole number from 1 to 2**31 - 1.

    Raises:
        UnsupportedRequest: The value is not such a number.
    """
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_INTERVAL)) else 0
    if not 0 < number < _MAX_INTERVAL:
        refuse(f"Option {option} takes a whole number above 0, not {text!r}.", BAD_VALUE)
    return number


def _refuse_option(written: str) -> NoReturn:
    refuse(f"Option {written} is not valid for this command. Please run '{{program}} -h' for help.", BAD_VALUE)


def refuse(sentence: str, status: int) -> NoReturn:
    """Raise UnsupportedRequest with a sentence and the program's exit status."""
    raise UnsupportedRequest(f"ERROR: {sentence}\n\n", status)


def usage(program: str) -> str:
    """Return the help text of pympsd-smi, with its line ends.

    Args:
        program: The name under which the program was started.
    """
    return f"""\
{program}: shows the emulated GPUs of this machine and changes their compute modes. If a daemon runs in
CUDA_MPS_PIPE_DIRECTORY, the GPUs are the daemon's; otherwise PYMPSD_EMULATED_DEVICES describes them.

{program} [-i ID]                   show a table of the GPUs and the processes on them
{program} -L                        list the GPUs
{program} [-i ID] -q [-d WHAT] [-x] show all details; WHAT: only COMPUTE, MEMORY, PIDS, UTILIZATION, or
                                    several of them; -x: as XML
{program} [-i ID] -c MODE           set the compute mode; MODE: 0/DEFAULT, 1/EXCLUSIVE_THREAD (deprecated: means 3),
                                    2/PROHIBITED, 3/EXCLUSIVE_PROCESS. Root only
{program} [-i ID] -pm MODE          no effect; MODE: 0 or 1. Root only
{program} [-i ID] -r                reset a GPU that no process uses. Root only
{program} [-i ID] --query-gpu=FIELDS [--format=csv[,noheader][,nounits]]
                                    FIELDS: as in --help-query-gpu; [N/A] if an emulated GPU lacks it
{program} [-i ID] --query-compute-apps=FIELDS [--format=...]
                                    FIELDS: as in --help-query-compute-apps
{program} topo -m                   show how the GPUs are connected
{program} dmon [-i ID] [-d SECONDS] [-c COUNT] [-s pucvmet] [-o DT] [-f FILE]
                                    show a line for each GPU, every second
{program} pmon [-i ID] [-d SECONDS] [-c COUNT] [-s um] [-o DT] [-f FILE]
                                    show a line for each process, every second
{program} memory-limits --help      limit the memory of a cgroup's clients (with a daemon in protocol 3)
{program} -h | --version

-l [SECONDS] (default 5) and -lms MILLISECONDS repeat a table, list or query until you interrupt it; -f FILE writes
the output to a file. Messages go to standard error. Options of nvidia-smi that change features which an emulated GPU
lacks are refused by name, with status 3.
ID is an index, a UUID or a PCI bus id, or several with commas; without -i, all GPUs.
Long forms: --list-gpus, --id=, --query, --display=, --xml-format, --filename=, --loop=, --loop-ms=, --compute-mode=,
--persistence-mode=, --gpu-reset, --help.
"""
