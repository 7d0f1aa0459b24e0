"""The program's usage, the help of each command and the man page, from the docstrings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from textwrap import indent, wrap
from typing import Final

import pympsd.commands.v2  # noqa: F401 - registers commands
from pympsd.commands.registry import REGISTRY, Command
from pympsd.commands.v3 import help as v3_help
from pympsd.commands.v3 import line as v3
from pympsd.commands.v3 import registry as v3_registry
from pympsd.commands.v3.registry import COMMANDS
from pympsd.state_machine.state.options import MAX_SERVERS
from pympsd.version import VERSION
from pympsd.vocabulary import shares
from pympsd.vocabulary.variables import VARIABLES, Reader, plain

USAGE: Final[dict[str, str]] = {
    "get_server_status": "PID",
    "start_server": "-uid UID",
    "get_client_list": "PID",
    "get_device_client_list": "[PID]",
    "set_default_active_thread_percentage": "PERCENTAGE",
    "set_active_thread_percentage": "PID PERCENTAGE",
    "get_active_thread_percentage": "PID",
    "set_default_device_pinned_mem_limit": "DEVICE VALUE",
    "get_default_device_pinned_mem_limit": "DEVICE",
    "set_device_pinned_mem_limit": "PID DEVICE VALUE",
    "get_device_pinned_mem_limit": "PID DEVICE",
    "set_default_client_priority": "0|1",
    "terminate_client": "SERVER-PID CLIENT-PID",
    "shutdown_server": "PID [-f]",
    "device_query": "[PID] [--csv]",
    "ps": "[-p PID]",
    "quit": "[-t SECONDS]",
}
"""The arguments of each command, as the manual writes them; a command without arguments is not listed."""

_PATIENCE: Final = (
    "with -d or -f: how long newcomers of the active user may overtake a waiting user (default 30, 0: never); "
    "also PYMPSD_TURN_PATIENCE"
)

_USERS: Final = (
    "with -d or -f: in-turn (default), where one user has a server at a time, or together, where each of up to "
    f"{MAX_SERVERS} users has one and nobody waits for another; also PYMPSD_USERS"
)

_PROTOCOL: Final = (
    "with -d or -f: 2 (default), one server a user, or 3, named servers with namespaces; a daemon that runs is "
    "asked in its own; also CUDA_MPS_PROTOCOL_VERSION, which wins"
)

_QUIT: Final = (
    "end the daemon and its servers when their clients have gone (--timeout bounds that wait); -q does so in "
    "protocol 3 only: in 2 it is --ready-devices"
)

_SHARES: Final = (
    "with -d or -f, again for each resource: what a user who is not root may have of "
    f"{', '.join(f'{each.name} ({each.share})' for each in shares.RESOURCES)}; also {shares.VARIABLE}"
)

_RESET: Final = (
    "with -d or -f: terminate_client resets a device that cannot stop the client's kernel within 10 s, as a fatal "
    "fault of it would; without it the answer is 702"
)

OPTIONS: Final = (
    ("-d, --daemon", "start the control daemon in the background"),
    ("-f, --foreground", "start the control daemon in the foreground; its log goes to standard output"),
    ("-p, --protocol 2|3", _PROTOCOL),
    ("-m, --multiuser, -M", "with -d or -f: servers are run by root, for the clients of all users; root only"),
    (
        "-a, --apply FILE",
        "apply a configuration file (in protocol 2 it has rules only), at the start or to the daemon that runs",
    ),
    ("--metrics PORT|PATH", "with -d or -f: serve OpenMetrics text at a port of 127.0.0.1, or a Unix socket"),
    ("--replace", "with -d or -f: take over from the daemon that runs, if one does; servers and clients go on"),
    ("--log-dialect documented|r580|json", "with -d or -f: the dialect of the logs; also PYMPSD_LOG_DIALECT"),
    ("--users in-turn|together", _USERS),
    ("--turn-patience SECONDS", _PATIENCE),
    (f"{shares.OPTION} RESOURCE=VALUE", _SHARES),
    ("--terminate-by-reset", _RESET),
    ("--clients-only", "with -d or -f: no commands at control; root and the daemon's user have control_privileged"),
    ("--open-queries", "with -d or -f, protocol 3: everybody may ask everything at the socket of a namespace"),
    (
        "--trust-containers",
        "with -d or -f, protocol 3: in containers users own what is theirs; without it nobody is an owner there",
    ),
    ("--ready-devices", "accepted; device queries are always ready"),
    ("-q, --quit", _QUIT),
    ("--force", "with -q: terminate the clients instead of waiting for them"),
    ("-S, --static-partitioning", "protocol 3: accepted; it is not needed"),
    ("--strict", "exit with status 1 if any command was refused"),
    (
        "--trust-daemon",
        "send changes and files to a daemon that is neither root's nor yours as well; without it, queries only",
    ),
    ("--timeout SECONDS", "give up on a daemon that is silent for this long (default 10), exit status 2"),
    (
        "--install-extras PREFIX",
        "copy manual pages, completions, systemd units, profile.d, batch scripts, samples and examples below PREFIX",
    ),
    (
        "--link-nvidia-names DIR",
        "make links named nvidia-cuda-mps-control, nvidia-cuda-mps-server and nvidia-smi in DIR",
    ),
    ("-v, --version", "print the version"),
    ("-h, --help", "print this"),
)

FILES: Final = tuple((each.name, plain(each.meaning)) for each in VARIABLES if Reader.DAEMON in each.readers)
"""The variables that the daemon reads; clients read some of them, too."""

CLIENT_VARIABLES: Final = tuple(
    (each.name, plain(each.meaning)) for each in VARIABLES if Reader.DAEMON not in each.readers
)
"""Variables of programs, not of the daemon."""

TOOLS: Final = (
    (
        "pympsd top [--once | --json] [--sort ORDER] [--filter TEXT] [--interval SECONDS]",
        "show servers, their clients and who waits, kept up to date; once without a terminal",
    ),
    (
        "pympsd plot [--since MS] [--until MS] [-o FILE] FILE ...",
        "draw traces (trace start, PYMPSD_TRACE) as .svg, .png or .pdf; needs matplotlib",
    ),
)
"""Commands that are answered without a daemon's grammar."""

