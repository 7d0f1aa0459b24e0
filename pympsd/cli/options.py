"""Parse the options of the command line. This module imports nothing, so that commands start fast.

The launcher passes the name under which it was started as the first argument, ``--argv0=NAME``, so that texts and
process names can show nvidia-cuda-mps-control.
"""

from pympsd.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_NAME = "pympsd"
DROP_IN_NAME = "nvidia-cuda-mps-control"
STARTS = {"-d": "background", "--daemon": "background", "-f": "foreground", "--foreground": "foreground"}
READY = "--ready-devices"
QUIT = ("-q", "--quit")
"""The options that end the daemon. With -d or -f of protocol 2, -q means --ready-devices instead."""
MULTIUSER = ("-multiuser-server", "--multiuser-server", "-M", "-m", "--multiuser")
STATIC = ("-S", "-s", "--static-partitioning")
PROTOCOLS = ("2", "3")
PROTOCOL_VARIABLE = "CUDA_MPS_PROTOCOL_VERSION"
INSTALLS = {"--install-extras": "PREFIX", "--link-nvidia-names": "DIR"}
START_FLAGS = {
    "--clients-only": "the daemon refuses operators at control",
    "--open-queries": "the daemon allows operators all queries at every namespace's socket",
    "--trust-containers": "the daemon treats users in containers as the owners of their servers",
}
"""The flags with which a daemon is started, with the effect of each."""
USER_SHARE = "--user-share"
VALUED = (
    *INSTALLS,
    USER_SHARE,
    "--timeout",
    "--log-dialect",
    "--turn-patience",
    "--users",
    "--protocol",
    "--apply",
    "--metrics",
    "--driver",
)
SHORT = {"-p": "--protocol", "-a": "--apply"}
FLAGS = {
    "--replace": "replace",
    "--terminate-by-reset": "terminate_by_reset",
    "--strict": "strict",
    "--trust-daemon": "trust_daemon",
    "--force": "force",
    **dict.fromkeys(MULTIUSER, "multiuser"),
}
"""The options without a value, each with the attribute that it sets to true."""
_TEXTS = {
    "--log-dialect": "dialect",
    "--users": "users",
    "--protocol": "protocol",
    "--metrics": "metrics",
    "--apply": "apply",
}
_NEEDS = {
    "--metrics": "a port of the loopback, or the path of a socket",
    "--apply": "the path of a configuration file",
    **{option: f"a folder: {option} {folder}" for option, folder in INSTALLS.items()},
}


def list_options() -> "tuple[str, ...]":
    """Return the names of all options, for suggestions."""
    return ("-h", "--help", "-v", "--version", READY, *FLAGS, *STARTS, *QUIT, *STATIC, *START_FLAGS, *VALUED, *SHORT)


