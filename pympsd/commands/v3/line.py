"""A line at a daemon of protocol 3: help, one of its commands, or one of protocol 2 that it understands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pympsd.commands import logs, rules, trace  # noqa: F401 - register their commands
from pympsd.commands.registry import REGISTRY, Caller, Decision
from pympsd.commands.v3 import (  # noqa: F401 - the modules of commands register them
    clients,
    config,
    devices,
    features,
    help,
    lspart,
    namespaces,
    servers,
    shares,
    sm_partitions,
    translations,
    view,
)
from pympsd.commands.v3.grammar import Refused, did_you_mean
from pympsd.commands.v3.registry import COMMANDS, Command, data
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import refusal

HELP = ("help", "--help")
IN_BOTH: Final = frozenset(
    module for module, verbs in COMMANDS.items() if all(command.in_both for command in verbs.values())
)
"""The modules that a daemon of protocol 2 has, too."""


def decide(daemon: Daemon, caller: Caller, words: Sequence[str], file: bytes | None) -> Decision:
    """Carry out the words of a line; ``file``: the text of the file that they name."""
    if not words or words[0] in HELP:
        return data(help.overview())
    if words[0] in COMMANDS:
        return _of_module(daemon, caller, words, file)
    if words[0] in translations.DEFAULTS:
        try:
            return translations.default_of_user(view.seen_by(daemon, caller), caller, words)
        except Refused as error:
            return Decision(refusal(diagnostic=str(error)))
    if words[0] in translations.OF_SERVERS:
        return translations.default_of_server(view.seen_by(daemon, caller), caller, words)
    if words[0] in translations.KEPT:
        asked = daemon if words[0] in translations.CHANGES else view.seen_by(daemon, caller)
        return REGISTRY[words[0]].run(asked, caller, words[1:])
    if words[0] == lspart.NAME:
        return lspart.answer(daemon, caller, list(words[1:]))
    translated = translations.refusal_of_other(words)
    if translated is not None:
        return Decision(translated)
    modules = ", ".join(sorted(COMMANDS))
    meant = did_you_mean(words[0], (*COMMANDS, *translations.KNOWN, lspart.NAME))
    return Decision(refusal(diagnostic=f"Unknown module '{words[0]}'. {meant}Modules: {modules}."))


def command_of(words: Sequence[str]) -> Command | None:
    """Return the command that words name."""
    return COMMANDS.get(words[0], {}).get(words[1]) if len(words) > 1 else None


def _of_module(daemon: Daemon, caller: Caller, words: Sequence[str], file: bytes | None) -> Decision:
    module, *rest = words
    if rest and rest[0] in HELP:
        return data(help.module_help(module))
    known = command_of(words)
    if known is None:
        verbs = f"Verbs: {', '.join(sorted(COMMANDS[module]))}."
        verbs = f"{did_you_mean(rest[0], COMMANDS[module])}{verbs}" if rest else verbs
        wrong = f"Unknown verb '{rest[0]}' of module '{module}'." if rest else f"'{module}' needs a verb."
        return Decision(refusal(diagnostic=f"{wrong} {verbs}"))
    if rest[1:] == ["help"] or "--help" in rest:
        return data(help.command_help(known))
    return known.run(daemon, caller, rest[1:], file)
