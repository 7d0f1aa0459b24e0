"""The help of commands, from their syntax and the docstrings of their handlers."""

import re
from collections.abc import Sequence
from inspect import cleandoc
from textwrap import indent

from pympsd.commands.grammar.registry import COMMANDS, Command, find_command, first_words, verbs_of


def overview() -> str:
    """Return the modules of protocol 3 and their verbs."""
    rows = (f"{name:<16}{', '.join(sorted(verbs))}" for name in first_words(3) if (verbs := verbs_of(name, 3)))
    return "\n".join(("usage: MODULE VERB [ARGUMENT ...]; MODULE help and MODULE VERB help explain more", "", *rows))


def module_help(module: str) -> str:
    """Return the help of every verb of a module."""
    return "\n".join(command_help(command) for _, command in sorted(verbs_of(module, 3).items()))


def command_help(command: Command) -> str:
    """Return the usage of a command and what it does."""
    return f"{command.usage}\n{indent(summary(command), '    ')}"


def summary(command: Command) -> str:
    """Return what a command does: its docstring."""
    return cleandoc(command.handler.__doc__ or "")


def help_of(words: Sequence[str]) -> str:
    """Return the help of the command or module that words begin with; an empty text for another word."""
    command = find_command(words)
    if command is not None:
        return f"{command_help(command)}\n"
    return f"{module_help(words[0])}\n" if words and verbs_of(words[0], 3) else ""


def list_commands(protocol: int) -> str:
    """Return a line for each command of a protocol: its usage, with the placeholders of modules in capitals."""
    commands = [command for command in COMMANDS.values() if protocol in command.protocols]
    usages = (re.sub("<([^>]*)>", lambda match: match[1].upper(), command.usage) for command in commands)
    return "".join(f"{usage}\n" for usage in sorted(usages))


def all_help(protocol: int) -> str:
    """Return the help of all commands of a protocol."""
    commands = sorted((command.name, command) for command in COMMANDS.values() if protocol in command.protocols)
    return "".join(f"{command_help(command)}\n" for _, command in commands)
