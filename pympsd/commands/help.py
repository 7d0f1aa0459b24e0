"""The help of commands, from their syntax and the docstrings of their handlers."""

import re
from collections.abc import Sequence
from inspect import cleandoc
from textwrap import indent

from pympsd.commands.grammar.registry import COMMANDS, Command, find_command, first_words, verbs_of


def overview() -> str:
    """Return the answer to ``help`` in protocol 3: a line for each module, with its verbs."""
    rows = (f"{name:<16}{', '.join(sorted(verbs))}" for name in first_words(3) if (verbs := verbs_of(name, 3)))
    return "\n".join(("usage: MODULE VERB [ARGUMENT ...]; MODULE help and MODULE VERB help explain more", "", *rows))


def module_help(module: str) -> str:
    """Return the help of a module of protocol 3: that of each of its verbs."""
    return "\n".join(command_help(command) for _, command in sorted(verbs_of(module, 3).items()))


def command_help(command: Command) -> str:
    """Return the help of a command: its usage, and below it what the command does, indented."""
    return f"{command.usage}\n{indent(summary(command), '    ')}"


def summary(command: Command) -> str:
    """Return what a command does, which is the docstring of its handler."""
    return cleandoc(command.handler.__doc__ or "")


def help_of(words: Sequence[str]) -> str:
    """Return the help of the command or module that a line begins with, with a line end.

    An empty text if the words name neither.
    """
    command = find_command(words)
    if command is not None:
        return f"{command_help(command)}\n"
    return f"{module_help(words[0])}\n" if words and verbs_of(words[0], 3) else ""


def list_commands(protocol: int) -> str:
    """Return the usages of all commands of a protocol, sorted, one on each line.

    The placeholders of protocol 3 are in capitals: ``<name>`` becomes NAME.
    """
    commands = [command for command in COMMANDS.values() if protocol in command.protocols]
    usages = (re.sub("<([^>]*)>", lambda match: match[1].upper(), command.usage) for command in commands)
    return "".join(f"{usage}\n" for usage in sorted(usages))


def all_help(protocol: int) -> str:
    """Return the help of all commands of a protocol, sorted by their names."""
    commands = sorted((command.name, command) for command in COMMANDS.values() if protocol in command.protocols)
    return "".join(f"{command_help(command)}\n" for _, command in commands)
