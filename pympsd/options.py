"""The command line: which of daemon, foreground daemon, version, help, or talk to a daemon. Imports almost nothing.

The launcher passes the name it was started under as ``--argv0=NAME`` first, so that the texts and the process names
say nvidia-cuda-mps-control when it was started as that.
"""

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_NAME = "pympsd"
DROP_IN_NAME = "nvidia-cuda-mps-control"
TITLE = "CUDA MPS Control for Linux/Unix/QNX."
READY = ("-q", "--ready-devices")
MULTIUSER = ("-multiuser-server", "--multiuser-server", "-M")
DIALECTS = ("documented", "r580", "json")
BAD_USAGE = 2


class BadOption(Exception):
    """An option that cannot be; ``unknown``: there is none of that name."""

    def __init__(self, reason: str, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Options:
    """What the arguments say. ``words`` are a command given as arguments, ``shown`` what ps is to show.

    ``overlooked``: words beside -d or -f, which start a daemon and give no command (recorded: no-daemon).
    """

    def __init__(self, arguments: "Sequence[str]") -> None:
        self.name = OWN_NAME
        self.start = ""
        self.text = ""
        self.strict = False
        self.multiuser = False
        self.replace = False
        self.terminate_by_reset = False
        self.timeout = 10.0
        self.dialect = ""
        self.turn_patience: float | None = None
        self.words: list[str] = []
        self.shown: list[str] = []
        self.overlooked: list[str] = []
        rest = list(arguments)
        if rest and rest[0].startswith("--argv0="):
            given = rest.pop(0).partition("=")[2].rpartition("/")[2]
            self.name = DROP_IN_NAME if given == DROP_IN_NAME else OWN_NAME
        self.shown = [self.name, *rest]
        while rest and (rest[0].startswith("-") or self.start):
            self._take(rest.pop(0), rest)
        if self.replace and not self.start and not self.text:
            raise BadOption("--replace goes with -d or -f: it starts a daemon in the place of the one that runs")
        if self.terminate_by_reset and not self.start and not self.text:
            raise BadOption(
                "--terminate-by-reset goes with -d or -f: it is the daemon that was started with it or not"
            )
        self.words = rest

    def _take(self, word: str, rest: "list[str]") -> None:
        option, equals, value = word.partition("=")
        if word in ("-h", "--help", "-v", "--version"):
            self.text = self.text or word.lstrip("-")[0]
        elif word == "-d":
            self.start = "background"
        elif word == "-f":
            self.start = "foreground"
        elif word in MULTIUSER:
            self.multiuser = True
        elif word == "--replace":
            self.replace = True
        elif word == "--terminate-by-reset":
            self.terminate_by_reset = True
        elif word == "--strict":
            self.strict = True
        elif option in ("--timeout", "--log-dialect", "--turn-patience"):
            self._set(option, value if equals else (rest.pop(0) if rest else ""))
        elif not word.startswith("-"):
            self.overlooked.append(word)
        elif word not in READY:
            raise BadOption(f"there is no option {word}", unknown=True)

    def _set(self, option: str, value: str) -> None:
        if option == "--log-dialect":
            if value not in DIALECTS:
                raise BadOption(f"--log-dialect is one of {', '.join(DIALECTS)}, not {value!r}")
            self.dialect = value
            return
        if option == "--turn-patience":
            self.turn_patience = _number(value)
            if not 0.0 <= self.turn_patience < 1e9:
                raise BadOption(f"--turn-patience is a number of seconds, 0 or more, not {value!r}")
            return
        self.timeout = _number(value)
        if not 0.0 < self.timeout < 1e9:
            raise BadOption(f"--timeout is a number of seconds above 0, not {value!r}")


def _number(text: str) -> float:
    """Return the number of a text, -1 when it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def main(arguments: "Sequence[str]") -> int:
    """Do what the arguments say; return the exit status."""
    _fill_standard_descriptors()
    try:
        options = Options(arguments)
    except BadOption as error:
        sys.stderr.write(f"{error}\n")
        if not error.unknown:
            return BAD_USAGE
        return _say(f"Unrecognized option \n{_help(OWN_NAME)}")
    if options.text == "h":
        return _say(_help(options.name))
    if options.text == "v":
        return _say(_version())
    if options.start:
        from pympsd.daemonize import start_daemon

        if options.overlooked:
            words = " ".join(options.overlooked)
            sys.stderr.write(f"{words}: overlooked, for -d and -f take no command; give it by itself\n")
        return start_daemon(options)
    from pympsd.control_client import talk

    return talk(options.words, options.strict, options.timeout)


def _fill_standard_descriptors() -> None:
    """Put /dev/null where the caller closed 0, 1 or 2: the next file opened would be taken for one of them."""
    try:
        while (fd := posix.open("/dev/null", posix.O_RDWR)) <= 2:
            pass
        posix.close(fd)
    except OSError:
        return  # no /dev/null here: go on with what there is
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it stays to the end of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _say(text: str) -> int:
    from pympsd.control_client import say

    return say(text)


def _version() -> str:
    from pympsd.version import CUDA_VERSION, VERSION

    return f"{TITLE} Binary version: {CUDA_VERSION}\npympsd {VERSION}, an open reimplementation (Apache-2.0)\n"


def _help(name: str) -> str:
    from pympsd.commands.manual import usage

    return f"{TITLE}\n{usage(name)}"
