"""The registry of commands: one decorator each, argument readers as keywords, the docstring is the help.

A command is a function ``(daemon, asker, **arguments) -> Decision``; a keyword of the decorator names an argument
and says how it is read from the words after the command's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from pympsd.commands.answers import Answer, refusal

if TYPE_CHECKING:
    from pympsd.state_machine.daemon_state import Daemon
    from pympsd.state_machine.instructions import Instruction

Reader = Callable[[Sequence[str]], Any]
LINE_LIMIT: Final = 64 * 1024
"""A longer line is cut to this many bytes and is an unknown command."""


@frozen
class Asker:
    """Who gave a command: an operator session and the uid the kernel says it has."""

    session: int
    uid: int


@frozen
class Decision:
    """What a command leads to: an answer now, or none yet (``answer`` None), and instructions for the rim."""

    answer: Answer | None
    instructions: tuple[Instruction, ...] = ()


Handler = Callable[..., Decision]


@frozen
class Command:
    """One registered command."""

    name: str
    handler: Handler
    readers: dict[str, Reader]

    def run(self, daemon: Daemon, asker: Asker, words: Sequence[str]) -> Decision:
        """Read the arguments from the words after the name; a refused one is the answer."""
        arguments = {}
        for keyword, reader in self.readers.items():
            value = reader(words)
            if isinstance(value, Answer):
                return Decision(value)
            arguments[keyword] = value
        return self.handler(daemon, asker, **arguments)


REGISTRY: Final[dict[str, Command]] = {}


def command(name: str, **readers: Reader) -> Callable[[Handler], Handler]:
    """Register a handler as the command of a name."""

    def register(handler: Handler) -> Handler:
        if name in REGISTRY:
            raise ValueError(f"the command {name} is registered twice")
        REGISTRY[name] = Command(name, handler, readers)
        return handler

    return register


def split(line: bytes) -> list[str]:
    """Return the words of a line: split on blanks, tabs and line ends, nothing after a NUL; bytes survive."""
    text = line.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return [word for word in text.replace("\t", " ").replace("\r", " ").replace("\n", " ").split(" ") if word]


def answer_line(daemon: Daemon, asker: Asker, line: bytes) -> Decision:
    """Decide one line of an operator."""
    words = split(line[:LINE_LIMIT])
    name = words[0] if words else ""
    known = REGISTRY.get(name) if len(line) <= LINE_LIMIT else None
    if known is None:
        return Decision(
            refusal(f'Unknown command "{name}"', diagnostic=f"the commands are {', '.join(sorted(REGISTRY))}")
        )
    return known.run(daemon, asker, words[1:])
