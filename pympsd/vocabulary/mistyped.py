"""Guess which word was meant by a mistyped one, for the messages of every command line."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from pympsd.errors import BAD_USAGE

SIMILARITY: Final = 0.7
"""The minimum similarity of a suggestion, from 0 to 1 (difflib's ratio)."""


def find_similar(word: str, candidates: Iterable[str]) -> str:
    """Return the known word that is most similar to a mistyped one; empty if none is similar."""
    import difflib

    by_lower_case = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), by_lower_case, 1, SIMILARITY)
    return by_lower_case[matches[0]] if matches else ""


def suggest(word: str, candidates: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word, which suggests a similar known one.

    ``; did you mean --users?`` if there is one, and a full stop otherwise.
    """
    similar = find_similar(word, candidates)
    return f"; did you mean {similar}?" if similar else "."


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence on standard error, and the exit status 2.

    ``show``: prints the help and returns the exit status; without it argparse prints, and ignores a full disk.
    """

    def __init__(self, *, show: Callable[[str], int] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._show = show

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse arguments; an unknown option is reported first, because it may be why others are missing."""
        for word in args or ():
            if word == "--":
                break
            if word.startswith("-") and len(word) > 1 and not self._is_option(word):
                option = word.partition("=")[0]
                self.error(f"there is no option {option}{suggest(option, self._option_string_actions)}")
        parsed: argparse.Namespace = super().parse_args(args, namespace)
        return parsed

    def print_help(self, file: Any = None) -> None:
        """Print the help; with ``show``, exit."""
        if self._show is None:
            super().print_help(file)
        else:
            self.exit(self._show(self.format_help()))

    def error(self, message: str) -> NoReturn:
        """Print a sentence and exit."""
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n")

    def _is_option(self, word: str) -> bool:
        """Return whether a word is an option, may be an abbreviation of one, or is a negative number."""
        option = word.partition("=")[0]
        if word.startswith("--"):
            return any(candidate.startswith(option) for candidate in self._option_string_actions)
        return word[:2] in self._option_string_actions or self._negative_number_matcher.match(word) is not None
