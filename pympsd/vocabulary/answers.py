"""The answer of a command: parts for stdout and control.log, and for a refused one a line for stderr."""

from typing import Final

from attrs import frozen

CLIENTS_ONLY: Final = "This socket is for clients only; commands are taken in the daemon's own pipe directory."
CLIENTS_ONLY_AT_CONTROL: Final = (
    "This daemon was started with --clients-only: it takes commands from root and its own user, not at this socket."
)
NO_LIMITS: Final = "Cgroup '{}' has no limits of its own."


def clients_only(server: str) -> str:
    """Return the refusal of commands at a socket that is for clients only.

    Args:
        server: The server whose socket it is; empty means the daemon's own.
    """
    return CLIENTS_ONLY if server else CLIENTS_ONLY_AT_CONTROL


@frozen
class AnswerPart:
    """A piece of an answer.

    If it is ``printed``, it goes to standard output, with a newline after it; if it is ``logged``, it is one entry of
    control.log.
    """

    text: str
    printed: bool = True
    logged: bool = True


@frozen
class Answer:
    """A whole answer of a command.

    ``diagnostic`` goes to standard error: what was wrong and what is allowed, or a note. ``refused`` decides the exit
    status.

    >>> answer = Answer((AnswerPart("50.0"), AnswerPart("for the log", printed=False)))
    >>> answer.printed, answer.refused
    ('50.0\\n', False)
    """

    parts: tuple[AnswerPart, ...] = ()
    diagnostic: str = ""
    refused: bool = False

    @property
    def printed(self) -> str:
        """The text for standard output: the printed parts, each with its newline."""
        return "".join(f"{part.text}\n" for part in self.parts if part.printed)


def lines(*texts: str) -> Answer:
    """Return an answer that accepts the command, with lines that are both printed and logged.

    >>> lines("847", "848").printed
    '847\\n848\\n'
    """
    return Answer(tuple(AnswerPart(text) for text in texts))


def refusal(*texts: str, diagnostic: str = "") -> Answer:
    """Return an answer that refuses the command.

    Args:
        texts: Lines that are printed and logged, as recorded of the driver; often none.
        diagnostic: A sentence for standard error: what was wrong, and what is allowed.
    """
    return Answer(tuple(AnswerPart(text) for text in texts), diagnostic=diagnostic, refused=True)
