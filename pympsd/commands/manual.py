"""Write the program's usage (-h), and the help of commands.

The texts come from the tables here, from the declarations of the commands and from the docstrings of their handlers.

Options of the command line, settings and tools are rows of two texts: what the user types, and its effect. The
shells' completions (scripts/completions.py) and the manual page (scripts/manual_page.py) are generated from the same
rows, and from `grammar.registry.COMMANDS`. tests/commands/test_manual.py checks that usage and manual page contain
every setting, option and exit status.
"""

import re
from collections.abc import Sequence
from inspect import cleandoc
from textwrap import indent
from typing import Final

from pympsd.commands.grammar.registry import COMMANDS, Command, find_command, first_words, verbs_of
from pympsd.process.version import DRIVER
from pympsd.state_machine.state.options import MAX_SERVERS
from pympsd.vocabulary import shares
from pympsd.vocabulary.variables import VARIABLES, Reader, plain


def overview() -> str:
    """Return the answer to ``help`` in protocol 3: one line for each module, with its verbs."""
    rows = (f"{name:<16}{', '.join(sorted(verbs))}" for name in first_words(3) if (verbs := verbs_of(name, 3)))
    return "\n".join(("usage: MODULE VERB [ARGUMENT ...]; MODULE help and MODULE VERB help explain more", "", *rows))


def module_help(module: str) -> str:
    """Return the help of a module of protocol 3, which is the help of all its verbs."""
    return "\n".join(command_help(command) for _, command in sorted(verbs_of(module, 3).items()))


def command_help(command: Command) -> str:
    """Return the help of a command: its usage, and below it what the command does, indented."""
    return f"{command.usage}\n{indent(summary(command), '    ')}"


def summary(command: Command) -> str:
    """Return the description of a command: the docstring of its handler."""
    return cleandoc(command.handler.__doc__ or "")


def help_of(words: Sequence[str]) -> str:
    """Return the help of the command or module with which a line begins, and a line end.

    Return an empty text if the words name neither.
    """
    command = find_command(words)
    if command is not None:
        return f"{command_help(command)}\n"
    return f"{module_help(words[0])}\n" if words and verbs_of(words[0], 3) else ""


def list_commands(protocol: int) -> str:
    """Return the usages of all commands of a protocol, sorted, one per line.

    The placeholders of protocol 3 are in capitals: ``<name>`` becomes NAME.
    """
    commands = [command for command in COMMANDS.values() if protocol in command.protocols]
    usages = (re.sub("<([^>]*)>", lambda match: match[1].upper(), command.usage) for command in commands)
    return "".join(f"{usage}\n" for usage in sorted(usages))


def render_all_help(protocol: int) -> str:
    """Return the help of all commands of a protocol, sorted by their names."""
    commands = sorted((command.name, command) for command in COMMANDS.values() if protocol in command.protocols)
    return "".join(f"{command_help(command)}\n" for _, command in commands)


_OVERTAKING: Final = (
    "with -d or -f: for how long new clients of the active user may overtake a waiting user (default 30; 0: never); "
    "also PYMPSD_TURN_PATIENCE"
)

_USERS: Final = (
    "with -d or -f: in-turn (default) gives one user at a time a server; together gives up to "
    f"{MAX_SERVERS} users a server each, so that users do not wait for each other; also PYMPSD_USERS"
)

_PROTOCOL: Final = (
    "with -d or -f: 2 (default) has one server for each user, 3 has named servers with namespaces; commands to a "
    "running daemon use its own protocol; CUDA_MPS_PROTOCOL_VERSION takes precedence over this option"
)

_QUIT: Final = (
    "end the daemon and its servers when their clients have ended; --timeout limits the wait; in protocol 2, -q is "
    "--ready-devices instead"
)

_SHARES: Final = (
    "with -d or -f, once for each resource: the maximum for each user other than root: "
    f"{', '.join(f'{resource.name} ({resource.share})' for resource in shares.RESOURCES)}; also {shares.VARIABLE}"
)

_RESET: Final = (
    "with -d or -f: terminate_client resets a device that cannot stop the client's kernel within 10 s, as if the "
    "kernel had faulted; without this option terminate_client returns 702"
)

