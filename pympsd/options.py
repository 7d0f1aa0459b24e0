"""The options of the command line. Imports nothing, for the quick command line.

The launcher passes the name it was started under as ``--argv0=NAME`` first, so that texts and process names say
nvidia-cuda-mps-control if it was started as that.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_NAME = "pympsd"
BAD_USAGE = 2
"""The exit status for options that cannot be carried out."""
DROP_IN_NAME = "nvidia-cuda-mps-control"
READY = ("-q", "--ready-devices")
MULTIUSER = ("-multiuser-server", "--multiuser-server", "-M")
USERS = ("in-turn", "together")
DIALECTS = ("documented", "r580", "json")


class BadOption(Exception):
    """An option is invalid; ``unknown``: there is none of that name."""

    def __init__(self, reason: str, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Options:
    """The arguments, read. ``words``: the command given as arguments; ``shown``: the command line that ps shows.

    ``overlooked``: words beside -d or -f, which start a daemon and take no command (recorded: no-daemon).
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
        self.users = ""
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
        elif word in ("-d", "-f"):
            start = "background" if word == "-d" else "foreground"
            if self.start not in ("", start):
                raise BadOption("-d starts the daemon in the background, and -f in the foreground: give one of them")
            self.start = start
        elif word in MULTIUSER:
            self.multiuser = True
        elif word == "--replace":
            self.replace = True
        elif word == "--terminate-by-reset":
            self.terminate_by_reset = True
        elif word == "--strict":
            self.strict = True
        elif option in ("--timeout", "--log-dialect", "--turn-patience", "--users"):
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
        if option == "--users":
            if value not in USERS:
                raise BadOption(f"--users is one of {', '.join(USERS)}, not {value!r}")
            self.users = value
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
    """Return the number that a text holds, -1 if it holds none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