class BadOption(InputError):
    """An option is invalid. ``unknown``: the known options, if the name is unknown."""

    def __init__(self, reason: str, unknown: "Options | None" = None) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Options:
    """The parsed arguments. ``words``: the command given as arguments; ``shown``: the command line that ps shows.

    ``overlooked``: words next to -d or -f, which start a daemon and ignore commands (recorded: no-daemon).
    """

    def __init__(self, arguments: "Sequence[str]") -> None:
        self.name = OWN_NAME
        self.start = ""
        self.text = ""
        self.strict = False
        self.trust_daemon = False
        self.multiuser = False
        self.replace = False
        self.terminate_by_reset = False
        self.start_flags: set[str] = set()
        """The options of START_FLAGS that were given."""
        self.timeout = 10.0
        self.is_timeout_given = False
        self.protocol = ""
        """The requested protocol; empty if not given."""
        self.apply = ""
        """The path of the configuration file to apply; empty if not given."""
        self.metrics = ""
        """The address of the metrics: a port of the loopback, or the path of a socket."""
        self.launcher = ""
        """The path by which the launcher was started."""
        self.install = ""
        """The option of INSTALLS that was given; empty if none was. Its argument is ``folder``."""
        self.folder = ""
        self.quit = ""
        """The option that ends the daemon, as typed; empty if not given. With -d or -f, -q has another meaning."""
        self.force = False
        self.driver = 0
        """The driver branch to reproduce; 0 if not given."""
        self.static = ""
        """The option for static partitioning, as typed; empty if not given."""
        self.dialect = ""
        self.users = ""
        self.overtaking_seconds: float | None = None
        self.user_shares: list[str] = []
        """The values of --user-share, in order."""
        self.words: list[str] = []
        self.shown: list[str] = []
        self.overlooked: list[str] = []
        self.unknown = ""
        """The first unknown option; empty if all are known."""
        remaining = list(arguments)
        if remaining and remaining[0].startswith("--argv0="):
            self.launcher = remaining.pop(0).partition("=")[2]
            launcher_name = self.launcher.rpartition("/")[2]
            self.name = DROP_IN_NAME if launcher_name == DROP_IN_NAME else OWN_NAME
        self.shown = [self.name, *remaining]
        while remaining and (remaining[0].startswith("-") or self.start):
            self._take(remaining.pop(0), remaining)
        self.words = remaining
        if self.unknown:
            raise BadOption(f"there is no option {self.unknown}", unknown=self)
        if not self.text:
            self._check_combinations()

    def _check_combinations(self) -> None:
        """Raise BadOption for options that cannot be combined."""
        if self.trust_daemon and self.start:
            raise BadOption("--trust-daemon goes with commands: it sends changes and files to another user's daemon")
        for option, is_given, why in (
            ("--driver", self.driver, "the daemon behaves as with that driver"),
            ("--metrics", self.metrics, "the daemon serves the metrics"),
            ("--replace", self.replace, "the new daemon replaces the running one"),
            (USER_SHARE, self.user_shares, "the daemon has the shares"),
            (self.static, self.static, "a daemon has static SM partitions from its start"),
            *((flag, True, START_FLAGS[flag]) for flag in sorted(self.start_flags)),
            ("--terminate-by-reset", self.terminate_by_reset, "a daemon has this setting from its start"),
        ):
            if is_given and not self.start:
                raise BadOption(f"{option} goes with -d or -f: {why}")
        if self.quit == "--quit" and self.start:
            raise BadOption("--quit does not go with -d or -f: it ends the running daemon")
        if self.force and (not self.quit or self.start):
            raise BadOption("--force goes with -q: it terminates the clients first")
        if self.quit and not self.start and (self.words or self.apply):
            raise BadOption(f"{self.quit} takes no command and no file")
        if self.install and (self.start or self.quit or self.words or self.apply):
            raise BadOption(f"{self.install} does not go with commands or options that start a daemon: use it alone")
        if self.apply and self.words:
            raise BadOption("--apply takes no command")

    def choose_protocol(self, variable: str) -> str:
        """Return the protocol to use: the environment's ``variable`` if set, otherwise the option.

        Raise BadOption.
        """
        if variable:
            if variable not in PROTOCOLS:
                raise BadOption(f"{PROTOCOL_VARIABLE} must be 2 or 3, not {variable!r}")
            return variable
        return self.protocol or PROTOCOLS[0]

    def check_start(self, protocol: str) -> None:
        """Raise BadOption for options with which a daemon of a protocol cannot be started."""
        needing = sorted(self.start_flags - {"--clients-only"})
        if protocol == "2" and needing:
            raise BadOption(f"{needing[0]} needs protocol 3")
        if protocol == "3" and self.quit:
            raise BadOption("-q quits a daemon in protocol 3; it does not go with -d or -f")

    def _take(self, word: str, remaining: "list[str]") -> None:
        """Read one word of the command line; an option may take its value from ``remaining``."""
        option, equals, value = word.partition("=")
        if word in ("-h", "--help", "-v", "--version"):
            self.text = self.text or word.lstrip("-")[0]
        elif word in STARTS:
            if self.start not in ("", STARTS[word]):
                raise BadOption("-d starts the daemon in the background, and -f in the foreground: give one of them")
            self.start = STARTS[word]
        elif word in FLAGS:
            setattr(self, FLAGS[word], True)
        elif word in START_FLAGS:
            self.start_flags.add(word)
        elif word in QUIT:
            self.quit = self.quit or word
        elif word in STATIC:
            self.static = word
        elif option in VALUED:
            self._set(option, value if equals else (remaining.pop(0) if remaining else ""))
        elif word[:2] in SHORT:
            self._set(SHORT[word[:2]], word[2:] or (remaining.pop(0) if remaining else ""))
        elif not word.startswith("-"):
            self.overlooked.append(word)
        elif word != READY:
            self.unknown = self.unknown or option

    def _set(self, option: str, value: str) -> None:
        """Set the value of an option that takes one; raise BadOption for a value that is not allowed."""
        if option in _NEEDS and not value:
            raise BadOption(f"{option} needs {_NEEDS[option]}")
        if option == "--apply" and self.apply:
            raise BadOption(f"--apply takes one file, not two: {self.apply} and {value}")
        if option in ("--log-dialect", "--users"):
            from pympsd.vocabulary.variables import DIALECTS, USERS  # slow, and only needed to start a daemon

            allowed = DIALECTS if option == "--log-dialect" else USERS
            if value not in allowed:
                raise BadOption(f"{option} must be one of {', '.join(allowed)}, not {value!r}")
        if option == "--driver":
            from pympsd.process.version import CUDA_VERSIONS

            if value not in map(str, CUDA_VERSIONS):
                raise BadOption(f"--driver must be one of {', '.join(map(str, CUDA_VERSIONS))}, not {value!r}")
            self.driver = int(value)
            return
        if option == "--protocol" and value not in PROTOCOLS:
            raise BadOption(f"--protocol must be 2 or 3, not {value!r}")
        if option in _TEXTS:
            setattr(self, _TEXTS[option], value)
            return
        if option in INSTALLS:
            self.install, self.folder = option, value
            return
        if option == USER_SHARE:
            self.user_shares.append(_share(value))
            return
        if option == "--turn-patience":
            self.overtaking_seconds = _number(value)
            if not 0.0 <= self.overtaking_seconds < 1e9:
                raise BadOption(f"--turn-patience must be a number of seconds, 0 or more, not {value!r}")
            return
        self.timeout, self.is_timeout_given = _number(value), True
        if not 0.0 < self.timeout < 1e9:
            raise BadOption(f"--timeout must be a number of seconds above 0, not {value!r}")


def _share(text: str) -> str:
    """Return the value of --user-share; raise BadOption if it is not a share."""
    from pympsd.vocabulary.shares import BadResourceShare, read_shares

    try:
        read_shares([text])
    except BadResourceShare as error:
        raise BadOption(f"{USER_SHARE}: {error}") from None
    return text


def _number(text: str) -> float:
    """Return the number in a text; -1 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return -1.0