_DRIVER: Final = (
    "with -d or -f: the driver branch whose versions, commands and number of client contexts the daemon uses "
    f"(default {DRIVER}); also PYMPSD_DRIVER"
)

_STATIC: Final = (
    "with -d or -f: clients need a static SM partition to create a context (sm_partition, lspart); in protocol 3, "
    "partitions do not need this option, and it has no effect"
)

OPTIONS: Final = (
    ("-d, --daemon", "start the control daemon in the background"),
    ("-f, --foreground", "start the control daemon in the foreground; its log goes to standard output"),
    ("-p, --protocol 2|3", _PROTOCOL),
    ("-m, --multiuser, -M", "with -d or -f: run servers as root, for the clients of all users; root only"),
    (
        "-a, --apply FILE",
        "apply a configuration file to the running daemon, or at the start; in protocol 2 the file has rules only",
    ),
    ("--metrics PORT|PATH", "with -d or -f: serve OpenMetrics text at a port of 127.0.0.1, or at a Unix socket"),
    (
        "--replace",
        "with -d or -f: take over from the running daemon, if any; servers and clients keep running",
    ),
    ("--log-dialect documented|r580|json", "with -d or -f: the dialect of the logs; also PYMPSD_LOG_DIALECT"),
    ("--driver 580|590", _DRIVER),
    ("--users in-turn|together", _USERS),
    ("--turn-patience SECONDS", _OVERTAKING),
    (f"{shares.OPTION} RESOURCE=VALUE", _SHARES),
    ("--terminate-by-reset", _RESET),
    (
        "--clients-only",
        "with -d or -f: accept no commands at the socket control; root and the daemon's user use control_privileged",
    ),
    ("--open-queries", "with -d or -f, protocol 3: allow everybody all queries, at the socket of any namespace"),
    (
        "--trust-containers",
        "with -d or -f, protocol 3: users in containers own their servers; without it, no user in a container does",
    ),
    ("--ready-devices", "no effect, because device queries are always possible"),
    ("-q, --quit", _QUIT),
    ("--force", "with -q: terminate the clients instead of waiting for them"),
    ("-S, -s, --static-partitioning", _STATIC),
    ("--strict", "exit with status 1 if any command was refused"),
    (
        "--trust-daemon",
        "also send changes and files to a daemon of a user other than root or you; without it, only queries",
    ),
    ("--timeout SECONDS", "exit with status 2 if the daemon does not answer for this long (default 10)"),
    (
        "--install-extras PREFIX",
        "copy manual pages, completions, systemd units, profile.d, batch scripts, samples and examples below PREFIX",
    ),
    (
        "--link-nvidia-names DIR",
        "create links named nvidia-cuda-mps-control, nvidia-cuda-mps-server and nvidia-smi in DIR",
    ),
    ("-v, --version", "print the version"),
    ("-h, --help", "print this help"),
)
"""The options of the command line: for each, what the user types, and its effect."""

DAEMON_VARIABLES: Final = tuple(
    (entry.name, plain(entry.meaning)) for entry in VARIABLES if Reader.DAEMON in entry.readers
)
"""The variables that the daemon reads; clients read some of them too."""

EXITS: Final = (
    "0 if the daemon answered, even if it refused a command from standard input; 1 if no daemon runs, or if it "
    "refused a command in the arguments (with --strict, any command); 2 if the daemon did not answer in time, or if "
    "an option is wrong (under the name nvidia-cuda-mps-control an unknown option prints the help, with status 0); "
    "74 if an answer could not be printed completely."
)


def usage(name: str, protocol: int = 2) -> str:
    """Return the text of -h, for the program's ``name``."""
    return f"""
usage: {name} [-d | -f] [OPTION ...]      start the control daemon
       {name} [OPTION ...]                read commands from standard input
       {name} [OPTION ...] COMMAND ...    give one command
       {name} top [--once | --json]       show servers, clients and the queue; see top --help
       {name} plot FILE ...               draw traces of trace start; see plot --help

{_table(OPTIONS)}
commands:

{indent(render_all_help(protocol), "  ")}
environment:

{_table(DAEMON_VARIABLES)}
exit status: {EXITS}
"""


def _table(rows: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"  {term:<34} {text}\n" for term, text in rows)
