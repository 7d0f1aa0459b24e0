"""What a command answers: parts for stdout and control.log, and for a refused one a line for stderr."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pympsd.vocabulary.results import Result

_WHY_NOT_ENDED: Final[dict[int, str]] = {
    Result.ERROR_INVALID_CONTEXT: "the process has no active context on it: it was ended before, or never had one",
    Result.ERROR_LAUNCH_TIMEOUT: (
        "a kernel of it still runs, or its executor is stopped; a daemon with --terminate-by-reset would end it with "
        "its device's work"
    ),
    Result.ERROR_MPS_RPC_FAILURE: "the server has ended meanwhile, and the client's work with it",
}
"""What the numbers that terminate_client answers mean; docs/operations.md says what can be done."""


@frozen
class Part:
    """A piece of an answer. What goes to stdout gets a newline after it; what is logged is one entry."""

    text: str
    printed: bool = True
    logged: bool = True


@frozen
class Answer:
    """A whole answer. ``diagnostic`` goes to stderr: what was wrong and what is allowed, or what is to be known."""

    parts: tuple[Part, ...] = ()
    diagnostic: str = ""
    refused: bool = False

    @property
    def printed(self) -> str:
        """The text for stdout."""
        return "".join(f"{part.text}\n" for part in self.parts if part.printed)


def lines(*texts: str) -> Answer:
    """Return an accepted answer of printed and logged lines."""
    return Answer(tuple(Part(text) for text in texts))


def refusal(*texts: str, diagnostic: str = "") -> Answer:
    """Return a refusal whose lines are printed and logged."""
    return Answer(tuple(Part(text) for text in texts), diagnostic=diagnostic, refused=True)


def termination_answer(code: int) -> Answer:
    """Return the answer of terminate_client: a CUresult number, 0 when the contexts are gone."""
    if code == 0:
        return lines("0")
    why = _WHY_NOT_ENDED.get(code, "the server could not end it")
    return refusal(f"{code}", diagnostic=f"terminate_client: {why}")
