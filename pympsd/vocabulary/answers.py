"""The answer of a command: parts for stdout and control.log, and for a refused one a line for stderr."""

from typing import Final

from attrs import frozen

CLIENTS_ONLY: Final = "This socket is for clients only; commands are taken in the daemon's own pipe directory."
CLIENTS_ONLY_AT_CONTROL: Final = (
    "This daemon was started with --clients-only: it takes commands from root and its own user, not at this socket."
)
NO_LIMITS: Final = "Cgroup '{}' has no limits of its own."


def clients_only(server: str) -> str:
    """Return the answer to operators at a socket for clients only: a server's, or if empty the daemon's own."""
    return CLIENTS_ONLY if server else CLIENTS_ONLY_AT_CONTROL


@frozen
class AnswerPart:
    """A piece of an answer: printed to stdout with a newline after it, logged as one entry."""

    text: str
    printed: bool = True
    logged: bool = True


@frozen
class Answer:
    """A whole answer. ``diagnostic`` goes to stderr: what was wrong and what is allowed, or a note."""

    parts: tuple[AnswerPart, ...] = ()
    diagnostic: str = ""
    refused: bool = False

    @property
    def printed(self) -> str:
        """The text for stdout."""
        return "".join(f"{part.text}\n" for part in self.parts if part.printed)


def lines(*texts: str) -> Answer:
    """Return an accepted answer of printed and logged lines."""
    return Answer(tuple(AnswerPart(text) for text in texts))


def refusal(*texts: str, diagnostic: str = "") -> Answer:
    """Return a refusal whose lines are printed and logged."""
    return Answer(tuple(AnswerPart(text) for text in texts), diagnostic=diagnostic, refused=True)
