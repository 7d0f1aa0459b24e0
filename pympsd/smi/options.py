"""The command line of pympsd-smi; its refusals are those of nvidia-smi 580 (recorded)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NoReturn

from attrs import frozen

from pympsd.vocabulary.mistyped import suggest

BAD_VALUE: Final = 2
BAD_OPTION: Final = 255
_CSV_MODIFIERS: Final = frozenset({"csv", "noheader", "nounits"})


class Refused(Exception):
    """A request that is refused; ``text`` is the message, with ``{program}`` for the program's name."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class UnknownOption(Refused):
    """There is no such option, or not in that form: ``word``. The text is nvidia-smi's."""

    def __init__(self, word: str, option: str) -> None:
        super().__init__(f"ERROR: Option {word} is not recognized. Please run '{{program}} -h'.\n\n", BAD_OPTION)
        known = (*_SHORT, *_VALUED, *_PLAIN)
        self.own_text = f"there is no option {word}{suggest(word, () if option in known else known)}\n"
        """The sentence under pympsd's own name."""


class Action(Enum):
    """The action of a command line, by its long option."""

    SUMMARY = ""
    LIST = "--list-gpus"
    QUERY = "--query"
    QUERY_GPU = "--query-gpu"
    QUERY_APPS = "--query-compute-apps"
    SET_MODE = "--compute-mode"
    RESET = "--gpu-reset"
    HELP = "--help"
    VERSION = "--version"


@frozen
class Request:
    """A command line; ``ids`` is None for all devices, ``value`` the action's value."""

    action: Action = Action.SUMMARY
    ids: str | None = None
    value: str = ""
    form: frozenset[str] = frozenset()
    """The given modifiers, of csv, noheader and nounits."""


_SHORT: Final = {
    "-L": "--list-gpus",
    "-q": "--query",
    "-c": "--compute-mode",
    "-r": "--gpu-reset",
    "-h": "--help",
    "-i": "--id",
    "-d": "--display",
}
_VALUED: Final = frozenset({"--id", "--display", "--format", "--compute-mode", "--query-gpu", "--query-compute-apps"})
_PLAIN: Final = frozenset({"--list-gpus", "--query", "--gpu-reset", "--help", "--version"})
_ACTIONS: Final = {action.value: action for action in Action if action is not Action.SUMMARY}
_QUERIES: Final = (Action.QUERY_GPU, Action.QUERY_APPS)


def parse(arguments: Sequence[str]) -> Request:
    """Return the request of a command line; raise Refused."""
    given = _read(list(arguments))
    asked = [option for option in given if option in _ACTIONS]
    for early in (Action.HELP, Action.VERSION):
        if early.value in asked:
            return Request(early)
    if len(asked) > 1:
        _not_valid(given[asked[1]][0])
    action = _ACTIONS[asked[0]] if asked else Action.SUMMARY
    if "--id" in given and action is Action.LIST:
        _not_valid(given["--id"][0])
    if "--display" in given and action is not Action.QUERY:
        _not_valid(given["--display"][0])
    if "--format" in given and action not in _QUERIES:
        _not_valid(given["--format"][0])
    ids = given["--id"][1] if "--id" in given else None
    value = given[asked[0]][1] if asked else ""
    if action is Action.QUERY and "--display" in given:
        value = given["--display"][1]
    return Request(action, ids, value, _form(given))


def _read(arguments: list[str]) -> dict[str, tuple[str, str]]:
    """Return how each option was written and its value, by long name; the last of its kind counts."""
    given: dict[str, tuple[str, str]] = {}
    while arguments:
        word = arguments.pop(0)
        written, equals, value = word.partition("=")
        option = _SHORT.get(written, written)
        if option in _PLAIN and not equals:
            given[option] = (written, "")
        elif option in _VALUED and (written in _SHORT) <= (not equals):
            if not equals:
                value = arguments.pop(0) if arguments else ""
            if not value:
                _refuse(f"Option {written} is missing its value. Please run '{{program}} -h' for help.", BAD_OPTION)
            given[option] = (written, value)
        else:
            raise UnknownOption(word, written)
    return given


def _form(given: dict[str, tuple[str, str]]) -> frozenset[str]:
    words = [word.strip() for word in given["--format"][1].split(",")] if "--format" in given else []
    if not _CSV_MODIFIERS.issuperset(words):
        raise Refused("Format modifier is not recognized.\n", BAD_VALUE)
    return frozenset(words)


def _not_valid(written: str) -> NoReturn:
    _refuse(f"Option {written} is not valid for this command. Please run '{{program}} -h' for help.", BAD_VALUE)


def _refuse(sentence: str, status: int) -> NoReturn:
    raise Refused(f"ERROR: {sentence}\n\n", status)


def usage(program: str) -> str:
    """Return the help text."""
    return f"""\
{program}: shows the emulated GPUs of this machine (PYMPSD_EMULATED_DEVICES) and changes their compute modes.

{program} [-i ID]                   a table of the GPUs and of the processes on them
{program} -L                        list the GPUs
{program} [-i ID] -q [-d WHAT]      what is known of each; WHAT: COMPUTE, MEMORY, PIDS, or several with commas
{program} [-i ID] -c MODE           set the compute mode; MODE: 0/DEFAULT, 1/EXCLUSIVE_THREAD (deprecated: means 3),
                                    2/PROHIBITED, 3/EXCLUSIVE_PROCESS. Root's
{program} [-i ID] -r                reset a GPU that no process uses. Root's
{program} [-i ID] --query-gpu=FIELDS [--format=csv[,noheader][,nounits]]
                                    FIELDS: index, uuid, name, pci.bus_id, memory.total, memory.used, memory.free,
                                    compute_mode, compute_cap, count, driver_version
{program} [-i ID] --query-compute-apps=FIELDS [--format=...]
                                    FIELDS: pid, process_name, used_memory, gpu_name, gpu_uuid, gpu_bus_id
{program} memory-limits --help       limits of the memory of a cgroup's clients, which a daemon in protocol 3 keeps
{program} -h | --version

ID is an index, a UUID or a PCI bus id, or several with commas; without -i all GPUs are meant.
Long forms: --list-gpus, --id=, --query, --display=, --compute-mode=, --gpu-reset, --help.
"""