EXITS: Final = (
    "0 when the daemon was reached, whatever it answered; 1 when there is none, or a command given as arguments (or "
    "with --strict any command) was refused; 2 when the daemon did not answer in time, or an option is wrong (under "
    "the vendor's name an unknown option prints the help, with status 0); 74 when not all of an answer could be "
    "printed."
)

SIGNALS: Final = (
    ("SIGTERM, SIGINT", "end the daemon and its servers, clients or not, within seconds"),
    ("SIGHUP", "open control.log and server.log again by their names, as logrotate needs it"),
    ("SIGUSR2", "end, and leave sockets, servers and clients to the next daemon of the pipe directory"),
)

PATHS: Final = (
    ("/etc/pympsd/machine.toml", "the emulated machine, if neither of the next two says it"),
    ("$XDG_CONFIG_HOME/pympsd/machine.toml", "the emulated machine of a user; default of the folder: ~/.config"),
    ("$PYMPSD_EMULATED_DEVICES", "comes before both, where it names a file as well"),
    ("$CUDA_MPS_PIPE_DIRECTORY/control", "the daemon's socket; beside it are its lock, state and keeper's socket"),
    ("$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid", "the daemon's PID"),
    ("$CUDA_MPS_LOG_DIRECTORY/control.log, server.log", "the logs; a named server of protocol 3 has a folder there"),
)

_EXAMPLES: Final = (
    ("pympsd -d", "start the daemon"),
    ("echo ps | pympsd", "show the clients"),
    ("echo quit -t 10 | pympsd", "end it, after 10 s by force"),
    ("pympsd --users together --log-dialect json -f", "every user at once, the log as JSON on standard output"),
    ("python -m pympsd_client", "what a program sees here, and what is wrong"),
)

_DESCRIPTION: Final = (
    "Starts the control daemon of the Multi\\-Process Service, or gives it commands: those of standard input, one a "
    "line, or the one of the arguments. On a terminal \\fBhelp\\fR lists the commands."
)


def synopsis(command: Command) -> str:
    """Return a command with its arguments."""
    json = "" if command.takes is None else " [--json]"
    return f"{command.name} {USAGE.get(command.name, '')}".rstrip() + json


def takes_server(command: str) -> bool:
    """Whether the first argument of a command is the PID of a server."""
    return USAGE.get(command, "").strip("[]").startswith(("PID", "SERVER-PID", "-p PID"))


def summary(command: Command) -> str:
    """Return a command's docstring."""
    return cleandoc(command.handler.__doc__ or "")


