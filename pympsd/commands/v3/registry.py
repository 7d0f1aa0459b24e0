"""The registry of protocol 3: one decorator for each ``module verb``; the docstring is its help.

A handler is a function ``(daemon, caller, **arguments) -> Decision``; it raises Refused before it changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve, frozen

from pympsd.commands.registry import JSON_OPTION, Caller, Decision, Handler
from pympsd.commands.v3 import view
from pympsd.commands.v3.grammar import Refused, Syntax, read_words
from pympsd.commands.v3.output import Column, Format, Row, written
from pympsd.state_machine.state.daemon import Daemon
from pympsd.state_machine.v3.servers import NotPossible
from pympsd.vocabulary.answers import Answer, Part, refusal
from pympsd.vocabulary.queries import VERBS


@frozen
class Command:
    """One registered command."""

    module: str
    verb: str
    syntax: Syntax
    handler: Handler
    asks_servers: bool
    in_both: bool = False
    """A daemon of protocol 2 has it too."""
    takes_file: bool = False
    """Its handler gets the text of the file that the line names, as ``text``."""
    asks_process: bool = False
    """Its caller gets what rules ask of the process whose PID is its first argument."""

    @property
    def is_query(self) -> bool:
        """Whether it only asks: a refusal then leaves standard output empty."""
        return self.verb in VERBS

    def run(self, daemon: Daemon, caller: Caller, words: Sequence[str], file: bytes | None = None) -> Decision:
        """Read the words after the verb and run the handler; make an answer of a refusal."""
        attached = {"text": file} if self.takes_file else {}
        if self.is_query:
            daemon = view.seen_by(daemon, caller)
        if self.is_query and JSON_OPTION in words:
            words = [word for word in words if word != JSON_OPTION]
            if "format" not in self.syntax.options:
                return _as_json(self.run(daemon, caller, words, file))
            words.append("--format=json")
        try:
            return self.handler(daemon, caller, **read_words(self.syntax, words), **attached)
        except Refused as error:
            return Decision(self.refusal(error))
        except NotPossible as error:
            return Decision(self.refusal(Refused(str(error))))

    def refusal(self, error: Refused) -> Answer:
        """Return the answer of a refusal: its sentence on standard output for a change, on error for a query."""
        if self.is_query:
            return refusal(diagnostic=" ".join(filter(None, (str(error), error.hint))))
        return refusal(str(error), diagnostic=error.hint)


def _as_json(decision: Decision) -> Decision:
    """Return a decision whose printed text, of a query without rows, is a string of JSON."""
    answer = decision.answer
    if answer is None or not answer.printed:
        return decision
    text = json.dumps(answer.printed.removesuffix("\n"))
    return evolve(decision, answer=evolve(answer, parts=(Part(text, logged=False),)))


COMMANDS: Final[dict[str, dict[str, Command]]] = {}
"""By module and verb."""


def command(
    syntax: Syntax,
    *,
    asks_servers: bool = False,
    in_both: bool = False,
    takes_file: bool = False,
    asks_process: bool = False,
) -> Callable[[Handler], Handler]:
    """Register a handler for a command."""
    module, verb = syntax.command.split(" ")

    def register(handler: Handler) -> Handler:
        verbs = COMMANDS.setdefault(module, {})
        if verb in verbs:
            raise ValueError(f"the command {syntax.command} is registered twice")
        verbs[verb] = Command(module, verb, syntax, handler, asks_servers, in_both, takes_file, asks_process)
        return handler

    return register


def listing(columns: Sequence[Column], rows: Sequence[Row], chosen: Format | None) -> Decision:
    """Return rows as the answer; it is not logged, for monitors ask again and again."""
    return data(written(columns, rows, chosen or Format()))


def data(text: str) -> Decision:
    """Return a text as the answer of a query; nothing at all for an empty one."""
    return Decision(Answer((Part(text, logged=False),) if text else ()))


def done(*notes: str) -> Answer:
    """Return the answer of a change that was made: nothing, but on standard error a line for each note there is."""
    return Answer(diagnostic="\n".join(filter(None, notes)))
