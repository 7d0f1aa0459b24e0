"""The registry of commands: one decorator each, argument readers as keywords; the docstring is the help.

A command is a function ``(daemon, caller, **arguments) -> Decision``; a keyword of the decorator names an argument
and gives the reader of its value from the words after the command's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from pympsd.state_machine.instructions import Instruction, Note
from pympsd.state_machine.state.daemon import Daemon
from pympsd.vocabulary.answers import Answer, Part
from pympsd.vocabulary.mistyped import find_similar
from pympsd.vocabulary.rules import Origin

JSON_OPTION: Final = "--json"
LEFT_OUT: Final = {"-mlopart": "no device of this machine has locality domains"}
"""Options of later drivers that are accepted without an effect, and why."""
Reader = Callable[[Sequence[str]], Any]


@frozen
class Caller:
    """The origin of a command: an operator session, and the uid that the kernel reports for it."""

    session: int
    uid: int
    at: float = 0.0
    """When it was given, in seconds since 1970."""
    server: str = ""
    """The server whose socket it came by; empty: the daemon's own."""
    namespace: str = ""
    process: Origin | None = None
    """The process that the line names, if there is one."""


@frozen
class Decision:
    """The result of a command: an answer now, or None if it comes later, and instructions for the I/O layer."""

    answer: Answer | None
    instructions: tuple[Instruction, ...] = ()
    data: Any = None
    """What --json prints in place of the answer; None: a refusal, which is the same with it."""


Handler = Callable[..., Decision]


@frozen
class Command:
    """One registered command."""

    name: str
    handler: Handler
    readers: dict[str, Reader]
    asks_servers: bool = False
    """Its answer depends on what servers know: those that do not report by themselves are asked before."""
    takes: str | None = None
    """The pattern of the arguments that a query knows; with any others it is refused, unless what it answers
    to them is recorded."""
    options: tuple[str, ...] = ()
    """The options of a change; other words that begin with ``-`` are ignored (recorded), and reported."""
    prints_anyway: bool = False
    """Driver 580 ignores arguments that it does not know (recorded): the answer is printed, though refused."""

    def run(self, daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
        """Carry out the words after the name; a query answers with its data if --json is among them."""
        if self.takes is None:
            return self._with_note(self._run(daemon, caller, words), caller, words)
        plain = [word for word in words if word != JSON_OPTION]
        decision = self._run(daemon, caller, plain)
        if decision.data is None and decision.answer is not None and decision.answer.refused:
            return decision
        if not re.fullmatch(self.takes, given := " ".join(plain)):
            # Recorded, without a server: "ps foo" says "Server not found", others print nothing.
            stays = decision.answer and (decision.answer.refused or (self.prints_anyway and len(plain) == len(words)))
            answer = decision.answer if stays and decision.answer else Answer()
            complaint = f"{self.name}: {given[:80]!r} is not understood{self._meant(plain)}; see -h"
            return Decision(evolve(answer, refused=True, diagnostic=complaint))
        if len(plain) == len(words):
            return decision
        # It is not logged, for monitors ask again and again.
        return Decision(Answer((Part(json.dumps(decision.data), logged=False),)))

    def _with_note(self, decision: Decision, caller: Caller, words: Sequence[str]) -> Decision:
        """Add the options that were ignored to the answer of a change."""
        note = "; ".join(self._ignored(words))
        if not note or (decision.answer is not None and decision.answer.refused):
            return decision
        note = f"{self.name}: {note}"
        if decision.answer is not None:
            return evolve(decision, answer=evolve(decision.answer, diagnostic=note))
        return evolve(decision, instructions=(Note(caller.session, note), *decision.instructions))

    def _ignored(self, words: Sequence[str]) -> Iterator[str]:
        for word in words:
            if re.match("--?[A-Za-z]", word) and word not in self.options:
                similar = find_similar(word, self.options)
                hint = f" (did you mean {similar}?)" if similar else ""
                reason = LEFT_OUT.get(word)
                yield f"{word} is left out: {reason}" if reason else f"{word[:80]} is ignored{hint}"

    def _meant(self, words: Sequence[str]) -> str:
        """Return which option a query was probably to be given, in a sentence about it; empty: none is similar."""
        options = [JSON_OPTION, *re.findall(r"--?[a-z]+", self.takes or "")]
        similar = [found for word in words if word.startswith("-") and (found := find_similar(word, options))]
        return f" (did you mean {similar[0]}?)" if similar else ""

    def _run(self, daemon: Daemon, caller: Caller, words: Sequence[str]) -> Decision:
        """Read the arguments, and run the handler unless a reader refuses."""
        arguments = {}
        for keyword, reader in self.readers.items():
            value = reader(words)
            if isinstance(value, Answer):
                return Decision(value)
            arguments[keyword] = value
        return self.handler(daemon, caller, **arguments)


REGISTRY: Final[dict[str, Command]] = {}


def command(
    name: str,
    *,
    asks_servers: bool = False,
    takes: str | None = None,
    options: tuple[str, ...] = (),
    prints_anyway: bool = False,
    **readers: Reader,
) -> Callable[[Handler], Handler]:
    """Register a handler under a command's name."""

    def register(handler: Handler) -> Handler:
        if name in REGISTRY:
            raise ValueError(f"the command {name} is registered twice")
        REGISTRY[name] = Command(name, handler, readers, asks_servers, takes, options, prints_anyway)
        return handler

    return register
