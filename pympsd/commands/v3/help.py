"""The help of protocol 3, from the registry and the docstrings of the handlers."""

from __future__ import annotations

from inspect import cleandoc
from textwrap import indent

from pympsd.commands.v3.registry import COMMANDS, Command


def overview() -> str:
    """Return the modules and their verbs."""
    rows = (f"{module:<16}{', '.join(sorted(verbs))}" for module, verbs in sorted(COMMANDS.items()))
    return "\n".join(("usage: MODULE VERB [ARGUMENT ...]; MODULE help and MODULE VERB help say more", "", *rows))


def module_help(module: str) -> str:
    """Return the help of every verb of a module."""
    return "\n".join(command_help(each) for _, each in sorted(COMMANDS[module].items()))


def command_help(command: Command) -> str:
    """Return the usage of a command and what it does."""
    return f"{command.syntax.usage}\n{indent(summary(command), '    ')}"


def summary(command: Command) -> str:
    """Return what a command does."""
    return cleandoc(command.handler.__doc__ or "")