def command_help(name: str) -> str:
    """Return the help of one command, or of all when the name is empty or unknown."""
    if name in COMMANDS:
        return f"{v3_help.module_help(name)}\n"
    command = REGISTRY.get(name)
    if command is None:
        usages = (re.sub("<([^>]*)>", lambda found: found[1].upper(), each.syntax.usage) for each in _of_both())
        return "".join(f"{each}\n" for each in sorted((*map(synopsis, REGISTRY.values()), *usages)))
    return f"{synopsis(command)}\n{indent(summary(command), '    ')}\n"


def help_of(words: Sequence[str]) -> str:
    """Return the help of the command that words begin with; an empty text for a word that is none."""
    if (known := v3.command_of(words)) is not None:
        return f"{v3_help.command_help(known)}\n"
    return command_help(words[0]) if words[0] in REGISTRY or words[0] in COMMANDS else ""


def _of_both() -> list[v3_registry.Command]:
    """Return the commands of modules that both protocols have."""
    return [each for module in sorted(v3.IN_BOTH) for _, each in sorted(COMMANDS[module].items())]


def usage(name: str, protocol: int = 2) -> str:
    """Return the text of -h."""
    if protocol == 3:
        commands = "\n".join(v3_help.module_help(module) for module in sorted(COMMANDS)) + "\n"
    else:
        commands = "".join(command_help(each) for each in (*sorted(REGISTRY), *sorted(v3.IN_BOTH)))
    return f"""
usage: {name} [-d | -f] [OPTION ...]      start the control daemon
       {name} [OPTION ...]                read commands from standard input
       {name} [OPTION ...] COMMAND ...    give one command
       {name} top [--once | --json]       show servers, clients and who waits; top --help says more
       {name} plot FILE ...               draw traces (trace start FILE); plot --help says more

{_table(OPTIONS)}
commands:

{indent(commands, "  ")}
environment:

{_table(FILES)}
exit status: {EXITS}
"""


def _table(rows: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"  {left:<34} {right}\n" for left, right in rows)


def man_page() -> str:
    """Return the manual page in roff."""
    parts = [
        f'.TH PYMPSD 1 "" "pympsd {VERSION}" "CUDA MPS"',
        ".SH NAME",
        "pympsd, nvidia-cuda-mps-control \\- control daemon of the CUDA Multi\\-Process Service",
        ".SH SYNOPSIS",
        ".B pympsd\n.RB [ \\-d | \\-f ] [ \\fIOPTION\\fR ... ] [ \\fICOMMAND\\fR ... ]",
        ".SH DESCRIPTION",
        _DESCRIPTION,
        ".SH OPTIONS",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in OPTIONS),
        ".SH COMMANDS",
        *(f".TP\n.B {_roff(synopsis(each))}\n{_roff(summary(each))}" for _, each in sorted(REGISTRY.items())),
        *(f".TP\n.B {_roff(each.syntax.usage)}\n{_roff(v3_help.summary(each))}" for each in _of_both()),
        ".SH TOOLS",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in TOOLS),
        ".SH COMMANDS OF PROTOCOL 3",
        *(
            f".TP\n.B {_roff(each.syntax.usage)}\n{_roff(v3_help.summary(each))}"
            for module, verbs in sorted(COMMANDS.items())
            for _, each in sorted(verbs.items())
            if module not in v3.IN_BOTH
        ),
        ".SH ENVIRONMENT",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in FILES),
        ".SH ENVIRONMENT OF PROGRAMS",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in CLIENT_VARIABLES),
        ".SH EXIT STATUS",
        _roff(EXITS),
        ".SH SIGNALS",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in SIGNALS),
        ".SH FILES",
        *(f".TP\n.I {_roff(left)}\n{_roff(right)}" for left, right in PATHS),
        ".SH EXAMPLES",
        *(f".TP\n.B {_roff(left)}\n{_roff(right)}" for left, right in _EXAMPLES),
        ".SH SEE ALSO",
        ".BR pympsd\\-run (1),\n.BR pympsd\\-smi (1),\n.BR systemd (1),\n.BR logrotate (8)",
    ]
    return "".join(f"{_wrapped(part)}\n" for part in parts)


def _wrapped(part: str) -> str:
    return part if part.startswith(".") else "\n".join(wrap(part, 110, break_on_hyphens=False))


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
