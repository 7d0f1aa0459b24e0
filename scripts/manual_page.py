"""The manual page of pympsd in roff, and the table of docs/settings.md: scripts/generate-docs writes both.

The rows that the program prints too (options, settings of the daemon, exit status) are in pympsd/commands/manual.py,
commands in their handlers' docstrings. The rest of the page is here.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import Final

from pympsd.commands.grammar.registry import COMMANDS
from pympsd.commands.manual import DAEMON_VARIABLES, EXITS, OPTIONS, summary
from pympsd.process.version import VERSION
from pympsd.vocabulary.variables import VARIABLES, Reader, plain

_CLIENT_VARIABLES: Final = tuple(
    (entry.name, plain(entry.meaning)) for entry in VARIABLES if Reader.DAEMON not in entry.readers
)
"""Variables of programs, not of the daemon."""

TOOLS: Final = (
    (
        "pympsd top [--once | --json] [--sort ORDER] [--filter TEXT] [--interval SECONDS]",
        "show servers, their clients and who waits, and keep the screen up to date; without a terminal, print once",
    ),
    (
        "pympsd plot [--since MS] [--until MS] [-o FILE] FILE ...",
        "draw traces (trace start, PYMPSD_TRACE) as .svg, .png or .pdf; needs matplotlib",
    ),
    (
        "pympsd machine export MACHINE | pympsd machine import PROFILE",
        "print an emulated machine in the format of nvml-mock's profiles, or the machine file of such a profile",
    ),
)
"""Separate programs behind the same name."""

_SIGNALS: Final = (
    ("SIGTERM, SIGINT", "end the daemon and its servers within seconds, even if they have clients"),
    ("SIGHUP", "open control.log and server.log again by their names, for logrotate"),
    (
        "SIGUSR2",
        "end the daemon, and leave its sockets, servers and clients to the next daemon of the pipe directory",
    ),
)

_PATHS: Final = (
    ("/etc/pympsd/machine.toml", "the emulated machine, if neither of the next two exists"),
    (
        "$XDG_CONFIG_HOME/pympsd/machine.toml",
        "the emulated machine of a user; the default of XDG_CONFIG_HOME is ~/.config",
    ),
    ("$PYMPSD_EMULATED_DEVICES", "a file or a list of devices; takes precedence over both"),
    (
        "$CUDA_MPS_PIPE_DIRECTORY/control",
        "the daemon's socket; its lock, its state and the keeper's socket are in the same directory",
    ),
    ("$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid", "the daemon's PID"),
    (
        "$CUDA_MPS_LOG_DIRECTORY/control.log, server.log",
        "the logs; each named server of protocol 3 has a directory there",
    ),
    ("~/.cache/pympsd/kernels", "compiled kernels of the emulated GPU, a folder of each user; may be deleted"),
)

_EXAMPLES: Final = (
    ("pympsd -d", "start the daemon"),
    ("echo ps | pympsd", "show the clients"),
    ("echo quit -t 10 | pympsd", "end the daemon, after 10 s by force"),
    (
        "pympsd --users together --log-dialect json -f",
        "serve all users at the same time; log JSON to standard output",
    ),
    ("python -m pympsd_client", "report what a program sees here, and what is wrong"),
)

_DESCRIPTION: Final = (
    "Starts the control daemon of the Multi\\-Process Service, or gives it commands: those of standard input, one a "
    "line, or the one of the arguments. On a terminal \\fBhelp\\fR lists the commands."
)

_READERS: Final = {Reader.DAEMON: "daemon", Reader.CLIENT: "client", Reader.SMI: "pympsd-smi"}
"""The readers of variables, as the table of settings names them."""


def man_page() -> str:
    """Return the manual page in roff."""
    commands = [command for _, command in sorted(COMMANDS.items())]
    parts = [
        f'.TH PYMPSD 1 "" "pympsd {VERSION}" "CUDA MPS"',
        ".SH NAME",
        "pympsd, nvidia-cuda-mps-control \\- control daemon of the CUDA Multi\\-Process Service",
        ".SH SYNOPSIS",
        ".B pympsd\n[ \\fB\\-d\\fR | \\fB\\-f\\fR ] [ \\fIOPTION\\fR ... ] [ \\fICOMMAND\\fR ... ]",
        ".SH DESCRIPTION",
        _DESCRIPTION,
        ".SH OPTIONS",
        *_entries(OPTIONS),
        ".SH COMMANDS",
        *_entries((command.usage, summary(command)) for command in commands if 2 in command.protocols),
        ".SH TOOLS",
        *_entries(TOOLS),
        ".SH COMMANDS OF PROTOCOL 3",
        *_entries((command.usage, summary(command)) for command in commands if 2 not in command.protocols),
        ".SH ENVIRONMENT",
        *_entries(DAEMON_VARIABLES),
        ".SH ENVIRONMENT OF PROGRAMS",
        *_entries(_CLIENT_VARIABLES),
        ".SH EXIT STATUS",
        _roff(EXITS),
        ".SH SIGNALS",
        *_entries(_SIGNALS),
        ".SH FILES",
        *_entries(_PATHS, font="I"),
        ".SH EXAMPLES",
        *_entries(_EXAMPLES),
        ".SH SEE ALSO",
        ".BR pympsd\\-run (1),\n.BR pympsd\\-smi (1),\n.BR systemd (1),\n.BR logrotate (8)",
    ]
    return "".join(f"{_wrap(part)}\n" for part in parts)


def _entries(rows: Iterable[tuple[str, str]], font: str = "B") -> list[str]:
    return [f".TP\n.{font} {_roff(term)}\n{_roff(text)}" for term, text in rows]


def _wrap(part: str) -> str:
    return part if part.startswith(".") else "\n".join(wrap(part, 110, break_on_hyphens=False))


def _roff(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def settings_table() -> str:
    """Return the table of docs/settings.md."""
    rows = ["| variable | read by | meaning | a wrong value |", "| --- | --- | --- | --- |"]
    for variable in VARIABLES:
        readers = ", ".join(name for reader, name in _READERS.items() if reader in variable.readers)
        more = f" ([{variable.page}]({variable.page}))" if variable.page else ""
        rows.append(f"| `{variable.name}` | {readers} | {variable.meaning}{more} | {variable.effect} |")
    return "".join(f"{row}\n" for row in rows)
